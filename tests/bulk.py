"""Which way the rows of `enqueue_many` take into the database: what the statements say."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase

from proletarian_sa import ArchivedJobMixin, JobMixin, JobTables, create_all

COPY, ARRAYS, VALUES = "COPY", "arrays", "values"
CHUNK = 1000
"""Rows that are inserted together."""
MANY = 150
"""Rows enough for COPY."""
SOME = 50
"""Rows too few for it, and enough for arrays."""
FEW = 5
"""Rows too few for either."""


def rows(count: int, **options: Any) -> list[dict[str, Any]]:
    """Return rows of which the payloads count up."""
    return [{"job_type": "tick", "payload": number, **options} for number in range(count)]


def fastest(database: Any, count: int) -> str:
    """Return the fastest way that a database and the driver of the test have for so many rows."""
    streams = database.async_driver != "postgresql+asyncpg"  # which takes whole rows of Python's values only
    return {FEW: VALUES, SOME: ARRAYS, MANY: COPY if streams else ARRAYS}[count] if database.copy else VALUES


def way_of(statement: str) -> str | None:
    """Return how a statement inserts rows, None if it does not."""
    if statement.startswith("COPY"):
        return COPY
    if not statement.startswith("INSERT"):
        return None
    return ARRAYS if "unnest(" in statement else VALUES


@contextmanager
def ways(engine: sa.Engine) -> Iterator[list[str]]:
    """Gather how rows are inserted, one word a statement."""
    taken: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        way = way_of(statement)
        if way is not None:
            taken.append(way)

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield taken
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def tables_with(engine: sa.Engine, columns: dict[str, Any], *arguments: Any, **options: Any) -> JobTables:
    """Create tables on a base of the application's, with columns and table arguments of its own."""

    class Base(DeclarativeBase):
        pass

    attributes = {"__job_schema__": None, **columns}
    job = type("Task", (JobMixin, Base), {**attributes, "__table_args__": arguments})
    done = type("DoneTask", (ArchivedJobMixin, Base), {"__job_schema__": None})
    tables = JobTables(job=job, archived_job=done, **options)
    create_all(engine, tables=tables)
    return tables
