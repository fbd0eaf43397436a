"""The public API as a type checker sees it: checked, never run."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, assert_type

from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Session, scoped_session

from proletarian_sa import (
    ArchivedJob,
    ArchivedJobMixin,
    Job,
    JobMixin,
    JobRegistry,
    JobTables,
    Outcome,
    QueueWorker,
    RetryStrategy,
    RunningJob,
    enqueue,
    enqueue_many,
    process_next_job,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

engine = create_engine("sqlite:///typing.db")
jobs = JobRegistry()


@jobs.handler("a", retry=RetryStrategy(retries=4, delays=[1, dt.timedelta(seconds=5)]))
def handle(payload: dict[str, Any], job: RunningJob) -> None:
    """Keep the decorated function's type."""
    assert_type(job.session, Session)
    assert_type(job.stopping, bool)
    assert_type(job.wait(1.5), bool)
    assert_type(job.job_id, uuid.UUID)


assert_type(handle({}, None), None)  # type: ignore[arg-type]


def choose(job: RunningJob, _error: BaseException) -> RetryStrategy | None:
    """Be a retry function."""
    return None if job.attempts > 1 else RetryStrategy(retries=1)


def sync(session: Session, scoped: scoped_session[Session], connection: Connection) -> None:
    """Enqueue on every sync bind."""
    session.add(Job(job_type="a", payload={"to": 1}, process_in=5))
    assert_type(enqueue(session, "a"), uuid.UUID)
    assert_type(enqueue(scoped, "a", process_at=dt.datetime.now(dt.UTC)), uuid.UUID)
    assert_type(enqueue(connection, "a", [1], queue="q", process_in=dt.timedelta(1)), uuid.UUID)
    assert_type(enqueue_many(session, [{"job_type": "a"}]), list[uuid.UUID])
    assert_type(enqueue_many(connection, iter([{"job_type": "a"}])), int)
    assert_type(session.scalars(select(Job.attempts)).one(), int)
    assert_type(session.scalars(select(ArchivedJob.finished_at)).one(), dt.datetime)


def both_colours(session: AsyncSession, connection: AsyncConnection) -> None:
    """Enqueue on every async bind."""
    assert_type(enqueue(session, "a"), uuid.UUID)
    assert_type(enqueue(connection, "a"), Awaitable[uuid.UUID])


class Base(DeclarativeBase):
    """An application's base."""


class MyJob(JobMixin, Base):
    """A job on it."""

    __tablename__ = "my_job"


class MyArchivedJob(ArchivedJobMixin, Base):
    """A finished job on it."""

    __tablename__ = "my_archived_job"


tables = JobTables(job=MyJob, archived_job=MyArchivedJob)
assert_type(process_next_job(engine, jobs, tables=tables, retry=choose), Outcome | None)
worker = QueueWorker(engine, print, lease=dt.timedelta(minutes=1))
assert_type(worker.stop(timeout=1), list[RunningJob])
assert_type(worker.is_running, bool)
