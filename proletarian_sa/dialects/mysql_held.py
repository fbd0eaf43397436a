"""Held claims on MySQL and MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from proletarian_sa.dialects.held import HeldStatements
from proletarian_sa.dialects.judgement import code
from proletarian_sa.dialects.two_steps import TwoSteps

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy.engine import Connection

    from proletarian_sa.claimed import Finish
    from proletarian_sa.dialects.base import Archived, Statements

LONGEST_WAIT: Final = 31_536_000  # seconds: the most that wait_timeout takes; on Windows it takes less and cuts off by itself
IDLE_TIMEOUTS: Final = {
    "wait_timeout": LONGEST_WAIT,
    "idle_transaction_timeout": 0,  # MariaDB
    "idle_write_transaction_timeout": 0,
    "idle_readonly_transaction_timeout": 0,
}
# MariaDB's default: with more of it a claim may collect due jobs first, and then lock them all at once.
FOR_A_SESSION: Final = {**IDLE_TIMEOUTS, "join_cache_level": 2}
NOT_SHOWN: Final = 3854  # MySQL lists no session while any of them runs a statement with text beyond utf8mb3, such as an emoji
FOR_ALL: Final = ("innodb_kill_idle_transaction", "kill_idle_transaction")  # Percona's: nobody can be excepted
CLUSTERS: Final = ("wsrep_on", "group_replication_group_name", "group_replication_single_primary_mode")
TRIES: Final = 10  # each lost to a commit in the microseconds between a look at a job and its lock
_LOCKS_ONE_NODE: Final = "so a row lock holds on one node only, and two nodes would run one job at a time. Use claim='leased'."


class MySQLHeld(HeldStatements):
    """The index is forced, as for leased claims, so that one row is locked and not all that were looked at.

    MariaDB (10.11, https://jira.mariadb.org/browse/MDEV-14589) keeps the locks of what it has read by a secondary index, though it
    does not return it: here of all leased jobs that are due before the one it takes. By primary key it keeps only what it returns.
    So there a claim reads the index without locks (FOR UPDATE does not reach into a derived table), tries to lock job by job by its
    key, and ends with the first that nobody has locked.
    """

    def __init__(self, statements: Statements, queue_index: str) -> None:
        self._queue_index = queue_index
        super().__init__(statements)

    def _same(self, column: sa.Column[Any], value: sa.BindParameter[Any]) -> sa.ColumnElement[bool]:
        # SQLAlchemy (2.0 and 2.1) renders is_not_distinct_from() with the table's name where the statement has an alias for it.
        return column.op("<=>", is_comparison=True)(value)

    def _hint(self, claim: sa.Select[Any]) -> sa.Select[Any]:
        return claim.with_hint(self._statements.job, f"FORCE INDEX ({self._queue_index})")

    def _backend(self) -> sa.ColumnElement[int]:
        return sa.func.connection_id()

    def _look_then_lock(self) -> sa.Select[Any]:
        """Return the claim for MariaDB: the derived table is merged, so it is read no further than to the job that is taken."""
        statements, job = self._statements, self._statements.job
        due = self._hint(sa.select(job.c.job_id, job.c.process_at)).where(statements.due_since).subquery("due")
        return (
            sa.select(*statements.read, statements.job.c.claimed_by, self._backend())
            .prefix_with("STRAIGHT_JOIN")
            .join_from(due, job, job.c.job_id == due.c.job_id)
            .with_hint(job, "FORCE INDEX (PRIMARY)")
            .where(statements.due)  # again, of what is locked
            .order_by(due.c.process_at)
            .limit(sa.bindparam("limit", type_=sa.Integer))
            .with_for_update(skip_locked=True)
        )

    def _lock(self, connection: Connection, wanted: Mapping[str, Any]) -> Sequence[Any]:
        if not is_mariadb(connection):
            return super()._lock(connection, wanted)
        for _ in range(TRIES - 1):
            try:
                return connection.execute(self._claim_on_mariadb, wanted).all()
            except exc.DBAPIError as error:
                # innodb_snapshot_isolation, the default since 11.6.2: "Record has changed since last read". Nothing was held yet.
                if not self._statements.is_lost_race(error):
                    raise
        return connection.execute(self._claim_on_mariadb, wanted).all()

    def _build(self) -> None:
        self._claim_on_mariadb = self._look_then_lock()
        self._two_steps = TwoSteps(self._statements, self.fence, self.after_claim())
        processes = sa.table("processlist", sa.column("id", sa.BigInteger), schema="information_schema")
        self._living = sa.select(processes.c.id).where(processes.c.id.in_(sa.bindparam("backends", expanding=True)))

    def archive(self, connection: Connection, finish: Finish) -> Archived:
        return self._two_steps.archive(connection, finish, self.key(finish.job))

    def living(self, connection: Connection, backends: Collection[int]) -> set[int]:
        try:
            return set(connection.execute(self._living, {"backends": list(backends)}).scalars())
        except exc.DBAPIError as error:
            if code(error.orig) != NOT_SHOWN:
                raise
            return set(backends)  # not known this time

    def why_not(self, connection: Connection) -> str | None:
        version, comment = connection.exec_driver_sql("SELECT version(), @@version_comment").one()
        return why_not(str(version), str(comment), _variables(connection, CLUSTERS))

    def keep_open(self, connection: Connection, *, lasting: bool) -> dict[str, int]:
        before = {name: int(value) for name, value in _variables(connection, FOR_A_SESSION).items() if value.isdigit()}
        try:
            self._set(connection, {name: FOR_A_SESSION[name] for name in before})
        except exc.DBAPIError as error:
            if error.connection_invalidated:
                raise
            connection.rollback()  # something before the server refuses it: none is set, and `idle_timeouts` names them
            return {}
        return before

    def let_go(self, connection: Connection, before: Mapping[str, int]) -> None:
        self._set(connection, before)

    @staticmethod
    def _set(connection: Connection, values: Mapping[str, int]) -> None:
        if values:
            connection.exec_driver_sql("SET " + ", ".join(f"SESSION {name} = {value}" for name, value in values.items()))
        connection.commit()

    def idle_timeouts(self, connection: Connection) -> dict[str, str]:
        left = {name: value for name, value in _variables(connection, FOR_ALL).items() if value != "0"}
        kept = {name: value for name, value in _variables(connection, IDLE_TIMEOUTS).items() if value != str(IDLE_TIMEOUTS[name])}
        return left | kept


def is_mariadb(connection: Connection) -> bool:
    """Return whether the server is a MariaDB: a mysql:// URL may lead to one, and the dialect knows after the first connection."""
    return bool(getattr(connection.dialect, "is_mariadb", False))


def why_not(version: str, comment: str, variables: Mapping[str, str]) -> str | None:
    """Return why row locks cannot hold claims on a server that says this of itself."""
    named = f"{version} {comment}".lower()
    for product in ("TiDB", "Dolt", "Vitess"):
        if product.lower() in named:
            return f"it is {product}, whose SKIP LOCKED is no sure claim. Use claim='leased'."
    if variables.get("wsrep_on", "OFF").upper() in {"ON", "1"}:
        return f"it is a node of a Galera cluster (wsrep_on=ON), {_LOCKS_ONE_NODE}"
    if variables.get("group_replication_group_name") and variables.get("group_replication_single_primary_mode") == "OFF":
        return f"it is a member of a group with several primaries (group_replication_single_primary_mode=OFF), {_LOCKS_ONE_NODE}"
    return None


def _variables(connection: Connection, names: Collection[str]) -> dict[str, str]:
    listed = ", ".join(f"'{name}'" for name in names)
    rows = connection.exec_driver_sql(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({listed})")
    return {str(name): str(value) for name, value in rows}
