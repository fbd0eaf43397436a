"""Held claims on MySQL and MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from proletarian_sa.dialects.held import HeldStatements
from proletarian_sa.dialects.two_steps import TwoSteps

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy.engine import Connection

    from proletarian_sa.claimed import Finish
    from proletarian_sa.dialects.base import Archived, Statements

LONGEST_WAIT: Final = 31_536_000  # seconds: the most that wait_timeout takes; on Windows it takes less and cuts off by itself
FOR_A_SESSION: Final = {
    "wait_timeout": LONGEST_WAIT,
    "idle_transaction_timeout": 0,  # MariaDB
    "idle_write_transaction_timeout": 0,
    "idle_readonly_transaction_timeout": 0,
}
FOR_ALL: Final = ("innodb_kill_idle_transaction", "kill_idle_transaction")  # Percona's: nobody can be excepted
CLUSTERS: Final = ("wsrep_on", "group_replication_group_name", "group_replication_single_primary_mode")
_LOCKS_ONE_NODE: Final = "so a row lock holds on one node only, and two nodes would run one job at a time. Use claim='leased'."


class MySQLHeld(HeldStatements):
    """The index is forced, as for leased claims, so that one row is locked and not all that were looked at."""

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

    def _build(self) -> None:
        self._two_steps = TwoSteps(self._statements, self.fence, self.after_claim())
        processes = sa.table("processlist", sa.column("id", sa.BigInteger), schema="information_schema")
        self._living = sa.select(processes.c.id).where(processes.c.id.in_(sa.bindparam("backends", expanding=True)))

    def archive(self, connection: Connection, finish: Finish) -> Archived:
        return self._two_steps.archive(connection, finish, self.key(finish.job))

    def living(self, connection: Connection, backends: Collection[int]) -> set[int]:
        return set(connection.execute(self._living, {"backends": list(backends)}).scalars())

    def why_not(self, connection: Connection) -> str | None:
        version, comment = connection.exec_driver_sql("SELECT version(), @@version_comment").one()
        return why_not(str(version), str(comment), _variables(connection, CLUSTERS))

    def keep_open(self, connection: Connection) -> dict[str, int]:
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
        kept = {name: value for name, value in _variables(connection, FOR_A_SESSION).items() if value != str(FOR_A_SESSION[name])}
        return left | kept


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
