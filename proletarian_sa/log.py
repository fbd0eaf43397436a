"""The sink for standard logging: quiet at INFO, one ERROR record per failed attempt."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import TimeoutError as PoolTimeout

from proletarian_sa import events
from proletarian_sa.errors import PayloadError, PayloadTooLarge, is_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable

logger: Final = logging.getLogger("proletarian_sa")

QUIET: Final = frozenset(
    {
        events.JobsClaimed,
        events.JobStarted,
        events.JobSucceeded,
        events.JobRetried,
        events.JobFailed,
        events.JobReleased,
    }
)
"""What is DEBUG whatever it says: there are several of them for each job."""


def is_quiet() -> bool:
    """Return whether `log_event` would do nothing with the events of `QUIET`."""
    return not logger.isEnabledFor(logging.DEBUG)


def log_event(event: events.Event) -> None:
    """Write an event to the logger `proletarian_sa`.

    ERROR with traceback: a failed attempt, an outcome that was not recorded, a worker that fails. WARNING: what an operator may
    want to act on. INFO: a worker starts and stops. DEBUG: all else, each job's start and end included. Payloads are not logged.

    **Transaction:** nothing.
    """
    if type(event) in QUIET and is_quiet():
        return
    level, message, exception = _describe(event)
    if logger.isEnabledFor(level):
        extra = {"proletarian_event": event}
        if _shows_payload(exception):
            exception = None
        logger.log(level, "[%s] %s", event.worker_id, message, exc_info=exception, extra=extra)


Described = tuple[int, str, BaseException | None]


def _describe(event: events.Event) -> Described:
    if isinstance(event, events.JobEvent):
        job = f"job {event.job_id} ({event.job_type!r}, queue {event.queue!r}, attempt {event.attempt})"
        return _describe_job(event, job)
    return _describe_worker(event)


def _describe_job(event: events.JobEvent, job: str) -> Described:
    match event:
        case events.JobAttemptFailed(exception=exception, retry_in=None):
            return logging.ERROR, f"{job} failed and is archived as failure: {brief(exception)}", exception
        case events.JobAttemptFailed(exception=exception):
            again = f"is tried again in {event.retry_in} ({event.retries_left} retries left after that)"
            return logging.ERROR, f"{job} failed and {again}: {brief(exception)}", exception
        case events.OutcomeNotRecorded(exception=exception):
            message = f"{job}: handler finished, outcome not recorded; it runs again, if it is leased when its lease lapses"
            return logging.ERROR, f"{message}: {brief(exception)}", exception
    return _describe_oddity(event, job)


def _describe_oddity(event: events.JobEvent, job: str) -> Described:
    match event:
        case events.RetryStrategyFailed(exception=exception):
            return logging.ERROR, f"{job} is not retried, its retry strategy failed: {brief(exception)}", exception
        case events.JobTransactionDied(exception=PoolTimeout() as exception):
            message = f"{job}: job.session got no connection from the pool; the job runs again"
            return logging.WARNING, f"{message}: {brief(exception)}", None
        case events.JobTransactionDied(exception=exception):
            message = f"{job}: the database ended the transaction of job.session; the job runs again"
            return logging.WARNING, f"{message}: {brief(exception)}", exception
        case events.FailedJobCallbackFailed(exception=exception):
            return logging.ERROR, f"{job} is archived as failure, but failed_job failed: {brief(exception)}", exception
        case events.JobUndeliverable(exception=exception):
            return logging.WARNING, f"{job} cannot be run here and is put back for {event.retry_in}: {brief(exception)}", None
        case events.ArchiveRowReplaced():
            return logging.WARNING, f"{job}: the archive had a row with this id, which is replaced", None
    return _describe_loss(event, job)


def _describe_loss(event: events.JobEvent, job: str) -> Described:
    match event:
        case events.JobHeldLong():
            message = f"{job} holds its transaction open for {event.seconds:.0f} s already; long jobs are for claim='leased'"
            return logging.WARNING, message, None
        case events.JobOverTime():
            return logging.WARNING, f"{job} runs for longer than its timeout of {event.seconds:g} s and is asked to stop", None
        case events.JobConnectionLost():
            message = f"{job}: the database ended the connection that holds it; it is asked to stop, and may run elsewhere already"
            return logging.WARNING, message, None
        case events.JobLeaseLost(handler_finished=finished):
            what = "its finish is refused and its writes are rolled back" if finished else "it is asked to stop"
            return logging.WARNING, f"{job} no longer belongs to this worker, so {what}", None
    return logging.DEBUG, f"{_words(event)}: {job}", None


def _describe_worker(event: events.Event) -> Described:
    match event:
        case events.WorkerStarted():
            word = "queue" if len(event.queues) == 1 else "queues"
            names = ", ".join(map(repr, event.queues))
            return logging.INFO, f"worker started: {word} {names}, {_count(event.threads, 'thread')}", None
        case events.WorkerStopping():
            return logging.INFO, f"worker stopping: {_are(event.running)} running", None
        case events.WorkerStopped(running=0):
            return logging.INFO, "worker stopped", None
        case events.WorkerStopped():
            return logging.WARNING, f"worker stopped: {_are(event.running)} still running", None
        case events.WorkerFailed(exception=exception):
            return logging.ERROR, f"worker failed: {brief(exception)}", exception
    return _describe_trouble(event)


def _describe_trouble(event: events.Event) -> Described:
    match event:
        case events.TransientErrorMet(exception=exception):
            message = f"{event.activity}: {brief(exception)}; trying again in {event.retry_in.total_seconds():.1f} s"
            # Where a pool was waited for, a traceback tells nothing; and a pool that is too small is waited for again and again.
            first = exception if event.news == "new" and not isinstance(exception, PoolTimeout) else None
            return logging.DEBUG if event.news == "repeated" else logging.WARNING, f"{message} (failure {event.consecutive})", first
        case events.PollingErrorTolerated(exception=exception):
            message = f"polling failed, and on_polling_error lets the worker go on in {event.retry_in.total_seconds():.1f} s"
            return logging.ERROR, f"{message}: {brief(exception)}", exception if event.consecutive == 1 else None
        case events.CallbackFailed(exception=exception):
            return logging.ERROR, f"{event.callback} failed: {brief(exception)}", exception
        case events.IdleTimeoutsFound():
            named = ", ".join(f"{name}={value}" for name, value in event.settings.items())
            message = f"the database ends transactions that wait for a handler: {named}. Use claim='leased' for longer jobs"
            return logging.WARNING, message, None
        case events.DatabaseSilent():
            return logging.WARNING, f"{event.activity}: no answer for {event.seconds:.0f} s; still waiting", None
        case events.DatabaseAnswered():
            return logging.INFO, f"{event.activity}: no longer waiting, after {event.seconds:.0f} s", None
        case events.Recovered():
            return logging.INFO, f"{event.activity}: works again after {event.failures} failures", None
        case events.PoolTooSmall():
            advice = f"create_engine(…, pool_size={event.needed})"
            message = f"the pool has {_count(event.available, 'connection')}, this worker may need {event.needed}: {advice}"
            return logging.WARNING, message, None
        case events.SinkFailed(exception=exception):
            return logging.ERROR, f"an event sink failed at {_words(event.event)}: {brief(exception)}", exception
    return _describe_listening(event)


def _describe_listening(event: events.Event) -> Described:
    match event:
        case events.LoopBlocked():
            what = f"the event loop has been blocked for {event.seconds:.0f} s. A handler that computes, or waits without `await`,"
            return logging.WARNING, f"{what} is to be a plain function, which runs in a thread", None
        case events.ListenerStarted():
            return logging.INFO, "notifications of new jobs arrive", None
        case events.NotificationsUnavailable():
            return logging.WARNING, f"no notifications can be heard, jobs are found by polling: {event.reason}", None
    return logging.DEBUG, f"{_words(event)}: {event}", None


def brief(exception: BaseException) -> str:
    """Return type, message and notes; of a database error only the driver's part, without the statement and its parameters."""
    if _shows_payload(exception):
        return f"{type(exception).__name__}: what is wrong with it stands in the job's last_error"
    cause = getattr(exception, "orig", None) or exception
    try:
        notes = [str(note).partition("\n")[0] for note in getattr(exception, "__notes__", ())]
        message = " ".join([str(cause)[:500], *notes])[:800]
    except BaseException as failure:  # noqa: BLE001 - shown, not swallowed
        message = f"(its message cannot be shown: {type(failure).__name__})"
    return f"{type(cause).__name__}{_code(cause)}: {message}"


def _code(error: BaseException) -> str:
    """Return the database's code of an error, where the driver keeps one beside the message: SQLSTATE, or SQLite's name."""
    codes = (getattr(error, name, None) for name in ("sqlstate", "pgcode", "sqlite_errorname"))
    return next((f" [{code}]" for code in codes if isinstance(code, str)), "")


def _shows_payload(exception: BaseException | None) -> bool:
    """Return whether the text of the exception quotes a stored payload, which is nothing for a log."""
    return isinstance(exception, PayloadError) and not isinstance(exception, PayloadTooLarge)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _are(jobs: int) -> str:
    return "1 job is" if jobs == 1 else f"{jobs} jobs are"


def _words(event: events.Event) -> str:
    return type(event).__name__


def _tell(failed: events.SinkFailed) -> None:
    """Log that a sink failed, which is an event itself: a broken sink must not cost a job, nor must broken logging."""
    try:
        log_event(failed)
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        if sys.stderr is not None:
            names = f"{type(failed.exception).__name__} at {_words(failed.event)}, {type(error).__name__} in logging that"
            sys.stderr.write(f"proletarian_sa: an event sink and logging failed: {names}\n")


def emitter(worker_sink: events.Sink) -> Callable[[events.Event], None]:
    """Return the choke point: gives events to the sink, and logs it when the sink raises."""

    def emit(event: events.Event) -> None:
        try:
            worker_sink(event)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            _tell(events.SinkFailed(worker_id=event.worker_id, event=event, exception=error))

    return emit
