"""Record what became of runs: archive, retry, release, each fenced by its claim."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sqlalchemy import exc

from proletarian_sa import events
from proletarian_sa.backoff import backoff
from proletarian_sa.claimed import Finish
from proletarian_sa.dialects import Archived
from proletarian_sa.error_text import error_text
from proletarian_sa.errors import WorkerLost
from proletarian_sa.outcomes import Outcome, Status
from proletarian_sa.run import Decision, about
from proletarian_sa.undeliverable import put_back

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Sequence

    from sqlalchemy.engine import Connection

    from proletarian_sa.own_connection import OwnConnection
    from proletarian_sa.runtime import Runtime

BATCH_TRIES: Final = 2
"""How often a batch that waits for somebody's lock is tried whole before its jobs are recorded one by one."""

Recorded = tuple[Outcome, list[events.Event]]


def record_all(
    runtime: Runtime, own: OwnConnection, decisions: Sequence[Decision], pause: Callable[[dt.timedelta], bool]
) -> list[Outcome]:
    """Record decisions in one transaction, and tell what happened once it is committed.

    Transient errors are waited out. Where another error, or somebody's lock, stops a batch, its jobs are recorded one by one:
    one of them spoils nobody else.

    Args:
        runtime: The worker's.
        own: The connection to use.
        decisions: What is to become of runs, each of another job.
        pause: Waits, and returns False when there is no more time to try again.

    **Transaction:** its own, committed.
    """
    failures = 0
    while True:
        try:
            with own.transaction() as connection:
                recorded = _record(runtime, connection, decisions, repeated=failures > 0)
            break
        except Exception as error:  # noqa: BLE001 - becomes an event
            failures += 1
            transient = runtime.statements.is_transient(error)
            disconnected = isinstance(error, exc.DBAPIError) and error.connection_invalidated
            if len(decisions) > 1 and (not transient or (failures >= BATCH_TRIES and not disconnected)):
                return [outcome for one in decisions for outcome in record_all(runtime, own, [one], pause)]
            delay = backoff(failures)
            if transient:
                runtime.emit(
                    events.TransientErrorMet(
                        worker_id=runtime.worker_id,
                        activity="recording outcomes",
                        exception=error,
                        retry_in=delay,
                        consecutive=failures,
                    )
                )
            if not transient or not pause(delay):
                return [_not_recorded(runtime, decision, error) for decision in decisions]
    if failures:
        runtime.emit(events.Recovered(worker_id=runtime.worker_id, activity="recording outcomes", failures=failures))
    for _, happened in recorded:
        for event in happened:
            runtime.emit(event)
    return [outcome for outcome, _ in recorded]


def _not_recorded(runtime: Runtime, decision: Decision, error: BaseException) -> Outcome:
    runtime.emit(events.OutcomeNotRecorded(**about(runtime, decision.claimed), exception=error))
    return _outcome(decision, "lost")


def _record(runtime: Runtime, connection: Connection, decisions: Sequence[Decision], *, repeated: bool) -> list[Recorded]:
    """Write all decisions; `repeated`: an earlier try may have been committed although its answer was lost."""
    known = [_look_first(runtime, connection, decision) if decision.uncertain else decision for decision in decisions]
    known = [_deliver(runtime, connection, one) if one.verdict == "undeliverable" else one for one in known]
    to_archive = [one for one in known if one.verdict in ("success", "failure") and not one.recorded]
    archived: dict[int, Archived] = {}
    if to_archive:
        finishes = [_finish(decision) for decision in to_archive]
        results = runtime.statements.archive(connection, finishes)
        archived = {id(decision): result for decision, result in zip(to_archive, results, strict=True)}
    return [_record_one(runtime, connection, one, archived.get(id(one)), repeated=repeated) for one in known]


def _finish(decision: Decision) -> Finish:
    if decision.exception is None:
        return Finish(job=decision.claimed, status=decision.verdict)
    return Finish(job=decision.claimed, status=decision.verdict, last_error=error_text(decision.exception))


def _record_one(
    runtime: Runtime, connection: Connection, decision: Decision, archived: Archived | None, *, repeated: bool
) -> Recorded:
    facts = about(runtime, decision.claimed)
    match decision.verdict:
        case "success" | "failure":
            return _archived(runtime, connection, decision, archived)
        case "retry":
            error = error_text(decision.exception or WorkerLost("unknown"))
            stored = runtime.statements.retry(connection, decision.claimed, delay=decision.retry_in, error=error)
            if stored or repeated:
                return _outcome(decision, "retrying"), [events.JobRetried(**facts, retry_in=decision.retry_in)]
        case "release":
            if runtime.statements.release(connection, decision.claimed, delay=decision.retry_in) or repeated:
                return _outcome(decision, "interrupted"), [events.JobReleased(**facts)]
        case "undeliverable":
            exception = decision.exception or WorkerLost("unknown")
            event = events.JobUndeliverable(**facts, exception=exception, retry_in=decision.retry_in)
            return _outcome(decision, "retrying"), [event]
        case "lost":
            pass  # nothing is to be written
    return _outcome(decision, "lost"), [events.JobLeaseLost(**facts, handler_finished=True)]


def _archived(runtime: Runtime, connection: Connection, decision: Decision, archived: Archived | None) -> Recorded:
    facts = about(runtime, decision.claimed)
    if archived is Archived.LOST:
        token = runtime.statements.archived_by(connection, decision.claimed.job_id)
        if token != decision.claimed.token:  # else an earlier try was committed and its answer lost
            return _outcome(decision, "lost"), [events.JobLeaseLost(**facts, handler_finished=True)]
    happened: list[events.Event] = []
    if archived is Archived.REPLACED or decision.replaced:
        happened.append(events.ArchiveRowReplaced(**facts))
    if decision.verdict == "success":
        return _outcome(decision, "succeeded"), [*happened, events.JobSucceeded(**facts)]
    return _outcome(decision, "failed"), [*happened, events.JobFailed(**facts)]


def _look_first(runtime: Runtime, connection: Connection, decision: Decision) -> Decision:
    """Find out what became of a commit whose answer was lost: the same claim never repeats effects that are there."""
    job_id, token = decision.claimed.job_id, decision.claimed.token
    if runtime.statements.owner(connection, job_id) == token:
        return replace(decision, uncertain=False)
    if runtime.statements.archived_by(connection, job_id) == token:
        return replace(decision, verdict="success", exception=None, recorded=True, uncertain=False)
    return replace(decision, verdict="lost", uncertain=False)


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
        runtime.emit(events.JobAttemptFailed(**about(runtime, claimed), exception=error, retry_in=None, retries_left=0))
        return replace(decision, verdict="failure")
    note, delay = again
    statements.release(connection, claimed, delay=delay, note=note)
    return replace(decision, retry_in=delay)


def _outcome(decision: Decision, status: Status) -> Outcome:
    return Outcome(
        status=status,
        job_id=decision.claimed.job_id,
        job_type=decision.claimed.job_type,
        attempts=decision.claimed.attempts,
        exception=decision.exception,
        retry_in=decision.retry_in if status in ("retrying", "interrupted") else None,
    )
