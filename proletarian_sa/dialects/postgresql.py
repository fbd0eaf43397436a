"""PostgreSQL 13 and later: claims and finishes in one statement each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles

from proletarian_sa.dialects.arrays import array_of
from proletarian_sa.dialects.base import Archived, NotNew, Statements, dotted
from proletarian_sa.dialects.planner import BY_KEY, IN_ORDER, is_direct, is_settled, lend, remember, settings, settle, unsettle
from proletarian_sa.dialects.postgresql_bulk import PostgreSQLBulk
from proletarian_sa.dialects.postgresql_held import PostgreSQLHeld
from proletarian_sa.dialects.postgresql_notify import PostgreSQLNotifications
from proletarian_sa.floor import EARLIEST
from proletarian_sa.types import UTCDateTime, as_utc, current_time, later, latest, statement_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection

    from proletarian_sa.claimed import ClaimedJob, Finish
    from proletarian_sa.dialects.bulk import RowWriter
    from proletarian_sa.spread import Spread

OLDEST = (13,)
SERIALIZATION = frozenset({"40001", "40P01"})
TRANSIENT = SERIALIZATION | {
    "25006",  # read-only: a failover is under way
    "25P03",  # idle in transaction for too long
    "25P04",  # transaction for too long
    "28000",
    "28P01",  # the role may not log in, the password was changed: an operator is at it
    "55P03",  # lock not available in time
    "57014",  # statement time-out, or cancelled by an operator
    "57P01",  # administrator's shutdown
    "57P02",  # crash shutdown
    "57P03",  # starting up
    "57P05",  # idle session time-out
}
CLOSED = frozenset({"25006", "53100"})  # it is read-only, or its disk is full
WAITED = frozenset({"55P03", "57014"})  # for a lock; or a statement's own time-out is the shorter one
IMPATIENT = {"lock_timeout": "1s"}
PREPARED = frozenset({"26000", "42P05"})  # a prepared statement is unknown, or another session's
UNANSWERED = frozenset({"OperationalError", "ConnectionTimeout", "InterfaceError"})
"""Errors without a state."""
UNIQUE = "23505"
OUTDATED = "InvalidCachedStatementError"
"""asyncpg's after DDL; SQLAlchemy forgets the plans that it is about. It has a state in SQLAlchemy 2.0, and none in 2.1."""
UNPREPARED = 'use none: create_engine(…, connect_args={"prepare_threshold": None})'
UNPREPARED_ASYNCPG = (
    'keep none: create_async_engine(…, connect_args={"statement_cache_size": 0, "prepared_statement_cache_size": 0, '
    '"prepared_statement_name_func": lambda: f"proletarian_{uuid4()}"})'
)
TRANSIENT_CLASSES = ("08", "53", "58")  # connection, resources (disk, memory, connections), system


class PostgreSQLStatements(Statements):
    """One statement a claim, one a batch of finishes."""

    isolation = {
        "isolation_level": "READ COMMITTED",
        "postgresql_readonly": False,
        "postgresql_deferrable": False,
    }
    savepoint_recovers = True
    most_archived = most_ahead = 4000

    def _build(self) -> None:
        job, columns = self.job, self.job.c
        place = _place_of_rows(job)
        picked = (
            sa.select(columns.job_id, columns.claimed_by, place.label("place"))
            .where(self.due_since)
            .order_by(columns.process_at)
            .limit(sa.bindparam("limit"))
            .with_for_update(skip_locked=True)
            .cte("picked")
        )
        # Either the jobs that nobody holds, or a single one whose lease has lapsed: it may be a killer. Which row comes first
        # is a matter of taste, not of correctness, so no ORDER BY is needed here.
        first = sa.select(picked.c.job_id, picked.c.claimed_by).limit(1).cte("first")
        # A row that is locked does not move, and to look there costs half as much as to look for its key. That is compared all the
        # same: partitions have the same places. A row that was changed between snapshot and lock is left for the next claim.
        self._claim = (
            sa.update(job)
            .where(
                place == picked.c.place,
                columns.job_id.is_not_distinct_from(picked.c.job_id),
                sa.or_(
                    picked.c.job_id == first.c.job_id,
                    sa.and_(picked.c.claimed_by.is_(None), first.c.claimed_by.is_(None)),
                ),
            )
            .values(self._claimed_values)
            .returning(*map(_unprocessed, self.read))
        )
        self._plan_by_key, self._plan_in_order = settings(BY_KEY), settings(IN_ORDER)
        self._wait_briefly = settings(IMPATIENT)
        # Ids and tokens are joined: a constant token beside an array of ids made the planner scan the table. No order is needed
        # against deadlocks, because a locked row is never waited for.
        beats = self._unnest("ids", "tokens")
        owned = (
            sa.select(columns.job_id)
            .where(self._key_is(beats.c.ids), columns.claimed_by == beats.c.tokens)
            .with_for_update(skip_locked=True, of=job)
            .cte("owned")
        )
        self._beat = (
            sa.update(job)
            .where(self._key_is(owned.c.job_id))
            .values(lease_until=self._after("lease"))
            .returning(columns.job_id, columns.claimed_by)
        )
        self._build_finish()
        self.held = PostgreSQLHeld(self)
        self.notifications = PostgreSQLNotifications(job)
        self._bulk = PostgreSQLBulk(self.tables)

    def _build_finish(self) -> None:
        columns = self.job.c
        finished = self._unnest("ids", "tokens", "statuses", "errors")
        gone = (
            sa.delete(self.job)
            .where(self._key_is(finished.c.ids), columns.claimed_by == finished.c.tokens)
            .returning(*columns, finished.c.statuses, finished.c.errors)
            .cte("gone")
        )
        archived = {column.name: gone.c[column.name] for column in self.archived_job.c if column.name in columns} | {
            "status": gone.c.statuses,
            "finished_at": self.clock(current_time()),
            "last_error": sa.func.coalesce(gone.c.errors, gone.c.last_error),
        }
        insert = postgresql.insert(self.archived_job).from_select(list(archived), sa.select(*archived.values()))
        ids = self.archived_job.c.job_id
        done = (
            insert.on_conflict_do_update(
                index_elements=["job_id"], set_={name: insert.excluded[name] for name in archived if name != "job_id"}
            )
            .returning(ids, sa.literal_column("xmax <> 0", sa.Boolean()).label("replaced"))
            .cte("done")
        )
        # Only what is out of the ordinary is returned in full.
        all_done = sa.func.array_agg(done.c.job_id, type_=postgresql.ARRAY(ids.type))
        some_done = sa.case((sa.func.count() < sa.bindparam("wanted", type_=sa.Integer), all_done))
        self._archive = sa.select(sa.func.count(), all_done.filter(done.c.replaced), some_done).select_from(done)
        self._build_succeed(list(archived))
        self._archived = sa.select(ids, self.archived_job.c.claimed_by).where(
            ids == sa.any_(sa.bindparam("ids", type_=array_of(ids.type)))
        )

    def _build_succeed(self, names: list[str]) -> None:
        """Build what archives plain successes whose ids are in no row of the archive, at two thirds of the cost."""
        columns = self.job.c
        finished = self._unnest("ids", "tokens")
        gone = (
            sa.delete(self.job)
            .where(self._key_is(finished.c.ids), columns.claimed_by == finished.c.tokens)
            .returning(*(columns[name] for name in names if name in columns))
            .cte("gone")
        )
        new = {"status": sa.literal("success", self.archived_job.c.status.type), "finished_at": self.clock(current_time())}
        values = [new[name] if name in new else gone.c[name] for name in names]
        insert = self.archived_job.insert().from_select(names, sa.select(*values))
        self._succeed = insert.execution_options(preserve_rowcount=True)

    def _key_is(self, given: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Join by the primary key so that it can only be searched, row by row.

        A plain `=` offers the planner a merge of two sorted inputs too. Where statistics were taken when the queue had just been
        drained it believes in a single row, whatever the size of the table, and so reads the whole index.
        """
        return self.job.c.job_id == sa.any_(postgresql.array([given]))

    def _unnest(self, *names: str) -> Any:
        types: dict[str, Any] = {"ids": self.job.c.job_id.type}
        arrays = [sa.bindparam(name, type_=array_of(types.get(name, sa.Text()))) for name in names]
        columns = [sa.column(name, types.get(name, sa.Text())) for name in names]
        return sa.func.unnest(*arrays).table_valued(*columns, name="given").render_derived()

    def why_not(self, connection: Connection) -> str | None:
        version = connection.dialect.server_version_info or ()
        return None if version >= OLDEST else f"it runs PostgreSQL {dotted(version)}; 13 or later is needed."

    def row_writer(self, connection: Connection, now: dt.datetime, count: int) -> RowWriter:
        return self._bulk.writer(connection, now, count)

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
        if not is_settled(connection):
            connection.execute(self._plan_in_order)
        values = {**self.times(lease=lease), "of_queue": queue, "since": since, "new_token": token, "limit": limit}
        return self._claimed(connection.execute(self._claim, values).all(), queue, token)

    def _prolong(self, connection: Connection, jobs: Sequence[ClaimedJob], lease: dt.timedelta) -> set[tuple[Any, str]]:
        values = {
            **self.times(lease=lease),
            "ids": [job.job_id for job in jobs],
            "tokens": [job.token for job in jobs],
        }
        return {(row[0], row[1]) for row in self._by_key(connection).execute(self._beat, values)}

    def succeed(self, connection: Connection, jobs: Sequence[ClaimedJob], *, new: bool = False) -> list[Archived]:
        if any(job.row is not None for job in jobs):
            return super().succeed(connection, jobs)
        if not new:
            return self._archive_all(connection, jobs, ["success"] * len(jobs), [None] * len(jobs))
        values = {**self.times(), "ids": [job.job_id for job in jobs], "tokens": [job.token for job in jobs]}
        try:
            count = self._by_key(connection).execute(self._succeed, values).rowcount
        except exc.IntegrityError as error:
            if sqlstate(error.orig) != UNIQUE:
                raise
            raise NotNew from error
        return [Archived.DONE] * count if count == len(jobs) else self._which(connection, jobs, values["ids"], {})

    def _archive_leased(self, connection: Connection, finishes: Sequence[Finish]) -> list[Archived]:
        statuses, errors = [finish.status for finish in finishes], [finish.last_error for finish in finishes]
        return self._archive_all(connection, [finish.job for finish in finishes], statuses, errors)

    def _archive_all(
        self, connection: Connection, jobs: Sequence[ClaimedJob], statuses: list[str], errors: Sequence[str | None]
    ) -> list[Archived]:
        values = {
            **self.times(),
            "ids": [job.job_id for job in jobs],
            "tokens": [job.token for job in jobs],
            "statuses": statuses,
            "errors": errors,
            "wanted": len(jobs),
        }
        count, replaced, some_done = self._by_key(connection).execute(self._archive, values).one()
        if count == len(jobs) and not replaced:
            return [Archived.DONE] * count
        # Not what an earlier try has archived, whose COMMIT was not answered.
        done = values["ids"] if count == len(jobs) else some_done or []
        return self._which(connection, jobs, done, dict.fromkeys(replaced or (), Archived.REPLACED))

    def _which(
        self, connection: Connection, jobs: Sequence[ClaimedJob], done: Sequence[Any], kinds: dict[Any, Archived]
    ) -> list[Archived]:
        """Find out which jobs' own claims are in the archive, among those with these ids."""
        found = {(row[0], row[1]) for row in connection.execute(self._archived, {"ids": done})}
        return [kinds.get(job.job_id, Archived.DONE) if (job.job_id, job.token) in found else Archived.LOST for job in jobs]

    def _by_key(self, connection: Connection) -> Connection:
        if not is_settled(connection):
            connection.execute(self._plan_by_key)
        return connection

    def make_ready(self, connection: Connection, *, lasting: bool) -> dict[str, str] | None:
        return settle(connection, IN_ORDER) if lasting and is_direct(connection) else None

    def make_impatient(self, connection: Connection, *, lasting: bool) -> dict[str, str] | None:
        remember(connection)
        return settle(connection, BY_KEY | IMPATIENT) if lasting and is_direct(connection) else None

    def restore(self, connection: Connection, before: Any) -> None:
        unsettle(connection, before)

    def wait_briefly(self, connection: Connection) -> None:
        if not is_settled(connection):
            connection.execute(self._wait_briefly)

    def lend(self, connection: Connection) -> None:
        lend(connection)

    def take_back(self, connection: Connection, *, undone: bool = False) -> None:
        if not undone:  # else the savepoint's rollback has done it
            connection.execute(self._plan_by_key)

    def check_constraints(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")

    def _transient_code(self, error: BaseException) -> bool:
        state = sqlstate(error)
        if _is_outdated(error):
            return True
        if state is None:  # no answer from a server: refused, reset, no such host, time-out
            return type(error).__name__ in UNANSWERED
        return state in TRANSIENT or state.startswith(TRANSIENT_CLASSES) or _is_standby(error)

    def _race_code(self, error: BaseException) -> bool:
        return sqlstate(error) in SERIALIZATION

    def _closed_code(self, error: BaseException) -> bool:
        return sqlstate(error) in CLOSED or _is_standby(error)

    def advice(self, error: BaseException) -> str | None:
        if isinstance(error, exc.DBAPIError) and sqlstate(error.orig) in PREPARED:
            is_asyncpg = type(error.orig).__module__.endswith("asyncpg")
            return (
                "Is there a pooler in transaction mode? Then let it keep prepared statements (PgBouncer 1.21 or later: "
                f"max_prepared_statements), or {UNPREPARED_ASYNCPG if is_asyncpg else UNPREPARED}"
            )
        if isinstance(error, exc.DBAPIError) and _is_standby(error.orig):
            return (
                "The server is a standby, which is read-only: the worker goes on when it is promoted, or when the URL leads to the "
                "primary; of several hosts in it, ?target_session_attrs=read-write finds that one"
            )
        return None

    def has_waited(self, error: BaseException) -> bool:
        return isinstance(error, exc.DBAPIError) and sqlstate(error.orig) in WAITED

    def is_missing_table(self, error: BaseException) -> bool:
        return isinstance(error, exc.DBAPIError) and sqlstate(error.orig) in {"42P01", "3F000"}

    def is_foreign_key_violation(self, error: BaseException) -> bool:
        return isinstance(error, exc.DBAPIError) and sqlstate(error.orig) in {"23503", "23001"}  # the latter: RESTRICT, from 18 on

    def is_lost_savepoint(self, error: BaseException) -> bool:
        return isinstance(error, exc.DBAPIError) and sqlstate(error.orig) in {"3B001", "25P01"}


def _is_standby(error: BaseException | None) -> bool:
    """Return whether a standby has refused to begin a transaction that may write, with the general code "not supported"."""
    return sqlstate(error) == "0A000" and (_place(error) == "call_bool_check_hook" or "during recovery" in str(error))


def _is_outdated(error: BaseException | None) -> bool:
    """Return whether DDL has made a prepared statement invalid; it is prepared anew after the rollback."""
    return type(error).__name__ == OUTDATED or (sqlstate(error) == "0A000" and _place(error) == "RevalidateCachedQuery")


def _place(error: BaseException | None) -> str | None:
    """Return where in the server's source an error was raised, if the driver tells it: messages are translated."""
    place = getattr(getattr(error, "diag", None), "source_function", None)  # psycopg; then asyncpg, beneath SQLAlchemy's own
    return place or getattr(getattr(error, "__cause__", None), "server_source_function", None)


def _place_of_rows(table: sa.Table) -> sa.ColumnElement[Any]:
    """Return the system column that says where a row lies."""
    place: sa.ColumnClause[Any] = sa.column("ctid")
    place.table = table
    return place


def sqlstate(error: BaseException | None) -> str | None:
    """Return the five characters that PostgreSQL gives an error, under the names of several drivers."""
    for name in ("sqlstate", "pgcode"):
        state = getattr(error, name, None)
        if isinstance(state, str):
            return state
    return None


def _unprocessed(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return what reads a column; if it is a time, as the driver gives it, naive: a call for each costs too much."""
    return sa.type_coerce(as_utc(column), sa.DateTime()) if isinstance(column.type, UTCDateTime) else column


@compiles(as_utc, "postgresql")
def _as_utc(element: as_utc, compiler: Any, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)} AT TIME ZONE 'UTC')"


@compiles(current_time, "postgresql")
def _current_time(_element: current_time, _compiler: Any, **_options: Any) -> str:
    return "clock_timestamp()"


@compiles(statement_time, "postgresql")
def _statement_time(_element: statement_time, _compiler: Any, **_options: Any) -> str:
    # Not clock_timestamp(): it is volatile, cannot be an index condition, and would walk every scheduled job.
    return "statement_timestamp()"


@compiles(later, "postgresql")
def _later(element: later, compiler: Any, **options: Any) -> str:
    moment, delay = element.clauses
    return f"({compiler.process(moment, **options)} + {compiler.process(delay, **options)})"


@compiles(latest, "postgresql")
def _latest(element: latest, compiler: Any, **options: Any) -> str:
    return f"greatest({compiler.process(element.clauses, **options)})"
