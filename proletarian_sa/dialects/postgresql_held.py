"""Held claims on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql

from proletarian_sa.dialects.base import Archived
from proletarian_sa.dialects.held import HeldStatements
from proletarian_sa.dialects.hot import HotStatement, commit_and_begin, look_for_watchers
from proletarian_sa.dialects.planner import IN_ORDER, is_direct, is_settled, remember, settings, settle, unsettle
from proletarian_sa.types import current_time

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy.engine import Connection

    from proletarian_sa.claimed import Finish

IDLE_TIMEOUT: Final = {"idle_in_transaction_session_timeout": "0"}
TRANSACTION_TIMEOUT: Final = {"transaction_timeout": "0"}
HAS_TRANSACTION_TIMEOUT: Final = (17,)


class PostgreSQLHeld(HeldStatements):
    """The planner's settings and the time-outs are the session's, or each transaction's where a pooler could mix them up."""

    def _backend(self) -> sa.ColumnElement[int]:
        return sa.func.pg_backend_pid()

    def _build(self) -> None:
        self._settle = settings(IN_ORDER | IDLE_TIMEOUT)
        self._settle_17 = settings(IN_ORDER | IDLE_TIMEOUT | TRANSACTION_TIMEOUT)
        self._hot_claim = HotStatement(self._claim)
        self._build_archive()
        backends = sa.table("pg_stat_activity", sa.column("pid", sa.Integer), schema="pg_catalog")
        given = sa.bindparam("backends", type_=postgresql.ARRAY(sa.Integer))
        self._living = sa.select(backends.c.pid).where(backends.c.pid == sa.any_(given))

    def _build_archive(self) -> None:
        job, archived_job = self._statements.job, self._statements.archived_job
        gone = sa.delete(job).where(self.fence).returning(*job.c).cte("gone")
        archived: dict[str, sa.ColumnElement[Any]] = {
            **{column.name: gone.c[column.name] for column in archived_job.c if column.name in job.c},
            **self.after_claim(),
            "status": sa.bindparam("outcome", type_=sa.String()),
            "finished_at": self._statements.clock(current_time()),
            "last_error": sa.func.coalesce(sa.bindparam("error", type_=job.c.last_error.type), gone.c.last_error),
        }
        insert = postgresql.insert(archived_job).from_select(list(archived), sa.select(*archived.values()).select_from(gone))
        self._archive = HotStatement(
            insert.on_conflict_do_update(
                index_elements=["job_id"], set_={name: insert.excluded[name] for name in archived if name != "job_id"}
            ).returning(sa.literal_column("xmax <> 0"))
        )

    def begin(self, connection: Connection) -> None:
        if not is_settled(connection):
            connection.execute(self._settle_17 if _has_transaction_timeout(connection) else self._settle)

    def commit(self, connection: Connection) -> None:
        if not (is_settled(connection) and commit_and_begin(connection, "COMMIT AND CHAIN")):
            connection.commit()

    def _lock(self, connection: Connection, wanted: Mapping[str, Any]) -> Sequence[Any]:
        look_for_watchers(connection)
        return self._hot_claim.rows(connection, wanted)

    def keep_open(self, connection: Connection, *, lasting: bool) -> dict[str, str] | None:
        """Remember the planner's settings for `lend`; set ours, if they may stay for more than one transaction."""
        remember(connection)
        if not lasting or not is_direct(connection):
            return None
        return settle(connection, IN_ORDER | IDLE_TIMEOUT | (TRANSACTION_TIMEOUT if _has_transaction_timeout(connection) else {}))

    def let_go(self, connection: Connection, before: Mapping[str, str]) -> None:
        unsettle(connection, before)

    def archive(self, connection: Connection, finish: Finish) -> Archived:
        values = {
            **self.key(finish.job),
            **self._statements.times(),
            "outcome": finish.status,
            "error": finish.last_error,
        }
        rows = self._archive.rows(connection, values)
        if not rows:
            return Archived.LOST
        return Archived.REPLACED if rows[0][0] else Archived.DONE

    def living(self, connection: Connection, backends: Collection[int]) -> set[int]:
        return set(connection.execute(self._living, {"backends": list(backends)}).scalars())

    def why_not(self, connection: Connection) -> str | None:
        return None  # whether SKIP LOCKED locks is tried

    def idle_timeouts(self, connection: Connection) -> dict[str, str]:
        names = [*IDLE_TIMEOUT, *(TRANSACTION_TIMEOUT if _has_transaction_timeout(connection) else ())]
        try:
            connection.execute(settings(dict.fromkeys(names, "0")))
        except exc.DBAPIError:
            connection.rollback()
        rows = connection.execute(sa.select(*(sa.func.current_setting(name) for name in names))).one()
        return {name: value for name, value in zip(names, rows, strict=True) if value != "0"}


def _has_transaction_timeout(connection: Connection) -> bool:
    return (connection.dialect.server_version_info or ()) >= HAS_TRANSACTION_TIMEOUT
