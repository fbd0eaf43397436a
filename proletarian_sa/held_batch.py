"""Several held jobs in one transaction: claimed together, run one after the other, committed together."""

from __future__ import annotations

import contextvars
import datetime as dt
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from proletarian_sa import events
from proletarian_sa.dialects.held import held_row
from proletarian_sa.failed_job import TransactionSpoiled
from proletarian_sa.finish import Recorded, Recorder, Recording, record_until, write
from proletarian_sa.held import HeldClaims, Lent
from proletarian_sa.held_session import HeldTransaction
from proletarian_sa.run import about
from proletarian_sa.trouble import RECORDING

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.run import Decision

LONGEST: Final = 0.2  # seconds from the first job of a batch until no further one is begun
SHORT: Final = 0.05  # seconds that the handlers of a batch should take together: for so long its last job is kept from others


class BatchedTransaction(HeldTransaction):
    """`job.session` of one job of a batch: all of a commit but its last word is done when the job ends, inside its savepoint.

    The `before_commit` hooks of the application's session are run there, and the job is archived: what fails is undone alone. The
    `after_commit` hooks are run after the COMMIT of the batch, so until then the session stays open.
    """

    _archive: Callable[[], None]
    _context: contextvars.Context
    _over = False

    def complete(self) -> None:
        """Wait for `commit`, which knows how to archive."""

    def commit(self, archive: Callable[[], None]) -> None:
        """Do what a commit does, up to the COMMIT."""
        self._archive = archive
        self._context = contextvars.copy_context()
        super().complete()

    def _release(self) -> None:
        self._flush()
        # Public is only commit(), which calls both kinds of hooks. The same in SQLAlchemy 2.0 and 2.1.
        self._prepared()
        self._runtime.statements.check_constraints(self.connection)
        self._runtime.statements.take_back(self.connection)
        self._archive()
        self._savepoint.commit()
        self._released = True

    def _prepared(self) -> None:
        transaction: Any = self.session.get_transaction()
        transaction._prepare_impl()

    def abandon(self) -> None:
        """Take back what this job has written; the batch goes on, if it can."""
        self.undo()

    def close(self) -> None:
        """Close the session, not before the batch is over if its work is done."""
        if self._over or not self._released:
            super().close()

    def end(self, *, committed: bool) -> None:
        """Tell the session what became of its work, and close it."""
        self._over = True
        end = type(self.session).commit if committed else type(self.session).rollback
        try:
            self._context.run(end, self.session)
        except Exception as error:  # noqa: BLE001 - becomes an event: a hook of the application's, which changes no outcome
            self._runtime.emit(
                events.CallbackFailed(worker_id=self._runtime.worker_id, callback="a hook of job.session", exception=error)
            )
        finally:
            self.close()


class Ran:
    """A job of a batch that has run.

    Attributes:
        done: What is behind its `job.session`, if it stands in the archive already, uncommitted.
    """

    def __init__(self, decision: Decision, transaction: BatchedTransaction | None) -> None:
        self.done = transaction if decision.recorded else None
        # What failed was undone with its savepoint: there is nothing to look for.
        self.recording = Recording(replace(decision, recorded=False, uncertain=False))

    @property
    def decision(self) -> Decision:
        """What is to become of it."""
        return self.recording.decision

    @property
    def is_untouched(self) -> bool:
        """Whether it is put back as it was: the end of its lock is enough."""
        return self.decision.verdict == "release" and not self.decision.retry_in


class BatchClaims(HeldClaims):
    """One thread's claims, up to `size` at a time; other arguments as for `HeldClaims`.

    A batch ends early when it takes long, when the worker stops, when its transaction is lost, or with a failure that `failed_job`
    is told of, which may take its time. Jobs that were not begun are put back: their locks end with the transaction.

    A batch that is lost, in a handler or at the COMMIT, is not lost again by the same jobs: as many as it had are then run one
    by one, each in a transaction of its own, so that a job which costs others their transaction is found.
    """

    def __init__(self, *arguments: Any, size: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._size = size
        self._alone = 0  # how many jobs are to be run one by one
        self._limit = 1

    def limit(self) -> int:
        """Return how many jobs to claim: no more than are run in a short time, as far as is known."""
        return 1 if self._alone else self._limit

    def run_all(self, claimed: Sequence[ClaimedJob], stopping: threading.Event) -> None:
        """Run jobs that were claimed together, and record what became of them.

        **Transaction:** the one that holds the claims, over when this returns; if it is lost, one for each outcome that is left.
        """
        self._alone = max(0, self._alone - 1)
        self._took = 0.0
        if len(claimed) == 1:
            self.run(claimed[0], stopping)
            self._limit = next_limit(self._limit, 1, self._took, most=self._size)
            return
        ran: list[Ran] = []
        try:
            self._run_some(claimed, stopping, ran)
            begun = {one.decision.claimed.job_id for one in ran if not one.is_untouched}
            self._finish(ran, len(claimed))
        except BaseException:
            self._own.close()
            self._end(ran, committed=False)
            raise
        self._limit = next_limit(self._limit, max(1, len(ran)), self._took, most=self._size)
        for job in claimed:
            if job.job_id not in begun:
                self._runtime.emit(events.JobReleased(**about(self._runtime, job)))

    def _run(self, claimed: ClaimedJob, stopping: threading.Event | None, kind: type[Lent]) -> tuple[Decision, Lent | None]:
        began = time.monotonic()
        try:
            return super()._run(claimed, stopping, kind)
        finally:
            self._took += time.monotonic() - began

    def _run_some(self, claimed: Sequence[ClaimedJob], stopping: threading.Event, ran: list[Ran]) -> None:
        began = time.monotonic()
        for job in claimed:
            # A job whose lease has lapsed may be one that kills its worker: it takes no neighbours along.
            suspicious = held_row(job).claimed_by is not None
            if stopping.is_set() or (ran and (suspicious or time.monotonic() - began > LONGEST)):
                return
            decision, transaction = self._run(job, stopping, BatchedTransaction)
            ran.append(Ran(decision, transaction))
            tells = self._runtime.failed_job is not None and decision.verdict in ("failure", "undeliverable")
            if suspicious or tells or not self._own.is_open:
                return

    def _finish(self, ran: Sequence[Ran], claimed: int) -> None:
        left = [one.recording for one in ran if one.done is None and not one.is_untouched]
        error: Exception | None = None
        if self._own.is_open:
            try:
                with self._runtime.vigil.asking(RECORDING):
                    told = self._write(left)
            except TransactionSpoiled:
                self._own.close()
            except Exception as failure:  # noqa: BLE001 - becomes an event
                error = failure
                self._own.close()
            else:
                self._end(ran, committed=True)
                self._recorder.works([one.recording for one in ran])
                for recording, what in told:
                    self._recorder.tell(recording, what)
                self._recorder.record([Recording(replace(one.decision, recorded=True)) for one in ran if one.done is not None])
                return
        self._alone = claimed
        unanswered = self._own.commit_failed
        self._end(ran, committed=False)
        self._record_lost(ran, error, unanswered=unanswered)

    def _write(self, left: Sequence[Recording]) -> list[tuple[Recording, Recorded]]:
        """Write what does not stand in the archive yet, commit, and return what is to be told."""
        recorded = write(self._runtime, self._own.begin(), left, self._go_on) if left else []
        for recording in left:
            if recording.called is not None:
                recording.called.commit()
        self._go_on()
        return list(zip(left, recorded, strict=True))

    def _record_lost(self, ran: Sequence[Ran], error: Exception | None, *, unanswered: bool) -> None:
        """Record outcomes after the transaction is lost, each by itself: of those jobs whose work was not lost with it."""
        if error is not None:
            waiting = [one.recording for one in ran if not one.is_untouched]
            self._runtime.recording.met(error, lambda _failures: dt.timedelta(), waiting=waiting, stalls=False)
        recorder = Recorder(self._runtime, keep_connection=False)
        deadline = time.monotonic() + self._runtime.lease.total_seconds()
        for one in ran:
            recording = one.recording
            if one.is_untouched:
                continue
            if one.done is not None:  # it runs again, unless the transaction was committed all the same
                recording.decision = replace(recording.decision, verdict="lost", uncertain=True)
            recording.repeated |= unanswered
            record_until(self._runtime, recorder, recording, lambda: deadline)
        self._recorder.refusals += recorder.refusals

    @staticmethod
    def _end(ran: Sequence[Ran], *, committed: bool) -> None:
        for one in ran:
            if one.done is not None:
                one.done.end(committed=committed)


def next_limit(limit: int, ran: int, took: float, *, most: int) -> int:
    """Return how many jobs to claim after a claim of up to `limit`, of which so many ran in `took` seconds."""
    return max(1, int(ran * SHORT / took)) if took > SHORT else min(2 * limit, most)
