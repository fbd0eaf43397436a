"""Defaults of a database that are other than usual: isolation, the format of the binary log, the SQL mode."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.faults.durations import LONGEST_PAUSE
from tests.faults.own_server import OwnServer
from tests.faults.scene import Scene

pytestmark = pytest.mark.long

JOBS = 40
WORKERS = 2
QUIET = {"JobTransactionDied", "JobRetried", "TransientErrorMet", "JobLeaseLost", "OutcomeNotRecorded"}
"""Events that would tell that something was undone."""
SQL_MODES = ("", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,ONLY_FULL_GROUP_BY,STRICT_ALL_TABLES")


@contextmanager
def globally(server: OwnServer, **values: str) -> Iterator[None]:
    """Set global variables of MySQL or MariaDB for new connections."""
    before = {name: server.ask(f"SELECT @@GLOBAL.{name}") for name in values}
    try:
        for name, value in values.items():
            server.ask(f"SET GLOBAL {name} = '{value}'")
        yield
    finally:
        for name, was in before.items():
            server.ask(f"SET GLOBAL {name} = '{was}'")


@contextmanager
def isolation(server: OwnServer, scene: Scene, level: str) -> Iterator[None]:
    """Give new connections this isolation level, whoever opens them."""
    if scene.engine.dialect.name == "postgresql":
        with scene.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            database = scene.engine.url.database
            connection.exec_driver_sql(f"ALTER DATABASE {database} SET default_transaction_isolation = '{level}'")
        yield
    else:
        variable = "tx_isolation" if server.kind == "mariadb" else "transaction_isolation"
        with globally(server, **{variable: level.upper().replace(" ", "-")}):
            yield


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_the_default_isolation(own_scene: Scene, own_server: OwnServer, level: str) -> None:
    """Serialization failure in the claim, stale snapshot: whatever the default, workers are READ COMMITTED, and nothing is undone.

    Two processes of four threads, forty jobs with effects, and as many that are enqueued while they run.
    """
    with isolation(own_server, own_scene, level):
        for _ in range(WORKERS):
            own_scene.start(worker={"worker_threads": 4, "lease": 60.0}, engine={"pool_size": 10}, longest_pause=LONGEST_PAUSE)
        own_scene.add(JOBS)
        for _ in range(JOBS):
            own_scene.add(1)
        recovered = own_scene.wait_for_end()
    met = [line for line in own_scene.told() if line["name"] in QUIET]

    assert [] == met
    own_scene.check()
    own_scene.measured(f"default isolation: {level}", recovered)


@pytest.mark.parametrize("mode", SQL_MODES, ids=["none", "all others"])
def test_sql_modes(own_scene: Scene, own_server: OwnServer, mode: str) -> None:
    """Text and errors do not depend on the server's SQL mode: jobs that succeed, are retried and fail are archived as they are."""
    if own_scene.engine.dialect.name == "postgresql":
        pytest.skip("no SQL modes")
    text = "'\"\\ %% \\' `a` \\\\ \n || \U0001f600"
    with globally(own_server, sql_mode=mode):
        own_scene.start(retries=1)
        ids = own_scene.add(2, text=text) + own_scene.add(1, text=text, ends="flaky")
        failed = own_scene.add(1, text=text, ends="failure")
        own_scene.wait_for_end()

    own_scene.check(failed=failed)
    assert len(ids) == 3


def test_a_binary_log_of_statements(own_scene: Scene, own_server: OwnServer) -> None:
    """Serialization failure in the claim: a log of statements, in which READ COMMITTED cannot be written, is named at start.

    The message says what to type; the worker does not start. With `mixed`, which turns to rows by itself, it works.
    """
    if own_scene.engine.dialect.name == "postgresql":
        pytest.skip("no binary log")
    if not own_server.ask("SELECT @@GLOBAL.log_bin"):
        own_server.restart("fast", *with_binary_log(own_server))
    with globally(own_server, binlog_format="STATEMENT"):
        refused = own_scene.start(ready=False)
        code = refused.wait()
    with globally(own_server, binlog_format="MIXED"):
        own_scene.start()
        own_scene.add(3)
        own_scene.wait_for_end()

    assert 1 == code
    assert "BINLOG_FORMAT = STATEMENT" in refused.text()
    assert "binlog_format = 'ROW'" in refused.text()
    own_scene.check()


def with_binary_log(server: OwnServer) -> list[str]:
    """Return the options of a server that keeps a binary log."""
    return [f"--log-bin={server.node.folder / 'binlog'}", "--server-id=1"]
