"""What happened, as facts: every step emits one, through one choke point.

Names are past tense and stable. Sinks are plain functions of one event; `proletarian_sa.log.log_event` is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import datetime as dt

News = Literal["new", "lasting", "repeated"]
"""What a failure is worth to somebody who reads along, whichever thread of the worker has met it.

`new`: the first of its activity, or the first for another reason. `lasting`: it goes on, waits are long meanwhile, and the one that
was told of last is over. `repeated`: nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a worker did or met. `worker_id` names the worker."""

    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent(Event):
    """Something that happened to a job. `attempt` is 1 on the first run."""

    job_id: Any
    job_type: str
    queue: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsClaimed(Event):
    """A claim took jobs; `count` of them."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(JobEvent):
    """A handler is about to be called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverTime(JobEvent):
    """The handler runs for longer than its `timeout`, of `seconds`: it is asked to stop, and the attempt fails."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSucceeded(JobEvent):
    """The job is in the archive as success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttemptFailed(JobEvent):
    """An attempt failed. `retry_in` is None when the job is to be archived as failure."""

    exception: BaseException
    retry_in: dt.timedelta | None
    retries_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetried(JobEvent):
    """The job is back in the queue, due after `retry_in`."""

    retry_in: dt.timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(JobEvent):
    """The job is in the archive as failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased(JobEvent):
    """The job is back in the queue as if this attempt had not begun: its handler was interrupted, or it was not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUndeliverable(JobEvent):
    """This worker cannot run the job: it was put back, due after `retry_in`."""

    exception: BaseException
    retry_in: dt.timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTransactionDied(JobEvent):
    """The database ended the transaction of `job.session`: no verdict on the job, which goes back."""

    exception: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLeaseLost(JobEvent):
    """The claim no longer owns the job: its lease lapsed, or the row is gone. Nothing of this run is recorded."""

    handler_finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRowReplaced(JobEvent):
    """The archive already had a row with this id; the newer outcome has replaced it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeNotRecorded(JobEvent):
    """The handler finished but its outcome could not be stored: the job runs again, if it is leased when its lease lapses."""

    exception: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStrategyFailed(JobEvent):
    """A retry strategy raised, or returned no RetryStrategy: the job is not retried."""

    exception: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedJobCallbackFailed(JobEvent):
    """`failed_job` raised: what it wrote is undone, and the job stays in the archive as failure."""

    exception: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeldLong(JobEvent):
    """A handler has been running for `seconds` inside the transaction that claimed its job."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConnectionLost(JobEvent):
    """The database has ended the connection that holds the claim of a running job: the job may run elsewhere already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransientErrorMet(Event):
    """The database could not serve `activity` now; it is tried again after `retry_in`.

    `consecutive` counts from 1, in all threads of the worker. `news`: what this is worth to somebody who reads along, see `News`.
    """

    activity: str
    exception: BaseException
    retry_in: dt.timedelta
    consecutive: int
    news: News = "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """The database serves `activity` again, after `failures` failures."""

    activity: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSilent(Event):
    """The database has not answered what `activity` asked of it for `seconds`: a dead connection, perhaps, or somebody's lock."""

    activity: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAnswered(Event):
    """What was told by `DatabaseSilent` is over, with an answer or an error, after `seconds`."""

    activity: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopBlocked(Event):
    """Something has kept the event loop of an `AsyncQueueWorker` for `seconds` already: most likely a handler that computes."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingErrorTolerated(Event):
    """`on_polling_error` let the worker go on after an error that waiting may not mend; it polls again after `retry_in`."""

    exception: BaseException
    retry_in: dt.timedelta
    consecutive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackFailed(Event):
    """A function of the application's raised: the option `callback`, or `the close of job.session`."""

    callback: str
    exception: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTimeoutsFound(Event):
    """The server ends transactions that wait for a handler, by these settings; they cannot be changed from here."""

    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTooSmall(Event):
    """The engine's pool has `available` connections where this worker may need `needed`."""

    needed: int
    available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerStarted(Event):
    """Notifications of new jobs arrive: while idle, the worker polls less from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsUnavailable(Event):
    """The tables ask for notifications, but none can be heard here, for this `reason`: the worker polls as without."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFailed(Event):
    """A sink raised while it was given `event`."""

    event: Event
    exception: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    """The worker has begun to poll `queues`, in this order, with `threads` handler threads."""

    queues: tuple[str, ...]
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopping(Event):
    """The worker takes no more jobs; `running` are still running."""

    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(Event):
    """The worker has stopped; `running` handlers had not returned in time and still own their jobs."""

    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed(Event):
    """The worker stops because of an error that waiting does not mend."""

    exception: BaseException


Sink = Callable[[Event], object]
