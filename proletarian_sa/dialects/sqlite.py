"""SQLite 3.35 and later: one writer at a time, so every transaction is short and begins with a write."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.compiler import compiles

from proletarian_sa.dialects.base import dotted
from proletarian_sa.dialects.two_steps import TwoStepArchive
from proletarian_sa.errors import DatabaseNotSupported
from proletarian_sa.floor import EARLIEST
from proletarian_sa.job_ids import made_by_database
from proletarian_sa.types import UTCDateTime, as_utc, current_time, later, latest, statement_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Connection

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.spread import Spread

OLDEST = (3, 35)
BUSY, LOCKED, READONLY, IOERR, FULL, CANTOPEN = 5, 6, 8, 10, 13, 14  # primary result codes of sqlite3.h
TRANSIENT = frozenset({BUSY, LOCKED, READONLY, IOERR, FULL, CANTOPEN})


class SQLiteStatements(TwoStepArchive):
    """UPDATE … RETURNING, and the process's own clock, because SQLite's has only milliseconds."""

    row_locks = False
    native_clock = False
    most_archived = 50  # the application waits meanwhile

    def _build(self) -> None:
        self._check_numbering()
        job, columns = self.job, self.job.c
        self._any_due = sa.select(sa.literal(1)).where(self.due).limit(1)
        picked = (
            sa.select(columns.job_id, columns.claimed_by)
            .where(self.due)
            .order_by(columns.process_at)
            .limit(sa.bindparam("limit"))
            .cte("picked")
        )
        # Any of them will do as the first: an ORDER BY would only sort them once more.
        first = sa.select(picked.c.job_id, picked.c.claimed_by).limit(1).cte("first")
        # A job whose lease has lapsed may be a killer: it is taken alone.
        chosen = sa.select(picked.c.job_id).where(
            sa.or_(
                picked.c.job_id == first.c.job_id,
                sa.and_(picked.c.claimed_by.is_(None), first.c.claimed_by.is_(None)),
            )
        )
        self._claim = sa.update(job).where(columns.job_id.in_(chosen)).values(self._claimed_values).returning(*self.read)
        self._beat = (
            sa.update(job)
            .where(
                columns.job_id.in_(sa.bindparam("ids", expanding=True)),
                columns.claimed_by.in_(sa.bindparam("tokens", expanding=True)),
            )
            .values(lease_until=self._after("lease"))
            .returning(columns.job_id, columns.claimed_by)
        )
        self._write_nothing = sa.delete(job).where(sa.false())
        self._build_archive()

    def _check_numbering(self) -> None:
        """Refuse ids that SQLite would not make, or would make twice: once for a job, and again when that is archived."""
        if not made_by_database(self.tables.job_ids):
            return
        column = self.job.c.job_id
        declared = column.type.compile(dialect=sqlite.dialect())
        if declared != "INTEGER" or not self.job.dialect_options["sqlite"]["autoincrement"]:
            raise DatabaseNotSupported(
                f"SQLite numbers jobs only by INTEGER with AUTOINCREMENT, and {self.job.name}.job_id is {declared}. Leave job_id "
                "to the mixin and say __job_ids__ = DatabaseIds() on both models."
            )

    def why_not(self, connection: Connection) -> str | None:
        version = connection.dialect.server_version_info or ()
        if version < OLDEST:
            return f"this Python has SQLite {dotted(version)}; {dotted(OLDEST)} or later is needed, for RETURNING."
        (main,) = (row for row in connection.exec_driver_sql("PRAGMA database_list") if row[1] == "main")
        if not main[2]:
            return "it is in memory, where threads do not share one database safely. Use a file: sqlite:///jobs.db."
        return None

    def claim(
        self,
        connection: Connection,
        *,
        queue: str,
        token: str,
        lease: dt.timedelta,
        limit: int,
        spread: Spread | None = None,
        since: dt.datetime = EARLIEST,
    ) -> list[ClaimedJob]:
        times = self.times(lease=lease)
        # An idle worker only reads: it never takes the write lock that the application may be waiting for. The read must be
        # over before the write begins, because a transaction that turns from reader to writer is refused, not made to wait.
        due = connection.execute(self._any_due, {**times, "of_queue": queue}).scalar()
        connection.rollback()
        if due is None:
            return []
        values = {**times, "of_queue": queue, "new_token": token, "limit": limit}
        return self._claimed(connection.execute(self._claim, values).all(), queue, token)

    def _prolong(self, connection: Connection, jobs: Sequence[ClaimedJob], lease: dt.timedelta) -> set[tuple[Any, str]]:
        values = {
            **self.times(lease=lease),
            "ids": [job.job_id for job in jobs],
            "tokens": list({job.token for job in jobs}),
        }
        return {(row[0], row[1]) for row in connection.execute(self._beat, values)}

    def own_options(self, connection: Connection) -> Mapping[str, Any]:
        """Leave transactions as the application has them, but take some where its engine is in autocommit."""
        return {"isolation_level": "SERIALIZABLE"} if self.in_autocommit(connection) else {}

    def begin_before_savepoint(self, connection: Connection) -> None:
        """Write: Python's driver opens a transaction at the first write only, and SQLite commits a savepoint outside of one."""
        connection.execute(self._write_nothing)

    def begin_owned(self, connection: Connection, job: ClaimedJob) -> bool:
        """Take the write lock first: a savepoint outside a transaction would commit by itself when it is released."""
        return self.own(connection, job)

    def _transient_code(self, error: BaseException) -> bool:
        return _primary_code(error) in TRANSIENT

    def _race_code(self, error: BaseException) -> bool:
        return False  # a lock was waited for already, as long as the application allows

    def _closed_code(self, error: BaseException) -> bool:
        return _primary_code(error) in TRANSIENT  # also somebody else's lock: one writer keeps all others out

    def is_missing_table(self, error: BaseException) -> bool:
        return isinstance(error, exc.OperationalError) and "no such table" in str(error.orig)

    def is_foreign_key_violation(self, error: BaseException) -> bool:
        # Not by its code: that of RESTRICT is a trigger's.
        return isinstance(error, exc.IntegrityError) and "FOREIGN KEY constraint failed" in str(error.orig)

    def is_lost_savepoint(self, error: BaseException) -> bool:
        return isinstance(error, exc.OperationalError) and "no such savepoint" in str(error.orig)


def _primary_code(error: BaseException) -> int | None:
    extended = getattr(error, "sqlite_errorcode", None)
    return extended & 0xFF if isinstance(extended, int) else None


@compiles(as_utc, "sqlite")
def _as_utc(element: as_utc, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(current_time, "sqlite")
@compiles(statement_time, "sqlite")
def _time(_element: current_time | statement_time, compiler: Any, **options: Any) -> str:
    # Evaluated anew at each execution, and once for all of a statement: by one name.
    return str(compiler.process(sa.bindparam("proletarian_sa_now", callable_=_utc_now, type_=UTCDateTime()), **options))


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@compiles(later, "sqlite")
def _later(element: later, _compiler: Any, **_options: Any) -> str:
    raise exc.CompileError(f"SQLite adds no delays with microseconds: compute the moment and bind it, instead of {element!r}.")


@compiles(latest, "sqlite")
def _latest(element: latest, compiler: Any, **options: Any) -> str:
    return f"max({compiler.process(element.clauses, **options)})"
