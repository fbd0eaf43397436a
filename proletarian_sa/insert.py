"""Write the rows of new jobs: one, or many in few statements."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc

from proletarian_sa.clock import aware_utc
from proletarian_sa.dialects import Statements, statements_for
from proletarian_sa.due import check_delay, due_time
from proletarian_sa.errors import PayloadError, PayloadTooLarge
from proletarian_sa.job_ids import new_id
from proletarian_sa.models import DEFAULT_QUEUE, JobMixin, JobTables
from proletarian_sa.names import check_name
from proletarian_sa.own_models import set_values

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

Row = Mapping[str, Any]

_CHUNK_ROWS = 1000
_CHUNK_BYTES = 2**20
_REMEMBERED_TIMES = 100_000
_MICROSECOND = dt.timedelta(microseconds=1)
_LATEST = dt.datetime.max.replace(tzinfo=dt.UTC)
_ROW_KEYS = frozenset({"job_type", "payload", "queue", "process_at", "process_in", "job_id"})


def insert_one(connection: Connection, job: JobMixin) -> Any:
    """Insert the row of a job that is in no session, and return its id.

    **Transaction:** the caller's.
    """
    statements = statements_for(connection.dialect, job.job_tables)
    times = statements.enqueue_times(job.process_at, job._process_in)
    values = set_values(job) | times
    if job.job_id is None:
        values.pop("job_id", None)  # an explicit NULL would be no number
    inserted = connection.execute(sa.insert(statements.job).values(values))
    return job.job_id if job.job_id is not None else _made_id(inserted)


def insert_many(connection: Connection, rows: Iterable[Row], tables: JobTables) -> list[Any] | int:
    """Check and insert rows, and return the ids of a sequence, or the number of an iterator's.

    **Transaction:** the caller's; an iterator's rows in a savepoint of it.
    """
    statements = statements_for(connection.dialect, tables)
    due_times = _DueTimes(connection, statements)
    if isinstance(rows, Sequence):
        prepared = [_prepare(row, index, tables) for index, row in enumerate(rows)]
        chunks = _chunks(iter(prepared))
        return [job_id for chunk in chunks for job_id in _insert_chunk(connection, statements, chunk, due_times, wanted=True)]
    if not isinstance(rows, Iterator):
        raise TypeError(
            f"rows must be a sequence or an iterator of mappings, not {type(rows).__name__}: "
            'enqueue_many(session, [{"job_type": "resize", "payload": 1}]).'
        )
    if statements.in_autocommit(connection):
        raise ValueError(
            "An iterator needs a transaction, so that a bad row takes back those before it; this connection is in autocommit. "
            "Give a list: enqueue_many(connection, list(rows))."
        )
    count = 0
    statements.begin_before_savepoint(connection)
    with _savepoint(connection, statements):
        for chunk in _chunks(_prepare(row, index, tables) for index, row in enumerate(rows)):
            _insert_chunk(connection, statements, chunk, due_times, wanted=False)
            count += len(chunk)
    return count


@contextmanager
def _savepoint(connection: Connection, statements: Statements) -> Iterator[None]:
    """Set a savepoint, and roll back to it at an error, which is not hidden where a deadlock has taken the savepoint with it."""
    savepoint = connection.begin_nested()
    try:
        yield
        savepoint.commit()
    except BaseException:
        try:
            savepoint.rollback()
        except exc.DBAPIError as lost:
            if not statements.is_lost_savepoint(lost):
                raise
        raise


def _prepare(row: Row, index: int, tables: JobTables) -> dict[str, Any]:
    """Check and encode one row."""
    try:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row must be a mapping with a job_type, not {type(row).__name__}.")
        unknown = set(row) - _ROW_KEYS
        if unknown or "job_type" not in row:
            raise TypeError(f"a row takes the keys {', '.join(sorted(_ROW_KEYS))} and needs job_type; this one has {sorted(row)}.")
        process_at, process_in = row.get("process_at"), row.get("process_in")
        return {
            "job_id": new_id(tables.job_ids, row.get("job_id")),
            "queue": check_name(row.get("queue", DEFAULT_QUEUE), "queue"),
            "job_type": check_name(row["job_type"], "job_type"),
            "payload": tables.encode(row.get("payload")),
            "attempts": 0,
            "process_at": None if process_at is None else aware_utc(process_at, "process_at"),
            "process_in": None if process_in is None else check_delay(process_in, "process_in"),
        }
    except (TypeError, ValueError) as error:
        # Of the error's own class only where it is ours: a serializer's may take more than a message.
        kind = next(kind for kind in (PayloadTooLarge, PayloadError, TypeError, ValueError) if isinstance(error, kind))
        raise kind(f"rows[{index}]: {error}") from error


def _chunks(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row["payload"])
        if len(chunk) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _DueTimes:
    """Keep jobs in order that would be due at the same moment: one microsecond apart.

    The clock is read once, before the first row: read again for each chunk, a job with a delay could be due before its predecessor.
    """

    def __init__(self, connection: Connection, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements
        self._given: dict[dt.datetime, int] = {}

    @cached_property
    def now(self) -> dt.datetime:
        """What time it was before the first row."""
        return self._statements.read_clock(self._connection)

    def spread(self, due: dt.datetime) -> dt.datetime:
        """Return the moment, moved by the number of jobs that had it before."""
        if len(self._given) >= _REMEMBERED_TIMES:
            self._given.clear()
        before = self._given.get(due, 0)
        self._given[due] = before + 1
        return due + _MICROSECOND * before if before < (_LATEST - due) // _MICROSECOND else _LATEST


def _insert_chunk(
    connection: Connection, statements: Statements, chunk: list[dict[str, Any]], due_times: _DueTimes, *, wanted: bool
) -> list[Any]:
    """Insert rows, and return their ids in order; where they are not wanted, those that the database makes are left out."""
    values = []
    for row in chunk:
        inserted = dict(row)
        due = due_time(due_times.now, inserted["process_at"], inserted.pop("process_in"))
        values.append(inserted | {"enqueued_at": due_times.now, "process_at": due_times.spread(due)})
    ids: list[Any] = []
    for to_be_made, group in groupby(values, key=lambda row: row["job_id"] is None):
        together = list(group)
        if not to_be_made:
            connection.execute(sa.insert(statements.job), together)
            ids.extend(row["job_id"] for row in together)
            continue
        for row in together:
            del row["job_id"]
        if wanted:
            ids.extend(_insert_and_read_ids(connection, statements.job, together))
        else:
            connection.execute(sa.insert(statements.job), together)
    return ids


def _insert_and_read_ids(connection: Connection, job: sa.Table, rows: list[dict[str, Any]]) -> list[Any]:
    """Insert rows, and return the ids that the database has made for them, in their order."""
    if connection.dialect.insert_executemany_returning_sort_by_parameter_order:
        returning = sa.insert(job).returning(job.c.job_id, sort_by_parameter_order=True)
        return list(connection.execute(returning, rows).scalars())
    # Row by row: that the numbers of one statement follow one another is promised only for some settings of the server.
    return [_made_id(connection.execute(sa.insert(job), row)) for row in rows]


def _made_id(inserted: sa.CursorResult[Any]) -> Any:
    """Return the id that the database has made for one row."""
    key = inserted.inserted_primary_key
    assert key is not None
    return key[0]
