"""The public API as a type checker sees it: checked, never run."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Literal, assert_type

from sqlalchemy import BigInteger, String, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session

from proletarian_sa import (
    ArchivedJob,
    ArchivedJobMixin,
    AsyncQueueWorker,
    AsyncRunningJob,
    Backoff,
    ConstantIds,
    DatabaseIds,
    ExponentialBackoff,
    Job,
    JobIds,
    JobMixin,
    JobRegistry,
    JobTables,
    Outcome,
    PlainJSON,
    QueueWorker,
    RetryStrategy,
    RightsMissing,
    RunningJob,
    Serializer,
    TaggedJSON,
    UUIDv4,
    enqueue,
    enqueue_many,
    process_next_job,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

engine = create_engine("sqlite:///typing.db")
jobs = JobRegistry()


@jobs.handler("a", retry=RetryStrategy(retries=4, delays=[1, dt.timedelta(seconds=5)]), timeout=30)
def handle(payload: dict[str, Any], job: RunningJob) -> None:
    """Keep the decorated function's type."""
    assert_type(job.session, Session)
    assert_type(job.stopping, bool)
    assert_type(job.wait(1.5), bool)
    assert_type(job.job_id, Any)


assert_type(handle({}, None), None)  # type: ignore[arg-type]


def choose(job: RunningJob, _error: BaseException) -> RetryStrategy | None:
    """Be a retry function."""
    return None if job.attempts > 1 else RetryStrategy(retries=1)


class Fibonacci:
    """Be a backoff of the user's own."""

    def delay(self, attempt: int, random: float) -> dt.timedelta:
        """Return a timedelta."""
        return dt.timedelta(seconds=attempt + random)


own: Backoff = Fibonacci()
exponential = ExponentialBackoff(first=0.5, factor=1.5, cap=dt.timedelta(hours=1), jitter=0)
assert_type(exponential.delay(3, 0.5), dt.timedelta)
strategies = [RetryStrategy(retries=10, backoff=own), RetryStrategy(retries=10, backoff=exponential)]
assert_type(strategies[0].backoff, Backoff | None)


class Ulids:
    """Be a strategy of the user's own."""

    column_type = String(26)

    def new(self) -> str:
        """Return a text."""
        return "01J" + "0" * 23

    def check(self, value: Any) -> None:
        """Refuse nothing."""


ids: list[JobIds] = [UUIDv4(), DatabaseIds(), ConstantIds(7), ConstantIds("seven"), ConstantIds(uuid.UUID(int=7)), Ulids()]
serializers: list[Serializer] = [PlainJSON(), TaggedJSON()]
assert_type(PlainJSON().encode({"a": 1}), str)
numbered = JobTables(job_ids=DatabaseIds(), serializer=PlainJSON(), notify=True)


def sync(session: Session, scoped: scoped_session[Session], connection: Connection) -> None:
    """Enqueue on every sync bind."""
    session.add(Job(job_type="a", payload={"to": 1}, process_in=5))
    assert_type(enqueue(session, "a"), uuid.UUID)
    assert_type(enqueue(scoped, "a", process_at=dt.datetime.now(dt.UTC)), uuid.UUID)
    assert_type(enqueue(connection, "a", [1], queue="q", process_in=dt.timedelta(1)), uuid.UUID)
    assert_type(enqueue_many(session, [{"job_type": "a"}]), list[uuid.UUID])
    assert_type(enqueue_many(connection, iter([{"job_type": "a"}])), int)
    assert_type(enqueue(session, "a", tables=numbered), Any)
    assert_type(enqueue_many(session, [{"job_type": "a"}], tables=numbered), list[Any])
    assert_type(enqueue_many(session, iter([{"job_type": "a"}]), tables=numbered), int)
    assert_type(session.scalars(select(Job.job_id)).one(), uuid.UUID)
    assert_type(session.scalars(select(ArchivedJob.job_id)).one(), uuid.UUID)
    assert_type(Job(job_type="a").job_id, uuid.UUID)
    assert_type(session.scalars(select(Job.attempts)).one(), int)
    assert_type(session.scalars(select(ArchivedJob.finished_at)).one(), dt.datetime)


def reading(session: Session) -> None:
    """Query states, and columns of the application's own."""
    job = session.scalars(select(Job).where(Job.queue == "mail", Job.is_due, ~Job.is_running)).one()
    assert_type(job.is_due, bool)
    assert_type(job.is_lapsed, bool)
    assert_type(job.state, Literal["due", "scheduled", "running", "lapsed"])
    assert_type(job.payload, Any)
    session.execute(select(Job.state, func.count()).where(Job.state != "running").group_by(Job.state))
    session.add(MyJob(job_type="a", tenant_id=7))


def both_colours(session: AsyncSession, connection: AsyncConnection) -> None:
    """Enqueue on every async bind."""
    assert_type(enqueue(session, "a"), uuid.UUID)
    assert_type(enqueue(connection, "a"), Awaitable[uuid.UUID])
    assert_type(enqueue(connection, "a", tables=numbered), Awaitable[Any])
    assert_type(enqueue_many(session, [{"job_type": "a"}]), Awaitable[list[uuid.UUID]])
    assert_type(enqueue_many(session, [{"job_type": "a"}], tables=numbered), Awaitable[list[Any]])
    assert_type(enqueue_many(connection, iter([{"job_type": "a"}])), Awaitable[int])


class Base(DeclarativeBase):
    """An application's base."""


class MyJob(JobMixin, Base):
    """A job on it."""

    __tablename__ = "my_job"
    __job_ids__ = DatabaseIds()


class MyArchivedJob(ArchivedJobMixin, Base):
    """A finished job on it."""

    __tablename__ = "my_archived_job"
    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)


tables = JobTables(job=MyJob, archived_job=MyArchivedJob)
assert_type(process_next_job(engine, jobs, tables=tables, retry=choose), Outcome | None)
worker = QueueWorker(engine, print, lease=dt.timedelta(minutes=1), install_signal_handlers=True)
batching = QueueWorker(engine, print, claim="held", batch_size=50)
try:
    worker.start()
except RightsMissing as error:
    assert_type(error, RightsMissing)
assert_type(worker.stop(timeout=1), list[RunningJob])
assert_type(worker.is_running, bool)


@jobs.handler("async", timeout=30)
async def handle_async(payload: dict[str, Any], job: AsyncRunningJob) -> None:
    """Await what a coroutine may."""
    assert_type(await job.wait(1.5), bool)
    assert_type(job.stopping, bool)
    assert_type(job.attempts, int)
    await job.session.execute(select(1))


async def choose_async(job: RunningJob, _error: BaseException) -> RetryStrategy | None:
    """Be a retry function that is awaited."""
    return None if job.attempts > 1 else RetryStrategy(retries=1)


async def running(async_engine: AsyncEngine, sessions: async_sessionmaker[AsyncSession]) -> None:
    """Run a worker on the loop."""
    worker = AsyncQueueWorker(async_engine, jobs, concurrency=50, retry=choose_async, session_factory=sessions)
    AsyncQueueWorker(async_engine, jobs, batch_size=50)  # type: ignore[arg-type]
    async with worker:
        assert_type(await worker.join(0.1), bool)
        assert_type(worker.health.running, int)
    await worker.start()
    assert_type(await worker.stop(timeout=1), list[RunningJob])
    assert_type(worker.is_running, bool)
    assert_type(worker.error, BaseException | None)
    await worker.run()
