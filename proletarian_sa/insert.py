"""Write the rows of new jobs: one, or many in few statements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from proletarian_sa.dialects import NewRow, RowWriter, Statements, made_id, statements_for
from proletarian_sa.job_ids import unchecked_maker
from proletarian_sa.new_rows import Completion, ReadRow, Row, read_rows
from proletarian_sa.own_models import set_values
from proletarian_sa.wakeups.announce import announce, announce_rows, delay_of, is_wanted

if TYPE_CHECKING:
    import datetime as dt

    from sqlalchemy.engine import Connection

    from proletarian_sa.models import JobMixin, JobTables

__all__ = ["Row", "insert_many", "insert_one"]

_CHUNK_ROWS = 1000
_CHUNK_BYTES = 2**20
_JOB_ID: Final = 0  # where they stand in a row
_PAYLOAD: Final = 3


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
    if is_wanted(job.job_tables):
        announce(connection, statements, job.queue, delay_of(job.job_tables, job.process_at, job._process_in))
    return job.job_id if job.job_id is not None else made_id(inserted)


def insert_many(connection: Connection, rows: Iterable[Row], tables: JobTables) -> list[Any] | int:
    """Check and insert rows, and return the ids of a sequence, or the number of an iterator's.

    **Transaction:** the caller's; an iterator's rows in a savepoint of it.
    """
    statements = statements_for(connection.dialect, tables)
    inserter = _Inserter(connection, statements)
    if isinstance(rows, Sequence):
        return inserter.insert_for_ids(list(read_rows(rows, tables)))
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
    statements.begin_before_savepoint(connection)
    with _savepoint(connection, statements):
        return inserter.insert(read_rows(rows, tables))


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


def _chunks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row[_PAYLOAD])
        if len(chunk) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _noted(chunks: Iterable[list[NewRow]], done: list[NewRow]) -> Iterator[list[NewRow]]:
    """Give the chunks, and add each to those that are done."""
    for chunk in chunks:
        done.extend(chunk)
        yield chunk


def _alike(rows: Iterable[NewRow]) -> Iterator[list[NewRow]]:
    """Return groups of neighbours: in each all have an id, or none has."""
    return (list(group) for _has_none, group in groupby(rows, key=lambda row: row[_JOB_ID] is None))


def _write_for_ids(writer: RowWriter, group: list[NewRow]) -> list[Any]:
    if group[0][_JOB_ID] is None:
        return writer.write_numbered(group)
    writer.write(group)
    return [row[_JOB_ID] for row in group]


class _Inserter:
    """Insert rows that are checked and encoded, a chunk at a time. The clock is read before the first."""

    def __init__(self, connection: Connection, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements
        self._makes_ids = unchecked_maker(statements.tables.job_ids) is not None

    def insert(self, rows: Iterable[ReadRow]) -> int:
        """Insert rows, and return how many; the ids that the database makes are not asked for."""
        count = 0
        for group, writer in self._groups(rows):
            writer.write(group)
            count += len(group)
        return count

    def insert_for_ids(self, rows: Sequence[ReadRow]) -> list[Any]:
        """Insert rows, and return their ids in order."""
        if not rows:
            return []
        now, writer = self._begin(rows)
        complete = Completion(now, self._statements.tables.job_ids).of
        done: list[NewRow] = []
        if self._makes_ids or all(row[_JOB_ID] is not None for row in rows):
            writer.write_all(_noted(map(complete, _chunks(rows)), done))
            ids = [row[_JOB_ID] for row in done]
        else:
            chunks = _noted(map(complete, _chunks(rows)), done)
            ids = [job_id for chunk in chunks for group in _alike(chunk) for job_id in _write_for_ids(writer, group)]
        announce_rows(self._connection, self._statements, now, done, len(done))
        return ids

    def _begin(self, first: Sequence[ReadRow]) -> tuple[dt.datetime, RowWriter]:
        """Return what time it is, and what inserts rows; `first`: those of the first chunk, or all."""
        now = self._statements.read_clock(self._connection)
        kibibytes = sum(len(row[_PAYLOAD]) for row in first) // 1024
        return now, self._statements.row_writer(self._connection, now, max(len(first), kibibytes))

    def _groups(self, rows: Iterable[ReadRow]) -> Iterator[tuple[list[NewRow], RowWriter]]:
        """Give the rows with what inserts them: in each group all have an id, or none has."""
        writer = None
        read = 0
        for chunk in _chunks(rows):
            if writer is None:
                now, writer = self._begin(chunk)
                completion = Completion(now, self._statements.tables.job_ids)
            timed = completion.of(chunk)
            for group in _alike(timed):
                yield group, writer
            read += len(chunk)
            announce_rows(self._connection, self._statements, now, timed, read)
