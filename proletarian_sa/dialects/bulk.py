"""How many new rows are inserted: in statements of many rows each, unless a database has something faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from proletarian_sa.moments import moment

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Sequence

    from sqlalchemy.engine import Connection

NewRow = tuple[Any, str, str, str, int]
"""Its job_id (None: the database makes it), queue, job_type, encoded payload, and when it is due; see `moments`."""

WRITTEN = frozenset({"job_id", "queue", "job_type", "payload", "attempts", "enqueued_at", "process_at"})
"""The columns of a new row; all others are left to their defaults."""


class RowWriter:
    """Insert rows of new jobs in statements of many rows each.

    Args:
        job: The table.
        connection: The caller's, in whose transaction they are inserted.
        now: The rows' `enqueued_at`, aware UTC.
    """

    def __init__(self, job: sa.Table, connection: Connection, now: dt.datetime) -> None:
        self._job = job
        self._connection = connection
        self._now = now

    def write(self, rows: Sequence[NewRow]) -> None:
        """Insert rows that all have an id, or none of which has one.

        **Transaction:** the caller's.
        """
        self._connection.execute(sa.insert(self._job), [self._values(row) for row in rows])

    def write_all(self, chunks: Iterable[Sequence[NewRow]]) -> None:
        """Insert the rows of all chunks, each of which has an id; nobody may use the connection meanwhile.

        **Transaction:** the caller's.
        """
        for rows in chunks:
            self.write(rows)

    def write_numbered(self, rows: Sequence[NewRow]) -> list[Any]:
        """Insert rows that have no id, and return those that the database has made for them, in their order.

        **Transaction:** the caller's.
        """
        values = [self._values(row) for row in rows]
        if self._connection.dialect.insert_executemany_returning_sort_by_parameter_order:
            returning = sa.insert(self._job).returning(self._job.c.job_id, sort_by_parameter_order=True)
            return list(self._connection.execute(returning, values).scalars())
        # Row by row: that the numbers of one statement follow one another is promised only for some settings of the server.
        return [made_id(self._connection.execute(sa.insert(self._job), row)) for row in values]

    def _values(self, row: NewRow) -> dict[str, Any]:
        job_id, queue, job_type, payload, due = row
        values = {
            "queue": queue,
            "job_type": job_type,
            "payload": payload,
            "attempts": 0,
            "enqueued_at": self._now,
            "process_at": moment(due),
        }
        return values if job_id is None else {"job_id": job_id, **values}


class BulkInserts:
    """What enqueueing many jobs asks of a database."""

    job: sa.Table

    def row_writer(self, connection: Connection, now: dt.datetime, count: int) -> RowWriter:
        """Return what inserts rows on this connection, given how many there are at least, or KiB of payloads if that is more."""
        return RowWriter(self.job, connection, now)

    @staticmethod
    def in_autocommit(connection: Connection) -> bool:
        """Return whether the application has put the connection into autocommit, where there are no savepoints."""
        at_connect = getattr(connection.dialect, "_on_connect_isolation_level", None)
        return connection.get_execution_options().get("isolation_level", at_connect) == "AUTOCOMMIT"


def made_id(inserted: sa.CursorResult[Any]) -> Any:
    """Return the id that the database has made for one row."""
    key = inserted.inserted_primary_key
    assert key is not None
    return key[0]
