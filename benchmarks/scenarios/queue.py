"""A queue of ours to measure: engine, tables, jobs, a worker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from proletarian_sa import JobRegistry, QueueWorker, create_all, default_tables, enqueue_many
from proletarian_sa.cli import take_short_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.measure import Stopwatch

CHUNK = 100_000
"""Jobs enqueued in one transaction."""
CONNECTIONS = 5
"""Beside one for each thread."""


def open_engine(url: str, threads: int = 1) -> sa.Engine:
    """Return an engine; SQLite with a log and every commit on disk."""
    engine = sa.create_engine(url, pool_size=threads + CONNECTIONS)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", write_ahead)
    return engine


def write_ahead(connection: Any, _record: object) -> None:
    """Set what an application on SQLite would."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def new_queue(url: str, jobs: int = 0, *, threads: int = 1, process_in: float | None = None) -> sa.Engine:
    """Create the tables and enqueue jobs that are due now, or after so many seconds; the engine has no connection afterwards."""
    engine = open_engine(url, threads)
    create_all(engine)
    fill(engine, jobs, process_in=process_in)
    settle(engine)
    engine.dispose()
    return engine


def fill(engine: sa.Engine, jobs: int, *, process_in: float | None = None) -> None:
    """Enqueue jobs."""
    for begin in range(0, jobs, CHUNK):
        numbers = range(begin, min(begin + CHUNK, jobs))
        with engine.begin() as connection:
            enqueue_many(connection, ({"job_type": "work", "payload": {"n": n}, "process_in": process_in} for n in numbers))


def settle(engine: sa.Engine) -> None:
    """Do what the server would do by itself some time later, so that it does not do it while we measure."""
    tables = ", ".join(map(full_name(engine), (default_tables.job, default_tables.archived_job)))
    statements = {
        "postgresql": ["VACUUM ANALYZE", "CHECKPOINT"],
        "mysql": [f"ANALYZE TABLE {tables}"],
        "mariadb": [f"ANALYZE TABLE {tables}"],
    }
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements.get(engine.dialect.name, []):
            connection.exec_driver_sql(statement).close()


def full_name(engine: sa.Engine) -> Callable[[sa.Table], str]:
    """Return a function that spells a table's name as this database knows it."""
    schema = engine.dialect.name == "postgresql"
    return lambda table: f"{table.schema}.{table.name}" if schema else str(table.name)


def is_empty(engine: sa.Engine) -> bool:
    """Tell whether all jobs have left the queue, asked as our statements would name the table."""
    with engine.connect() as connection:
        return connection.exec_driver_sql(f"SELECT 1 FROM {full_name(engine)(default_tables.job)} LIMIT 1").first() is None  # noqa: S608


def wait_until_empty(engine: sa.Engine, patience: float = 60.0) -> float:
    """Wait until all outcomes are in the archive, and return when that was seen, of time.perf_counter."""
    deadline = time.perf_counter() + patience
    while not is_empty(engine):
        if time.perf_counter() > deadline:
            raise TimeoutError(f"jobs were left in the queue after {patience} s")
        time.sleep(0.002)
    return time.perf_counter()


def make_worker(engine: sa.Engine, work: Callable[[Any], object], **options: Any) -> QueueWorker:
    """Return a worker whose handler for all jobs is a function of the payload, in a process like that of the command."""
    take_short_turns()
    jobs = JobRegistry()
    jobs.handler("work")(work)
    return QueueWorker(engine, jobs, **options)


def counting_worker(engine: sa.Engine, watch: Stopwatch, **options: Any) -> QueueWorker:
    """Return a worker whose handler does nothing but count."""
    return make_worker(engine, lambda _payload: watch.tick(), **options)
