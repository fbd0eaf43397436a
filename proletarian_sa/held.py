"""Run jobs inside the transactions that claim them: one thread's claims, and the watch over all of them."""

from __future__ import annotations

import datetime as dt
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from proletarian_sa import events
from proletarian_sa.backoff import backoff
from proletarian_sa.claimed import Finish
from proletarian_sa.dialects import Archived
from proletarian_sa.dialects.held import held_row
from proletarian_sa.errors import DatabaseNotSupported, is_ctrl_c
from proletarian_sa.finish import Recorder, Recording, interrupted, record_until
from proletarian_sa.floor import EARLIEST
from proletarian_sa.held_session import HeldTransaction
from proletarian_sa.own_connection import OwnConnection
from proletarian_sa.run import Decision, about, run, start
from proletarian_sa.trouble import RECORDING, Trouble

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.dialects.held import HeldStatements
    from proletarian_sa.floor import Floor
    from proletarian_sa.outcomes import Outcome
    from proletarian_sa.running import RunningJob
    from proletarian_sa.runtime import MakeThread, Runtime

Lent = TypeVar("Lent", bound=HeldTransaction)

LOOK: Final = 1.0  # seconds between looks at the connections of running jobs
SLOWEST_LOOK: Final = 10.0  # seconds, while the database is away
WATCHING: Final = "watching held jobs"


class HeldClaims:
    """One thread's claims, one at a time, on a connection of its own.

    Args:
        runtime: The worker's.
        watch: Is told of what runs.
        keep_connection: False gives the connection back after each job, for pools that are too small.
        floors: The worker's, by queue; without them all claims are full.
    """

    def __init__(
        self,
        runtime: Runtime,
        watch: HeldWatch,
        *,
        keep_connection: bool = True,
        floors: Mapping[str, Floor] | None = None,
    ) -> None:
        self._runtime = runtime
        self._watch = watch
        self._floors = floors
        self._statements = held_statements(runtime)
        self._own = OwnConnection(
            runtime.engine,
            keep=keep_connection,
            settle=partial(self._statements.keep_open, lasting=keep_connection),
            restore=self._statements.let_go,
            commit=self._statements.commit,
        )
        self._go_on = partial(self._own.commit, going_on=True)
        self._recorder = Recorder(runtime, own=self._own)

    @property
    def refusals(self) -> int:
        """How many jobs in a row could not be recorded for a reason that waiting does not mend."""
        return self._recorder.refusals

    @property
    def own(self) -> OwnConnection:
        """Its connection, free after a claim that found nothing."""
        return self._own

    def close(self) -> None:
        """Roll back what is open, and give the connection back."""
        self._own.close()

    def limit(self) -> int:
        """Return how many jobs to claim at a time."""
        return 1

    def claim(self) -> ClaimedJob | None:
        """Lock a due job of the first queue that has one; None if none has.

        **Transaction:** begins one, which holds the claim; without a job it is over.
        """
        return next(iter(self.claim_some(1)), None)

    def claim_some(self, limit: int) -> list[ClaimedJob]:
        """Lock as many due jobs of the first queue that has any; the oldest comes first.

        **Transaction:** begins one, which holds the claims; without jobs it is over.
        """
        try:
            for queue in self._runtime.queues:
                connection = self._own.begin()
                self._statements.begin(connection)
                floor = None if self._floors is None else self._floors[queue]
                since, began = EARLIEST if floor is None else floor.since(), time.monotonic()
                token = self._runtime.tokens.new()
                claimed = self._statements.claim_some(connection, queue=queue, token=token, since=since, limit=limit)
                if floor is not None:
                    floor.claimed(since, began, claimed)
                if claimed:
                    if not self._runtime.is_quiet():
                        self._runtime.emit(events.JobsClaimed(worker_id=self._runtime.worker_id, queue=queue, count=len(claimed)))
                    return claimed
                self._own.commit()  # each by itself: what a poll of an empty queue has locked is free while a job runs
        except BaseException:
            self._own.close()
            raise
        return []

    def run_all(self, claimed: Sequence[ClaimedJob], stopping: threading.Event) -> None:
        """Run the jobs just claimed, no more than `limit`, and record what became of them.

        **Transaction:** as `run`.
        """
        for job in claimed:
            self.run(job, stopping)

    def run(self, claimed: ClaimedJob, stopping: threading.Event | None = None) -> Outcome:
        """Run the job just claimed, and record what became of it.

        Args:
            claimed: What `claim` returned.
            stopping: The worker's own flag.

        **Transaction:** the one that holds the claim, over when this returns; if it is lost, one to record the outcome in.
        """
        try:
            decision = self._run(claimed, stopping, HeldTransaction)[0]
        except BaseException as error:
            self._own.close()  # the lock is gone with it: the job is due again
            if is_ctrl_c(error):
                self._runtime.emit(events.JobReleased(**about(self._runtime, claimed)))
            raise
        try:
            return self._record(claimed, decision)
        finally:
            del decision  # see run(): else its exception would be in a cycle with its traceback

    def _record(self, claimed: ClaimedJob, decision: Decision) -> Outcome:
        if decision.verdict == "release" and not decision.retry_in and not decision.uncertain:
            self._own.rollback()
            self._runtime.emit(events.JobReleased(**about(self._runtime, claimed)))
            return interrupted(decision)
        recording = Recording(decision)
        if self._own.is_open and not self._try_to_record(recording) and recording.outcome is not None:
            return recording.outcome
        # The lock is lost: the outcome is recorded if nobody has had the job since.
        recorder = Recorder(self._runtime, keep_connection=False)
        deadline = time.monotonic() + self._runtime.lease.total_seconds()
        outcome = record_until(self._runtime, recorder, recording, lambda: deadline)
        self._recorder.refusals += recorder.refusals
        return outcome

    def _try_to_record(self, recording: Recording) -> list[Recording]:
        """Do what `Recorder.record` does in the claim's transaction: with few words for a job that went well, as most do."""
        decision = recording.decision
        if decision.verdict == "success" and not decision.recorded:
            finish = Finish(decision.claimed, "success")
            try:
                with self._runtime.vigil.asking(RECORDING):
                    archived = self._statements.archive(self._own.begin(), finish)
                    self._go_on()
            except Exception as error:  # noqa: BLE001 - becomes an event
                self._own.close()
                return self._recorder.failed([recording], error)
            self._recorder.works([recording])
            if archived is Archived.LOST:
                recording.decision = replace(decision, verdict="lost")
            else:
                recording.decision = replace(decision, recorded=True, replaced=archived is Archived.REPLACED)
        return self._recorder.record([recording])

    def _run(self, claimed: ClaimedJob, stopping: threading.Event | None, kind: type[Lent]) -> tuple[Decision, Lent | None]:
        """Return what is to become of the job, and what is behind its `job.session`, if it used that."""
        if stopping is not None and stopping.is_set():
            return Decision(claimed=claimed, verdict="release"), None
        connection = self._own.begin()
        joined = kind if self._runtime.colour is None else self._runtime.colour.joined
        started = start(self._runtime, claimed, lambda: joined(self._runtime, claimed, connection, self._go_on))
        if isinstance(started, Decision):
            return started, None
        with self._watch.over(claimed, started):
            if stopping is not None and stopping.is_set():  # since we looked: whoever set it may not have seen this job
                started._stop.set()
            decision = run(self._runtime, claimed, started)
        transaction = started._transaction
        if started._not_opened is not None or (transaction is not None and not transaction.alive):
            self._own.close()
        try:
            return decision, transaction  # type: ignore[return-value]
        finally:
            del decision  # likewise


class Watched:
    """A job that runs inside its claim's transaction: looked after while this is entered."""

    __slots__ = ("_watch", "claimed", "lost", "running", "since", "warned")

    def __init__(self, watch: HeldWatch, claimed: ClaimedJob, running: RunningJob) -> None:
        self._watch = watch
        self.claimed = claimed
        self.running = running
        self.since = time.monotonic()
        self.warned = False
        self.lost = False

    def __enter__(self) -> None:
        self._watch.add(self)

    def __exit__(self, *_error: object) -> None:
        self._watch.discard(self)


class HeldWatch:
    """A thread that looks after the transactions of long-running jobs: whether they are still there, and for how long already.

    It asks the server, about once a second and only while a job has been running for as long.
    """

    def __init__(self, runtime: Runtime, *, keep_connection: bool = True, thread: MakeThread | None = None) -> None:
        self._runtime = runtime
        self._make_thread = thread or runtime.thread
        self._statements = held_statements(runtime)
        self._own = OwnConnection(runtime.engine, keep=keep_connection)
        self._watched: set[Watched] = set()
        self._lock = threading.RLock()  # guards _watched; a signal handler that stops the worker may have interrupted who has it
        self._any = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        thread = self._make_thread(self._look_again, "watch")
        thread.start()
        self._thread = thread  # not before: one that could not be started cannot be joined

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._any.set()
        if self._thread is not None:
            self._thread.join()

    def running(self) -> list[RunningJob]:
        """Return the jobs whose handlers have not returned."""
        with self._lock:
            return [one.running for one in self._watched]

    def over(self, claimed: ClaimedJob, running: RunningJob) -> Watched:
        """Look after a job meanwhile: enter what this returns."""
        return Watched(self, claimed, running)

    def add(self, watched: Watched) -> None:
        """Begin to look after a job."""
        with self._lock:
            self._watched.add(watched)
            if not self._any.is_set():
                self._any.set()

    def discard(self, watched: Watched) -> None:
        """Look after it no longer."""
        with self._lock:
            self._watched.discard(watched)

    def look(self) -> None:
        """Ask which of the connections are still there; warn of long jobs.

        **Transaction:** its own: reads.
        """
        with self._lock:
            long = [one for one in self._watched if not one.lost and time.monotonic() - one.since >= LOOK]
            if not self._watched:
                self._any.clear()
        if not long:
            self._own.close()
            return
        for one in long:
            self._warn(one)
        with self._own.transaction() as connection:
            living = self._statements.living(connection, {held_row(one.claimed).backend for one in long})
        for one in long:
            if held_row(one.claimed).backend not in living and self._is_running(one):
                one.lost = True
                one.running._stop.set()
                self._runtime.emit(events.JobConnectionLost(**about(self._runtime, one.claimed)))

    def _is_running(self, watched: Watched) -> bool:
        """Return whether the job has not ended meanwhile, and its connection with it, perhaps."""
        with self._lock:
            return watched in self._watched and not watched.running._finishing

    def _warn(self, watched: Watched) -> None:
        seconds = time.monotonic() - watched.since
        if not watched.warned and seconds >= self._runtime.held_warning.total_seconds():
            watched.warned = True
            self._runtime.emit(events.JobHeldLong(**about(self._runtime, watched.claimed), seconds=seconds))

    def _look_again(self) -> None:
        trouble = Trouble(self._runtime.emit, self._runtime.worker_id, WATCHING, self._runtime.vigil)
        pause = LOOK
        while not self._stop.is_set():
            self._any.wait()
            if self._stop.wait(pause):
                break
            try:
                with self._runtime.vigil.asking(WATCHING):
                    self.look()
            except Exception as error:  # noqa: BLE001 - becomes an event; whatever it is, the next look may succeed
                pause = trouble.met(error, _delay)
            else:
                trouble.over()
                pause = LOOK
        self._own.close()


def _delay(failures: int) -> dt.timedelta:
    return max(backoff(failures, cap=SLOWEST_LOOK), dt.timedelta(seconds=LOOK))


def held_statements(runtime: Runtime) -> HeldStatements:
    """Return the statements of held claims.

    Raises:
        DatabaseNotSupported: Rows cannot be locked there.
    """
    if runtime.statements.held is None:
        raise DatabaseNotSupported(
            f"{runtime.engine.url!r} cannot hold claims: SQLite locks the whole file, so a handler would keep everybody from "
            "writing while it runs. Use claim='leased'."
        )
    return runtime.statements.held
