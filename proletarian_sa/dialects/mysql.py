"""MySQL 8.0.13 and later, MariaDB 10.6 and later: lock first, then write by primary key."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.ext.compiler import compiles

from proletarian_sa.dialects.base import dotted
from proletarian_sa.dialects.counting import one_more
from proletarian_sa.dialects.judgement import code
from proletarian_sa.dialects.mysql_held import MySQLHeld, is_mariadb
from proletarian_sa.dialects.two_steps import TwoStepArchive
from proletarian_sa.floor import EARLIEST
from proletarian_sa.types import MYSQL_FAMILY, as_utc, current_time, later, latest, statement_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.spread import Spread

OLDEST_MYSQL = (8, 0, 13)
OLDEST_MARIADB = (10, 6)
_PATIENCE = "proletarian_sa_patience"  # key of Connection.info: for how long the application waits for locks, seconds
DEADLOCK = 1213
SERIALIZATION = frozenset({DEADLOCK, 1020, 1180, 3101})  # 1020: MariaDB's snapshot check; the others: a cluster's certification
TRANSIENT = SERIALIZATION | {
    0,  # the driver found its socket closed
    1021,  # disk full
    1040,  # too many connections
    1045,
    1820,
    1862,
    3118,
    3955,
    4151,  # the password was changed or has expired, the account is locked: an operator is at it
    1047,  # a cluster node that is not ready
    1053,  # shutting down
    1105,  # a cluster's "unknown error" while it changes its members
    1114,  # table full
    1176,  # the forced index is being made, right after its table or anew
    1158,
    1159,
    1160,
    1161,  # network
    1203,
    1226,  # connections of the user
    1129,  # too many interrupted connections from this host
    1205,  # lock wait time-out
    1290,
    1792,
    1836,  # read-only: a failover is under way
    1317,  # interrupted by an operator
    1927,  # connection killed
    1969,
    3024,  # statement time-out
    2002,
    2003,
    2006,
    2013,
    2055,  # connection
    4031,  # idle for too long
}
CLOSED = frozenset({1021, 1114, 1290, 1792, 1836})  # its disk is full, or it is read-only
WAITED = frozenset({1205, 1969, 3024})  # for a lock; or a statement's own time-out is the shorter one
NO_SUCH_TABLE = frozenset({1146, 1049, 1684})  # no such table, no such database; a migration is at the table just now
NO_SUCH_SAVEPOINT = 1305
STATEMENT_LOG = 1665  # binlog_format = STATEMENT
FOREIGN_KEY = frozenset({1216, 1217, 1451, 1452})  # the latter two tell the constraint, to those who may see the other table


class MySQLStatements(TwoStepArchive):
    """SELECT … FOR UPDATE SKIP LOCKED, then UPDATE by primary key; there is no UPDATE … RETURNING.

    Every index is forced: where a table is small the optimizer prefers to scan it, and would lock all of its rows.
    """

    def _build(self) -> None:
        job, columns = self.job, self.job.c
        by_key = "FORCE INDEX (PRIMARY)"
        ids: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
        self._pick = (
            sa.select(*self.read, columns.claimed_by)
            .with_hint(job, f"FORCE INDEX ({self._queue_index()})")
            .where(self.due_since)
            .order_by(columns.process_at)
            .limit(sa.bindparam("limit"))
            .with_for_update(skip_locked=True)
        )
        # Read without locks: on a cluster what another node commits undoes who has any of its rows locked, if only to look at them.
        self._look = (
            sa.select(columns.job_id)
            .with_hint(job, f"FORCE INDEX ({self._queue_index()})")
            .where(self.due)
            .order_by(columns.process_at)
            .limit(sa.bindparam("limit"))
        )
        # A lapsed one comes first: it is taken alone.
        self._pick_chosen = (
            sa.select(*self.read, columns.claimed_by)
            .with_hint(job, by_key)
            .where(self.due, columns.job_id.in_(ids))
            .order_by(columns.claimed_by.is_(None), columns.process_at)
            .with_for_update(skip_locked=True)
        )
        # Fenced by what was read: where SKIP LOCKED does not lock, a lost race is a normal outcome.
        self._take = (
            sa.update(job)
            .with_hint(by_key)
            .where(columns.job_id.in_(ids), columns.claimed_by.is_not_distinct_from(sa.bindparam("old_token")))
            .ordered_values(*self._claimed_values_in_order())
        )
        self._taken = sa.select(columns.job_id).where(columns.job_id.in_(ids), columns.claimed_by == sa.bindparam("token"))
        self._lock_owned = (
            sa.select(columns.job_id, columns.claimed_by)
            .with_hint(job, by_key)
            .where(columns.job_id.in_(ids), columns.claimed_by.in_(sa.bindparam("tokens", expanding=True)))
            .order_by(columns.job_id)
            .with_for_update(skip_locked=True)
        )
        self._beat = sa.update(job).with_hint(by_key).where(columns.job_id.in_(ids)).values(lease_until=self._after("lease"))
        self._build_archive()
        self.held = MySQLHeld(self, self._queue_index())

    def _queue_index(self) -> str:
        wanted = [self.job.c.queue, self.job.c.process_at]
        (name,) = (str(index.name) for index in self.job.indexes if list(index.columns) == wanted)
        return "`" + name.replace("`", "``") + "`"

    def _claimed_values_in_order(self) -> list[tuple[sa.Column[Any], Any]]:
        """Put `claimed_by` last: MySQL's SET works from left to right, and the others look at its old value."""
        values = dict(self._claimed_values)
        values["claimed_by"] = values.pop("claimed_by")
        return [(self.job.c[name], value) for name, value in values.items()]

    def why_not(self, connection: Connection) -> str | None:
        version = connection.dialect.server_version_info or ()
        name, oldest = ("MariaDB", OLDEST_MARIADB) if is_mariadb(connection) else ("MySQL", OLDEST_MYSQL)
        if version >= oldest:
            return None
        return f"it runs {name} {dotted(version)}, which has no usable SKIP LOCKED; {dotted(oldest)} or later is needed."

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
        wanted = {**times, "of_queue": queue, "limit": limit}
        if spread is None or spread.times == 1:
            rows = connection.execute(self._pick, {**wanted, "since": since}).all()
        else:
            found = connection.execute(self._look, {**wanted, "limit": spread.width(limit)}).scalars().all()
            chosen = {**wanted, "ids": spread.choose(found, limit)}
            rows = connection.execute(self._pick_chosen, chosen).all() if found else []
        if not rows:
            return []
        old_token = rows[0].claimed_by
        # A job whose lease has lapsed may be a killer: it is taken alone.
        rows = rows[:1] if old_token is not None else [row for row in rows if row.claimed_by is None]
        ids = [row.job_id for row in rows]
        values = {**times, "ids": ids, "old_token": old_token, "new_token": token}
        if connection.execute(self._take, values).rowcount != len(rows):
            taken = set(connection.execute(self._taken, {"ids": ids, "token": token}).scalars())
            rows = [row for row in rows if row.job_id in taken]
        return [_after_claim(job, lapsed=old_token is not None) for job in self._claimed(rows, queue, token)]

    def _prolong(self, connection: Connection, jobs: Sequence[ClaimedJob], lease: dt.timedelta) -> set[tuple[Any, str]]:
        ids, tokens = [job.job_id for job in jobs], list({job.token for job in jobs})
        rows = connection.execute(self._lock_owned, {"ids": ids, "tokens": tokens}).all()
        if rows:
            connection.execute(self._beat, {**self.times(lease=lease), "ids": [row.job_id for row in rows]})
        return {(row[0], row[1]) for row in rows}

    def make_impatient(self, connection: Connection, *, lasting: bool) -> int:
        seconds: int = connection.exec_driver_sql("SELECT @@SESSION.innodb_lock_wait_timeout").scalar_one()
        connection.info[_PATIENCE] = seconds
        _wait_for(connection, 1)
        connection.commit()
        return seconds

    def restore(self, connection: Connection, before: Any) -> None:
        connection.info.pop(_PATIENCE, None)
        _wait_for(connection, int(before))
        connection.commit()

    def lend(self, connection: Connection) -> None:
        if _PATIENCE in connection.info:
            _wait_for(connection, connection.info[_PATIENCE])

    def take_back(self, connection: Connection, *, undone: bool = False) -> None:
        if _PATIENCE in connection.info:
            _wait_for(connection, 1)

    def _transient_code(self, error: BaseException) -> bool:
        return code(error) in TRANSIENT

    def _race_code(self, error: BaseException) -> bool:
        return code(error) in SERIALIZATION

    def _closed_code(self, error: BaseException) -> bool:
        return code(error) in CLOSED

    def advice(self, error: BaseException) -> str | None:
        if isinstance(error, exc.DBAPIError) and code(error.orig) == STATEMENT_LOG:
            return "A worker needs READ COMMITTED, which InnoDB logs by rows only. Type: SET GLOBAL binlog_format = 'ROW'"
        return None

    def has_waited(self, error: BaseException) -> bool:
        return isinstance(error, exc.DBAPIError) and code(error.orig) in WAITED

    def is_missing_table(self, error: BaseException) -> bool:
        return isinstance(error, exc.DBAPIError) and code(error.orig) in NO_SUCH_TABLE

    def is_foreign_key_violation(self, error: BaseException) -> bool:
        return isinstance(error, exc.DBAPIError) and code(error.orig) in FOREIGN_KEY

    def is_lost_savepoint(self, error: BaseException) -> bool:
        return isinstance(error, exc.DBAPIError) and code(error.orig) == NO_SUCH_SAVEPOINT


def _wait_for(connection: Connection, seconds: int) -> None:
    connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {seconds}")


def _after_claim(job: ClaimedJob, *, lapsed: bool) -> ClaimedJob:
    if lapsed:
        return replace(job, crashes=one_more(job.crashes))
    return replace(job, attempts=one_more(job.attempts))


@compiles(as_utc, *MYSQL_FAMILY)
def _as_utc(element: as_utc, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(current_time, *MYSQL_FAMILY)
@compiles(statement_time, *MYSQL_FAMILY)
def _time(_element: current_time | statement_time, _compiler: Any, **_options: Any) -> str:
    return "utc_timestamp(6)"


@compiles(later, *MYSQL_FAMILY)
def _later(element: later, compiler: Any, **options: Any) -> str:
    moment, delay = element.clauses
    return f"timestampadd(microsecond, {compiler.process(delay, **options)}, {compiler.process(moment, **options)})"


@compiles(latest, *MYSQL_FAMILY)
def _latest(element: latest, compiler: Any, **options: Any) -> str:
    # A bound datetime is text to the server; without the cast the two would be compared as text.
    moments = (f"cast({compiler.process(moment, **options)} AS datetime(6))" for moment in element.clauses)
    return f"greatest({', '.join(moments)})"
