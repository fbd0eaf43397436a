"""Statements that are given up because they waited too long for somebody's lock, by time-outs that an operator has set."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from tests.faults.accounts import Account
from tests.faults.conditions import Condition, go_through, meet_idle
from tests.faults.durations import LONGEST_PAUSE
from tests.faults.own_server import OwnServer
from tests.faults.scene import Scene

pytestmark = pytest.mark.long

OF_A_ROLE = {
    "statement_timeout": ("500ms", "due to statement timeout"),
    "lock_timeout": ("500ms", "due to lock timeout"),
}
OF_A_SERVER = {
    "mysql": {"lock_wait_timeout": ("1", "Lock wait timeout exceeded")},
    "mariadb": {
        "lock_wait_timeout": ("1", "Lock wait timeout exceeded"),
        "max_statement_time": ("0.5", "max_statement_time exceeded"),
    },
}
"""Settings by name: the value, and what the driver says."""
LONG_ENOUGH = 600
PATIENT = 2
"""Seconds."""


class Lock:
    """Somebody's lock on a whole table, as a migration takes it."""

    def __init__(self, engine: sa.Engine, kind: str, table: str) -> None:
        self._engine, self._kind, self._table = engine, kind, table
        self._connection: sa.Connection | None = None

    def take(self) -> None:
        """Keep everybody from the table; fail if somebody has it in use for too long."""
        self._connection = self._engine.connect()
        try:
            self._take(self._connection)
        except sa.exc.OperationalError:
            self._connection.close()
            raise

    def _take(self, connection: sa.Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{PATIENT}s'")
            connection.exec_driver_sql(f"LOCK TABLE proletarian.{self._table} IN ACCESS EXCLUSIVE MODE")
        else:
            for name in OF_A_SERVER[self._kind]:  # which are not meant for this connection
                connection.exec_driver_sql(f"SET SESSION {name} = {LONG_ENOUGH}")
            connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {PATIENT}")
            connection.exec_driver_sql(f"LOCK TABLES {self._table} WRITE")

    def release(self) -> None:
        """Let them."""
        assert self._connection is not None
        if self._engine.dialect.name != "postgresql":
            self._connection.exec_driver_sql("UNLOCK TABLES")
        self._connection.rollback()
        self._connection.close()


@contextmanager
def time_out(server: OwnServer, account: Account, name: str) -> Iterator[str]:
    """Set a time-out for new connections, and return what a statement says that it ends."""
    if account.is_postgresql:
        value, words = OF_A_ROLE[name]
        account.alter(f"SET {name} = '{value}'", "")
        yield words
        return
    value, words = OF_A_SERVER[server.kind][name]
    before = server.ask(f"SELECT @@GLOBAL.{name}")
    server.ask(f"SET GLOBAL {name} = {value}")
    try:
        yield words
    finally:
        server.ask(f"SET GLOBAL {name} = {before}")


def names_of(kind: str) -> list[str]:
    """Return the time-outs that a server has."""
    return list(OF_A_SERVER.get(kind, OF_A_ROLE))


def test_time_outs(own_scene: Scene, own_server: OwnServer) -> None:
    """Deadlock on finish and claim: while a migration has a table locked, statements that are given up are tried again.

    Of a role, or of the server. It says why; the handlers' effects come once, and no job has failed for it.
    """
    for name in names_of(own_server.kind):
        account = Account(own_server, own_scene)
        with time_out(own_server, account, name) as words:
            worker = own_scene.start(url=account.url, worker={"worker_threads": 2}, longest_pause=LONGEST_PAUSE)
            for table in ("archived_job", "job"):
                lock = Lock(own_scene.engine, own_server.kind, table)
                come_over = meet_idle if table == "job" else go_through
                come_over(own_scene, worker, Condition(f"{name}: {table} locked", lock.take, lock.release, (words,)))
            assert 0 == worker.stop()

    own_scene.check()
