"""Record what became of runs: archive, retry, release, each fenced by its claim."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from sqlalchemy import exc

from proletarian_sa import events
from proletarian_sa.backoff import backoff
from proletarian_sa.claimed import Finish
from proletarian_sa.dialects import Archived, NotNew
from proletarian_sa.error_text import error_text
from proletarian_sa.errors import WorkerLost
from proletarian_sa.failed_job import Called, TransactionSpoiled
from proletarian_sa.outcomes import Outcome, Status
from proletarian_sa.own_connection import OwnConnection
from proletarian_sa.own_loops import sleep
from proletarian_sa.run import Decision, about, note_foreign_key
from proletarian_sa.trouble import RECORDING
from proletarian_sa.undeliverable import put_back
from proletarian_sa.wakeups.announce import announce_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

    from proletarian_sa.runtime import Runtime

Recorded = tuple[Decision, Status, Sequence[events.Event]]
"""What was decided in the end, what that is called, and what is to be told of it."""
FEW: Final = 200  # outcomes that may be recorded one by one where one of them is in the way
LONGEST_KEPT: Final = dt.timedelta(hours=1)
MOST_DOUBLINGS: Final = 20


class Recording:
    """A decision on its way into the database.

    Attributes:
        status: What became of it, once that is known.
        failures: How often it could not be recorded.
        repeated: An earlier try may have been committed although its answer was lost.
        not_before: When to try again, on the monotonic clock.
        called: What `failed_job` did, if it is to be called.
    """

    status: Status | None = None
    failures = 0
    repeated = False
    not_before = 0.0
    called: Called | None = None

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    @property
    def outcome(self) -> Outcome | None:
        """What became of it, once that is known."""
        return None if self.status is None else _outcome(self.decision, self.status)


class Recorder:
    """Records decisions in transactions of ours, several in one where it can.

    Args:
        runtime: The worker's.
        keep_connection: False gives the connection back after each transaction, for pools that are too small.
        own: Instead of a connection of its own, one that may be in a transaction already, which is then the one to record in.

    Attributes:
        outage: The database could not serve the last try at all; otherwise only single rows may have been in the way.
        failures: How many tries in a row have failed.
        refusals: How many jobs in a row could not be recorded for a reason that waiting does not mend.
    """

    def __init__(self, runtime: Runtime, *, keep_connection: bool = True, own: OwnConnection | None = None) -> None:
        self._runtime = runtime
        self._borrowed = own is not None
        statements = runtime.statements
        self._own = own or OwnConnection(
            runtime.engine,
            keep=keep_connection,
            settle=partial(statements.make_impatient, lasting=keep_connection),
            restore=statements.restore,
        )
        # Ids are made by us as a rule. Where the application makes them, and the same ones again, that is found out once, by an
        # error; a recorder for a single job does not try.
        self._ids_are_new = keep_connection and own is None
        self.outage = False
        self.failures = 0
        self.refusals = 0

    def close(self) -> None:
        """Give the connection back."""
        self._own.close()

    def record(self, recordings: Sequence[Recording]) -> list[Recording]:
        """Try to record decisions, each of another claim, and tell what happened once that is committed.

        Where an error or somebody's lock stops a batch, its jobs are recorded in smaller ones, and one by one: one of them spoils
        nobody else.

        Returns:
            Those to be tried again, not before their `not_before`; the others have their outcome.

        **Transaction:** its own, committed; waits about a second for a row that somebody has locked.
        """
        if any(recording.decision.recorded for recording in recordings):
            recordings = self._not_yet(recordings)
        if not recordings:
            return []
        most = self._runtime.statements.most_archived
        if len(recordings) > most:
            first, rest = self.record(recordings[:most]), list(recordings[most:])
            return first + (rest if self.outage else self.record(rest))
        return self._record(recordings)

    def _record(self, recordings: Sequence[Recording]) -> list[Recording]:
        try:
            with self._runtime.vigil.asking(RECORDING), self._own.transaction() as connection:
                if not connection.in_transaction():
                    self._runtime.statements.wait_briefly(connection)
                recorded = self._write(connection, recordings)
        except TransactionSpoiled:
            # A borrowed connection may wait for locks for as long as the application likes.
            return list(recordings) if self._borrowed else self.record(recordings)
        except NotNew:
            self._ids_are_new = False
            return self._record(recordings)
        except Exception as error:  # noqa: BLE001 - becomes an event
            return self.failed(recordings, error)
        self.works(recordings)
        if recorded is None:
            for recording in recordings:
                recording.status = "succeeded"
        else:
            for recording, what in zip(recordings, recorded, strict=True):
                self.tell(recording, what)
        return []

    def _write(self, connection: Connection, recordings: Sequence[Recording]) -> list[Recorded] | None:
        if self._runtime.is_quiet() and all(recording.decision.is_plain_success() for recording in recordings):
            return succeed(self._runtime, connection, recordings, new=self._ids_are_new)
        recorded = write(self._runtime, connection, recordings, self._own.commit)
        for called in [recording.called for recording in recordings if recording.called is not None]:
            called.commit()
        return recorded

    def works(self, recordings: Sequence[Recording]) -> None:
        """Take note that these are recorded."""
        self.outage, self.failures, self.refusals = False, 0, 0
        self._runtime.recording.over(recordings)

    def _not_yet(self, recordings: Sequence[Recording]) -> list[Recording]:
        """Tell of what the handler's own commit has recorded, for which nothing is left to write or wait for; return the others."""
        for recording in recordings:
            if recording.decision.recorded:
                self.tell(recording, _archived(self._runtime, recording.decision, None))
                self.refusals = 0
        return [recording for recording in recordings if recording.status is None]

    def tell(self, recording: Recording, recorded: Recorded) -> None:
        """Take note of an outcome that is committed, and tell."""
        recording.decision, recording.status, happened = recorded
        for event in happened:
            self._runtime.emit(event)

    def _keep(self, recording: Recording) -> None:
        """Own a job whose outcome is refused for longer each time, so that its effects are not repeated every few seconds."""
        claimed = recording.decision.claimed
        delay = min(self._runtime.lease * 2 ** min(claimed.crashes, MOST_DOUBLINGS), max(self._runtime.lease, LONGEST_KEPT))
        try:
            with self._own.transaction() as connection:
                self._runtime.statements.keep(connection, claimed, lease=delay)
        except exc.SQLAlchemyError:
            return  # it lapses with the lease that it has: `give_up` tells

    def failed(self, recordings: Sequence[Recording], error: Exception) -> list[Recording]:
        """Judge an error, tell, and return what `record` returns after it."""
        statements = self._runtime.statements
        for recording in recordings:
            recording.repeated |= self._own.commit_failed
        self.outage = (
            isinstance(error, exc.TimeoutError)
            or (isinstance(error, exc.DBAPIError) and error.connection_invalidated)
            or (not statements.row_locks and statements.is_transient(error))  # whoever writes keeps all waiting
        )
        if len(recordings) > 1 and not self.outage:
            size = FEW if len(recordings) > FEW else 1
            parts = [recordings[first : first + size] for first in range(0, len(recordings), size)]
            return [left for part in parts for left in self.record(part)]
        if not self.outage and not statements.is_transient(error) and not statements.is_missing_table(error):
            # A foreign key refuses one job, not all of them: the worker goes on.
            self.refusals += not note_foreign_key(self._runtime, error)
            for recording in recordings:
                self._keep(recording)
                give_up(self._runtime, recording, error)
            return []
        self.failures += 1
        delay = backoff(max([self.failures if self.outage else 0, *(recording.failures + 1 for recording in recordings)]))
        for recording in recordings:
            recording.failures += 1
            recording.not_before = time.monotonic() + delay.total_seconds()
        # If not an outage it is somebody's lock on a row, and no fault of the database.
        self._runtime.recording.met(error, lambda _failures: delay, waiting=recordings, stalls=self.outage)
        return list(recordings)


def record_until(runtime: Runtime, recorder: Recorder, recording: Recording, deadline: Callable[[], float]) -> Outcome:
    """Record one decision, trying again for as long as `deadline` says, on the monotonic clock."""
    while recorder.record([recording]):
        now = time.monotonic()
        if now > deadline():
            give_up(runtime, recording, TimeoutError("The database could not store it for as long as the lease lasts."))
            break
        sleep(max(0.0, recording.not_before - now))
    if recording.status is None:
        raise AssertionError("A recording without an outcome is to be tried again.")
    return _outcome(recording.decision, recording.status)


def give_up(runtime: Runtime, recording: Recording, error: BaseException) -> None:
    """Leave a job to lapse whose outcome cannot be recorded, and tell."""
    runtime.recording.give_up(recording)
    runtime.emit(events.OutcomeNotRecorded(**about(runtime, recording.decision.claimed), exception=error))
    recording.status = "lost"


def succeed(
    runtime: Runtime, connection: Connection, recordings: Sequence[Recording], *, new: bool = False
) -> list[Recorded] | None:
    """Write decisions that are plain successes, as most are; return as `write` does, None where nothing is to be told.

    Raises:
        NotNew: The ids of the jobs are not as `new` to the archive as they were believed to be.

    **Transaction:** as `write`.
    """
    decisions = [recording.decision for recording in recordings]
    results = runtime.statements.succeed(connection, [one.claimed for one in decisions], new=new)
    if results.count(Archived.DONE) == len(results):
        return None
    return [
        _record_one(runtime, connection, one, result, repeated=recording.repeated)
        for one, result, recording in zip(decisions, results, recordings, strict=True)
    ]


def write(runtime: Runtime, connection: Connection, recordings: Sequence[Recording], commit: Callable[[], None]) -> list[Recorded]:
    """Write decisions, and return what is to be told once that is committed.

    Args:
        runtime: The worker's.
        connection: In a transaction of ours.
        recordings: Decisions, each of another claim.
        commit: Commits it.

    Raises:
        TransactionSpoiled: `failed_job` has cost us the transaction; it is not called again.

    **Transaction:** writes, and does not commit: first each `called.commit()`, then the connection.
    """
    decisions = [recording.decision for recording in recordings]
    known = [_look_first(runtime, connection, decision) if decision.uncertain else decision for decision in decisions]
    known = [_deliver(runtime, connection, one) if one.verdict == "undeliverable" else one for one in known]
    to_archive = [one for one in known if one.verdict in ("success", "failure") and not one.recorded]
    archived: dict[int, Archived] = {}
    if to_archive:
        finishes = [_finish(decision) for decision in to_archive]
        results = runtime.statements.archive(connection, finishes)
        archived = {id(decision): result for decision, result in zip(to_archive, results, strict=True)}
    recorded: list[Recorded] = [
        _record_one(runtime, connection, one, archived.get(id(one)), repeated=recording.repeated)
        for one, recording in zip(known, recordings, strict=True)
    ]
    if runtime.failed_job is not None:
        for number, (recording, (one, status, told)) in enumerate(zip(recordings, recorded, strict=True)):
            if status == "failed":
                called = recording.called = recording.called or Called()
                now = archived.get(id(one), Archived.LOST) is not Archived.LOST  # else it was, by an earlier try
                if now or called.has_failed:
                    recorded[number] = one, status, [*told, *called.call(runtime, connection, one, commit)]
    for one in known:
        if one.verdict in ("retry", "release", "undeliverable"):
            announce_elsewhere(connection, runtime.statements, one.claimed.queue, one.retry_in)
    return [(one, status, [*one.said, *told]) for one, status, told in recorded]


def _finish(decision: Decision) -> Finish:
    if decision.exception is None:
        return Finish(decision.claimed, decision.verdict)
    return Finish(decision.claimed, decision.verdict, last_error=error_text(decision.exception))


def _record_one(
    runtime: Runtime, connection: Connection, decision: Decision, archived: Archived | None, *, repeated: bool
) -> Recorded:
    facts = about(runtime, decision.claimed)
    match decision.verdict:
        case "success" | "failure":
            lost = archived is Archived.LOST
            # Unless an earlier try was committed and its answer lost.
            if not lost or runtime.statements.archived_as(connection, decision.claimed) is not None:
                return _archived(runtime, decision, archived)
        case "retry":
            error = error_text(decision.exception or WorkerLost("unknown"))
            stored = runtime.statements.retry(connection, decision.claimed, delay=decision.retry_in, error=error)
            if stored or repeated:
                return decision, "retrying", [events.JobRetried(**facts, retry_in=decision.retry_in)]
        case "release":
            if runtime.statements.release(connection, decision.claimed, delay=decision.retry_in) or repeated:
                return decision, "interrupted", [events.JobReleased(**facts)]
        case "undeliverable":
            exception = decision.exception or WorkerLost("unknown")
            event = events.JobUndeliverable(**facts, exception=exception, retry_in=decision.retry_in)
            return decision, "retrying", [event]
        case "lost":
            pass  # nothing is to be written
    return decision, "lost", [events.JobLeaseLost(**facts, handler_finished=True)]


def _archived(runtime: Runtime, decision: Decision, archived: Archived | None) -> Recorded:
    status: Status = "succeeded" if decision.verdict == "success" else "failed"
    happened: list[events.Event] = []
    if archived is Archived.REPLACED or decision.replaced:
        happened.append(events.ArchiveRowReplaced(**about(runtime, decision.claimed)))
    if not runtime.is_quiet():
        kind = events.JobSucceeded if status == "succeeded" else events.JobFailed
        happened.append(kind(**about(runtime, decision.claimed)))
    return decision, status, happened


def _look_first(runtime: Runtime, connection: Connection, decision: Decision) -> Decision:
    """Find out what became of a commit whose answer was lost: the same claim never repeats effects that are there."""
    if runtime.statements.own(connection, decision.claimed):
        return replace(decision, uncertain=False)
    status = runtime.statements.archived_as(connection, decision.claimed)
    if status == "success":
        return replace(decision, verdict="success", exception=None, recorded=True, uncertain=False, said=())
    if status is not None:  # by an earlier try to record this
        return replace(decision, recorded=True, uncertain=False)
    return replace(decision, verdict="lost", uncertain=False, said=())


def _deliver(runtime: Runtime, connection: Connection, decision: Decision) -> Decision:
    """Put a job back that this worker cannot run, or decide that it has been tried for long enough."""
    statements, claimed = runtime.statements, decision.claimed
    error = decision.exception
    if not isinstance(error, Exception):
        raise TypeError(f"An undeliverable job needs a reason, not {error!r}.")
    if not statements.own(connection, claimed):
        return replace(decision, verdict="lost")
    now = statements.read_clock(connection)
    again = put_back(statements.last_error(connection, claimed.job_id), error, now)
    if again is None:
        failed = events.JobAttemptFailed(**about(runtime, claimed), exception=error, retry_in=None, retries_left=0)
        return replace(decision, verdict="failure", said=(*decision.said, failed))
    note, delay = again
    statements.release(connection, claimed, delay=delay, note=note)
    return replace(decision, retry_in=delay)


def interrupted(decision: Decision) -> Outcome:
    """Return the outcome of a run that is put back as if it had not begun."""
    return _outcome(decision, "interrupted")


def _outcome(decision: Decision, status: Status) -> Outcome:
    return Outcome(
        status=status,
        job_id=decision.claimed.job_id,
        job_type=decision.claimed.job_type,
        attempts=decision.claimed.attempts,
        exception=decision.exception,
        retry_in=decision.retry_in if status in ("retrying", "interrupted") else None,
    )
