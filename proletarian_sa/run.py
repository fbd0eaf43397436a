"""Run one claimed job: decode, find its handler, call it, and decide what becomes of it.

Deciding is pure; nothing is recorded here but the completion inside the handler's own transaction.
"""

from __future__ import annotations

import contextvars
import datetime as dt
import random
from asyncio import CancelledError
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import exc

from proletarian_sa import events
from proletarian_sa.claimed import ClaimedJob, Finish
from proletarian_sa.dialects import Archived
from proletarian_sa.error_text import error_line
from proletarian_sa.errors import (
    JobInterrupted,
    LeaseLost,
    PayloadError,
    SessionNotYours,
    TransactionLost,
    UnknownJobType,
    WorkerLost,
    is_ctrl_c,
)
from proletarian_sa.forks import end_child, this_process
from proletarian_sa.handlers import result_of
from proletarian_sa.retry import Retry, RetryStrategy, decide
from proletarian_sa.running import RunningJob
from proletarian_sa.session import HandlerTransaction
from proletarian_sa.time_limit import TimeLimit
from proletarian_sa.trouble import RECORDING

if TYPE_CHECKING:
    from collections.abc import Callable

    from proletarian_sa.handlers import Found
    from proletarian_sa.runtime import Runtime

MOST_DEATHS: Final = 10
"""How many attempts beyond the strategy's may end because the database ended their transaction."""

AFTER_DEATH: Final = dt.timedelta(seconds=1)
MOST_DOUBLINGS: Final = 6
"""The pause after them doubles with each attempt, to about a minute: all together they outlast a table locked for minutes."""
AFTER_NEEDLESS_INTERRUPTION: Final = dt.timedelta(seconds=1)

Verdict = Literal["success", "failure", "retry", "release", "undeliverable", "lost"]


@dataclass(eq=False)
class Decision:
    """What is to become of a run. Never changed, like the job that it is about.

    Attributes:
        recorded: It stands in the database already: the handler's own transaction has committed it.
        uncertain: Whether that commit has happened is not known: look before anything else.
        payload: The job's payload, if it could be decoded.
        said: What is to be told of the run if it has not.
    """

    claimed: ClaimedJob
    verdict: Verdict
    exception: BaseException | None = None
    retry_in: dt.timedelta = dt.timedelta()
    retries_left: int = 0
    recorded: bool = False
    replaced: bool = False
    uncertain: bool = False
    payload: Any = None
    said: tuple[events.Event, ...] = ()

    if not TYPE_CHECKING:  # there is one for each job: what most leave as it is stands above

        def __init__(self, claimed: ClaimedJob, verdict: Verdict, **others: Any) -> None:
            self.claimed = claimed
            self.verdict = verdict
            if others:
                self.__dict__.update(others)

    def is_plain_success(self) -> bool:
        """Return whether there is nothing else to it."""
        return self.verdict == "success" and not (self.recorded or self.uncertain or self.said)


def start(
    runtime: Runtime, claimed: ClaimedJob, open_transaction: Callable[[], HandlerTransaction] | None = None
) -> RunningJob | Decision:
    """Decode the payload and return the job for its handler, or the decision where it cannot be run.

    Args:
        runtime: The worker's.
        claimed: The job.
        open_transaction: What `job.session` opens at its first use; by default a transaction of its own.

    **Transaction:** nothing.
    """
    if claimed.crashes > runtime.max_crashes:
        lost = WorkerLost(f"The job has lost its worker {claimed.crashes} times, more than max_crashes={runtime.max_crashes}.")
        failed = events.JobAttemptFailed(**about(runtime, claimed), exception=lost, retry_in=None, retries_left=0)
        return Decision(claimed=claimed, verdict="failure", exception=lost, said=(failed,))
    try:
        payload = runtime.tables.serializer.decode(claimed.payload_text)
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        cause = error if isinstance(error, PayloadError) else PayloadError(error_line(error))
        return Decision(claimed=claimed, verdict="undeliverable", exception=cause)
    colour = runtime.colour
    if colour is None:
        return RunningJob(claimed, payload, open_transaction or (lambda: HandlerTransaction(runtime, claimed)))
    return colour.job(claimed, payload, open_transaction or (lambda: colour.own(runtime, claimed)))


def run(runtime: Runtime, claimed: ClaimedJob, running: RunningJob, *, limited: bool = True) -> Decision:
    """Find the handler, call it, and decide. If it used `job.session`, complete the job in that transaction.

    Not `limited`: somebody else looks after the handler's timeout.

    All in one context of the job's own: the hooks of its session and its retry function see what the handler has set, and what
    they set is not seen by the next job.

    **Transaction:** that of `job.session`, committed or rolled back when this returns.
    """
    if runtime.colour is not None:  # its task has a context of its own
        return _run(runtime, claimed, running, limited=limited)
    return contextvars.Context().run(_run, runtime, claimed, running, limited=limited)


def find(runtime: Runtime, claimed: ClaimedJob, running: RunningJob) -> Found | Decision:
    """Return the handler, about to be called, or the decision where there is none.

    **Transaction:** nothing.
    """
    try:
        found = runtime.handlers.find(claimed.job_type)
    except UnknownJobType as error:
        return Decision(claimed=claimed, verdict="undeliverable", exception=error, payload=running.payload)
    if not runtime.is_quiet():
        runtime.emit(events.JobStarted(**about(runtime, claimed)))
    return found


def _run(runtime: Runtime, claimed: ClaimedJob, running: RunningJob, *, limited: bool) -> Decision:
    found = find(runtime, claimed, running)
    if isinstance(found, Decision):
        return found
    try:
        if runtime.colour is not None:
            failure = runtime.colour.call(runtime, claimed, running, found)
        else:
            failure = call(runtime, claimed, running, found, limited=limited)
    except KeyboardInterrupt:
        if running._transaction is not None:
            running._transaction.abandon()  # else its locks and its connection would be in the way of putting the job back
        raise
    finally:
        running._over = True
    try:
        return conclude(runtime, claimed, running, found, failure)
    finally:
        del failure  # its traceback leads here: a cycle would keep job and payload in memory until a collection


def conclude(runtime: Runtime, claimed: ClaimedJob, running: RunningJob, found: Found, failure: BaseException | None) -> Decision:
    """Decide what becomes of a run whose handler has ended, in success where `failure` is None.

    **Transaction:** that of `job.session`, committed or rolled back when this returns.
    """
    transaction = running._transaction
    if transaction is not None and transaction.not_opened is not None:
        running._not_opened, running._transaction = transaction.not_opened, None
        transaction.close()
        transaction, failure = None, failure or running._not_opened
    if transaction is None:
        if failure is None:
            return Decision(claimed, "success")
        return _decide(runtime, claimed, running, found, failure)
    if failure is None:
        return _complete(runtime, claimed, running, found, transaction)
    transaction.undo()
    return _decide(runtime, claimed, running, found, failure)


def call(runtime: Runtime, claimed: ClaimedJob, running: RunningJob, found: Found, *, limited: bool = True) -> BaseException | None:
    """Call the handler in this thread, and return what it raised, or that its time was over."""
    if found.timeout is None or not limited:
        return _call(found, running)
    with TimeLimit(found.timeout, lambda: over_time(runtime, claimed, running, found)) as limit:
        failure = _call(found, running)
    return limit.failure(failure) if limit.exceeded and not isinstance(failure, LeaseLost) else failure


def over_time(runtime: Runtime, claimed: ClaimedJob, running: RunningJob, found: Found) -> None:
    """Ask a handler to stop whose time is over, and tell.

    **Transaction:** nothing.
    """
    running._stop.set()
    runtime.emit(events.JobOverTime(**about(runtime, claimed), seconds=found.timeout or 0.0))


def _call(found: Found, running: RunningJob) -> BaseException | None:
    """Call the handler, and return what it raised. A child that it has forked does not return."""
    process = this_process()
    try:
        result = found.call(running)
        if found.is_async:  # registered after the worker was made, which would have refused it
            result_of(result)
    except BaseException as error:
        end_child(process, error)
        if is_ctrl_c(error):
            raise
        return error
    end_child(process)
    return None


def _complete(
    runtime: Runtime, claimed: ClaimedJob, running: RunningJob, found: Found, transaction: HandlerTransaction
) -> Decision:
    """Archive the job in the handler's transaction and commit both, or roll back both."""
    try:
        transaction.complete()
    except BaseException as error:
        if is_ctrl_c(error):
            transaction.abandon()
            raise
        transaction.undo()
        # The handler's failure: a constraint, a hook of its session.
        return _decide(runtime, claimed, running, found, _unless_cancelled(runtime, error))
    running._finishing = True  # from here on the row may vanish by our own doing
    archived: list[Archived] = []

    def archive() -> None:
        try:
            archived.extend(runtime.statements.archive(transaction.connection, [Finish(claimed, "success")]))
        except exc.IntegrityError:
            raise  # refused, and so it would be the next time: the handler's failure
        except exc.SQLAlchemyError as error:
            raise _died(error) from error
        if archived == [Archived.LOST] and claimed.row is not None:
            # Its lock has kept everybody else away. As a lost claim it would be due again at once, for ever.
            raise SessionNotYours(
                f"The handler has changed or deleted the row of its own job {claimed.job_id} in job.session. Leave that row alone."
            )
        if archived == [Archived.LOST]:
            raise LeaseLost(f"The job {claimed.job_id} no longer belongs to this worker: its lease has lapsed.")

    try:
        with runtime.vigil.asking(RECORDING):
            transaction.commit(archive)
    except BaseException as error:
        transaction.abandon()
        if is_ctrl_c(error):
            raise
        note_foreign_key(runtime, error)
        # Refused, or its answer was lost, or a hook of the session failed before or after it.
        said: list[events.Event] = []
        failure = _unless_cancelled(runtime, error)
        decision = _decide(replace(runtime, emit=said.append), claimed, running, found, failure)
        return replace(decision, uncertain=bool(archived), said=tuple(said))
    transaction.close()
    return Decision(claimed=claimed, verdict="success", recorded=True, replaced=archived == [Archived.REPLACED])


def _unless_cancelled(runtime: Runtime, error: BaseException) -> BaseException:
    """Return what has ended a completion; where its task was cancelled meanwhile, that is no failure of the handler's."""
    if runtime.colour is None or not isinstance(error, CancelledError):
        return error
    interrupted = JobInterrupted("The task was cancelled after the handler had returned, before its writes were committed.")
    interrupted.__cause__ = error
    return interrupted


def note_foreign_key(runtime: Runtime, error: BaseException) -> bool:
    """Return whether a foreign key refused to let a job be archived, and write on the error what to do."""
    if not runtime.statements.is_foreign_key_violation(error):
        return False
    job, archived_job = runtime.tables.job.name, runtime.tables.archived_job.name
    error.add_note(
        f"A finished job is copied to {archived_job!r} and deleted from {job!r}. A foreign key that refers to {job!r} must be "
        f"ON DELETE SET NULL or ON DELETE CASCADE, or be left out; {archived_job!r} must not refer to rows that may be gone."
    )
    return True


def _died(error: exc.SQLAlchemyError) -> TransactionLost:
    return TransactionLost(
        f"The job could not be archived in the transaction of job.session, so its writes are rolled back: {error}"
    )


def _decide(runtime: Runtime, claimed: ClaimedJob, running: RunningJob, found: Found, failure: BaseException) -> Decision:
    """Decide what becomes of a run that raised."""
    if isinstance(failure, LeaseLost):
        return Decision(claimed=claimed, verdict="lost", exception=failure)
    if isinstance(failure, JobInterrupted):
        delay = dt.timedelta() if running.stopping else AFTER_NEEDLESS_INTERRUPTION
        return Decision(claimed=claimed, verdict="release", exception=failure, retry_in=delay)
    strategy, retry = _strategy(runtime, claimed, running, found, failure)
    died = _is_death(runtime, running, failure)
    if died:
        retry = _retry_after_death(strategy, claimed.attempts)
    if died and retry is not None:
        runtime.emit(events.JobTransactionDied(**about(runtime, claimed), exception=failure))
    else:
        runtime.emit(
            events.JobAttemptFailed(
                **about(runtime, claimed),
                exception=failure,
                retry_in=retry.delay if retry else None,
                retries_left=retry.retries_left if retry else 0,
            )
        )
    if retry is None:
        return Decision(claimed=claimed, verdict="failure", exception=failure, payload=running.payload)
    return Decision(claimed=claimed, verdict="retry", exception=failure, retry_in=retry.delay, retries_left=retry.retries_left)


def decide_failure(runtime: Runtime, claimed: ClaimedJob, running: RunningJob, failure: BaseException) -> Decision:
    """Decide what becomes of a run that was ended from outside, after which a commit of its own may have happened."""
    said: list[events.Event] = []
    found = runtime.handlers.find(claimed.job_type)
    decision = _decide(replace(runtime, emit=said.append), claimed, running, found, failure)
    return replace(decision, uncertain=True, said=tuple(said))


def _is_death(runtime: Runtime, running: RunningJob, failure: BaseException) -> bool:
    """Return whether the database, not the handler, ended the transaction of `job.session`, or could not begin it."""
    statements = runtime.statements
    if running._transaction is None:
        return failure is running._not_opened and statements.is_transient(failure)
    if isinstance(failure, TransactionLost) or statements.is_transaction_death(failure) or statements.is_lost_savepoint(failure):
        return True
    # What SQLAlchemy or the database says after an error that the handler swallowed.
    follows = isinstance(failure, exc.InvalidRequestError | exc.DBAPIError)
    return follows and running._transaction.died_of() is not None


def _retry_after_death(strategy: RetryStrategy | None, attempts: int) -> Retry | None:
    """Give back a job whose transaction the database ended: no verdict on the job, so beyond its strategy, but bounded."""
    allowed = (strategy.retries if strategy else 0) + 1
    if attempts >= allowed + MOST_DEATHS:
        return None
    return Retry(delay=AFTER_DEATH * 2 ** min(attempts - 1, MOST_DOUBLINGS), retries_left=max(0, allowed - attempts))


def _strategy(
    runtime: Runtime, claimed: ClaimedJob, running: RunningJob, found: Found, failure: BaseException
) -> tuple[RetryStrategy | None, Retry | None]:
    """Return the handler's strategy, else the worker's, and what it leads to; one that fails means no retry, and an event."""
    chosen: Any = found.retry if found.retry is not None else runtime.retry
    try:
        strategy = chosen if chosen is None or isinstance(chosen, RetryStrategy) else chosen(running, failure)
        if runtime.colour is not None:
            strategy = runtime.colour.result_of(strategy, "The retry function")
        if strategy is not None and not isinstance(strategy, RetryStrategy):
            raise TypeError(f"A retry function must return a RetryStrategy or None, not {strategy!r}.")
        return strategy, decide(strategy, claimed.attempts, random.random())
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        runtime.emit(events.RetryStrategyFailed(**about(runtime, claimed), exception=error))
        return None, None


def about(runtime: Runtime, claimed: ClaimedJob) -> dict[str, Any]:
    """Return what every event of a job says of it."""
    return {
        "worker_id": runtime.worker_id,
        "job_id": claimed.job_id,
        "job_type": claimed.job_type,
        "queue": claimed.queue,
        "attempt": claimed.attempts,
    }
