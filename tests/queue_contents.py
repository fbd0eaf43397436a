"""What lies in the queue's tables, and a worker without threads that empties them."""

import datetime as dt
import uuid
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from proletarian_sa import JobTables, RunningJob, default_tables
from tests.claims import process_next_job


class Base(DeclarativeBase):
    """The application's own models."""


class User(Base):
    """Somebody whose row is written beside a job."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(50))


def queued(bind: sa.Engine | sa.Connection, tables: JobTables = default_tables) -> list[Any]:
    """Return the rows of the job table, in the order in which they are due; what is not committed is another's only."""
    query = sa.select(tables.job).order_by(tables.job.c.process_at)
    if isinstance(bind, sa.Connection):
        return list(bind.execute(query))
    with bind.connect() as connection:
        return list(connection.execute(query))


def queued_ids(bind: sa.Engine | sa.Connection, tables: JobTables = default_tables) -> set[uuid.UUID]:
    """Return the ids in the job table."""
    return {row.job_id for row in queued(bind, tables)}


def archived(engine: sa.Engine, tables: JobTables = default_tables) -> list[Any]:
    """Return the rows of the archive, in the order in which they were due."""
    with engine.connect() as connection:
        return list(connection.execute(sa.select(tables.archived_job).order_by(tables.archived_job.c.process_at)))


def left(engine):
    """Return what is left: facts of the queued jobs, and of the archived ones."""
    rows, done = queued(engine), archived(engine)
    assert set() == {row.job_id for row in rows} & {row.job_id for row in done}
    facts = [(row.attempts, row.claimed_by, row.lease_until, row.crashes) for row in rows]
    return facts, [(row.status, row.attempts) for row in done]


def run_due(engine: sa.Engine, **options: Any) -> list[RunningJob]:
    """Run all due jobs of a queue successfully, and return them in the order in which they ran."""
    ran: list[RunningJob] = []
    while process_next_job(engine, ran.append, handler_mode="advanced", **options):
        pass
    return ran


def clock_of(engine: sa.Engine) -> dt.datetime:
    """Return what time it is in the database, aware UTC; SQLite's clock is this process's."""
    texts = {"postgresql": "SELECT clock_timestamp()", "sqlite": None}
    text = texts.get(engine.dialect.name, "SELECT utc_timestamp(6)")
    if text is None:
        return dt.datetime.now(dt.UTC)
    with engine.connect() as connection:
        now = connection.exec_driver_sql(text).scalar_one()
    return now.astimezone(dt.UTC) if now.tzinfo else now.replace(tzinfo=dt.UTC)
