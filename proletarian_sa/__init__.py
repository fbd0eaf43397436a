"""A durable job queue and worker in the application's own database, for people who use SQLAlchemy."""

from proletarian_sa.aio.running import AsyncRunningJob
from proletarian_sa.aio.worker import AsyncQueueWorker
from proletarian_sa.clock import Clock, ManualClock
from proletarian_sa.enqueue import enqueue, enqueue_many
from proletarian_sa.errors import (
    DatabaseNotSupported,
    HandlerProcessLost,
    JobInterrupted,
    JobTimeout,
    LeaseLost,
    PayloadError,
    PayloadTooLarge,
    ProletarianError,
    RightsMissing,
    SessionNotYours,
    TablesForeign,
    TablesMissing,
    TransactionLost,
    UnknownJobType,
    WorkerLost,
)
from proletarian_sa.handlers import JobRegistry
from proletarian_sa.health import Health
from proletarian_sa.install import check_tables, create_all, drop_all
from proletarian_sa.job_ids import ConstantIds, DatabaseIds, JobIds, UUIDv4, UUIDv7
from proletarian_sa.models import ArchivedJob, ArchivedJobMixin, Job, JobMixin, JobTables, default_tables
from proletarian_sa.outcomes import Outcome
from proletarian_sa.plain_json import PlainJSON
from proletarian_sa.retry import Backoff, ExponentialBackoff, RetryStrategy
from proletarian_sa.running import RunningJob
from proletarian_sa.serializers import Serializer, TaggedJSON
from proletarian_sa.step import process_next_job
from proletarian_sa.version import __version__
from proletarian_sa.worker import QueueWorker

__all__ = [
    "ArchivedJob",
    "ArchivedJobMixin",
    "AsyncQueueWorker",
    "AsyncRunningJob",
    "Backoff",
    "Clock",
    "ConstantIds",
    "DatabaseIds",
    "DatabaseNotSupported",
    "ExponentialBackoff",
    "HandlerProcessLost",
    "Health",
    "Job",
    "JobIds",
    "JobInterrupted",
    "JobMixin",
    "JobRegistry",
    "JobTables",
    "JobTimeout",
    "LeaseLost",
    "ManualClock",
    "Outcome",
    "PayloadError",
    "PayloadTooLarge",
    "PlainJSON",
    "ProletarianError",
    "QueueWorker",
    "RetryStrategy",
    "RightsMissing",
    "RunningJob",
    "Serializer",
    "SessionNotYours",
    "TablesForeign",
    "TablesMissing",
    "TaggedJSON",
    "TransactionLost",
    "UUIDv4",
    "UUIDv7",
    "UnknownJobType",
    "WorkerLost",
    "__version__",
    "check_tables",
    "create_all",
    "default_tables",
    "drop_all",
    "enqueue",
    "enqueue_many",
    "process_next_job",
]
