"""Databases that refuse for a while: connections, passwords, writes."""

from collections.abc import Callable

import pytest

from tests.faults.accounts import PASSWORD, Account, Crowd, Limit
from tests.faults.conditions import Condition, go_through
from tests.faults.durations import LONGEST_PAUSE
from tests.faults.own_server import OwnServer
from tests.faults.scene import Scene
from tests.servers.database import Database

pytestmark = pytest.mark.long


def refusals(server: OwnServer, scene: Scene, account: Account) -> list[Condition]:
    """Return the ways in which a server refuses a user's connections; those that are there have been ended."""
    crowd, limit = Crowd(server, scene, account), Limit(account)

    def after(change: Callable[[], None]) -> None:
        change()
        account.end_sessions()

    return [
        Condition(
            "too many connections", crowd.come, crowd.leave, ("too many clients", "Too many connections", "remaining connection")
        ),
        Condition(
            "too many connections of one user", limit.come, limit.leave, ("too many connections for role", "max_user_connections")
        ),
        Condition(
            "password changed",
            lambda: after(lambda: account.change_password("second")),
            lambda: account.change_password(PASSWORD),
            ("password authentication failed", "using password: YES"),
        ),
        Condition(
            "account locked",
            lambda: after(lambda: account.alter("NOLOGIN", "ACCOUNT LOCK")),
            lambda: account.alter("LOGIN", "ACCOUNT UNLOCK"),
            ("is not permitted to log in", "account is locked", "Account is locked"),
        ),
    ]


def test_connections_are_refused(own_scene: Scene, own_server: OwnServer) -> None:
    """Cause hidden, spin and log flood: while a server refuses connections the worker waits, says why, and goes on by itself."""
    account = Account(own_server, own_scene)
    worker = own_scene.start(url=account.url, worker={"worker_threads": 2}, longest_pause=LONGEST_PAUSE)
    for condition in refusals(own_server, own_scene, account):
        go_through(own_scene, worker, condition)

    own_scene.check()
    own_scene.check_alive()


def read_only(server: OwnServer, scene: Scene) -> Condition:
    """Return how a server stops to take writes: PostgreSQL becomes a standby, and is promoted; others are told to."""
    if scene.engine.dialect.name != "postgresql":
        return Condition(
            "read-only",
            lambda: server.ask("SET GLOBAL read_only = 1"),
            lambda: server.ask("SET GLOBAL read_only = 0"),
            ("--read-only option",),
        )

    def demote() -> None:
        server.stop()
        (server.node.folder / "data" / "standby.signal").touch()
        server.start()

    return Condition("standby, promoted", demote, lambda: server.ask("SELECT pg_promote()"), ("The server is a standby",))


def test_read_only(own_scene: Scene, own_server: OwnServer) -> None:
    """Read replica: a server that becomes read-only is named and waited for; what a handler wanted to write is not its failure.

    Nor does a worker that starts then end.
    """
    account = Account(own_server, own_scene)
    worker = own_scene.start(url=account.url, worker={"worker_threads": 2}, longest_pause=LONGEST_PAUSE)
    go_through(own_scene, worker, read_only(own_server, own_scene))

    own_scene.check()
    own_scene.check_alive()


PRAGMAS = {
    "read-only": ("query_only", 1, 0, "readonly database"),
    "disk full": ("max_page_count", 1, 2**30, "database or disk is full"),
}
"""What SQLite is told, and then; the smallest of these sizes is that of the file as it is."""


@pytest.mark.parametrize("fault", PRAGMAS)
def test_a_file_that_takes_no_writes(scene: Scene, database: Database, fault: str) -> None:
    """Read replica, disk full: a file that takes no writes is named and waited for; no job has failed for it, or is lost."""
    if database.server:
        pytest.skip("no file")
    name, worst, best, words = PRAGMAS[fault]
    file = scene.folder / "statements"
    condition = Condition(
        fault, lambda: file.write_text(f"PRAGMA {name} = {worst}"), lambda: file.write_text(f"PRAGMA {name} = {best}"), (words,)
    )
    worker = scene.start(worker={"worker_threads": 2}, longest_pause=LONGEST_PAUSE, statements=str(file))
    go_through(scene, worker, condition, padding="x" * 20_000)

    scene.check()
    scene.check_alive()


def test_a_password_that_is_fetched(own_scene: Scene, own_server: OwnServer) -> None:
    """Cause hidden: where the application fetches the password for each connection, a new one costs no job and no warning."""
    account = Account(own_server, own_scene)
    password = own_scene.folder / "password"
    password.write_text(PASSWORD)
    worker = own_scene.start(url=account.url, password=str(password))
    own_scene.wait_for_end(own_scene.add(3))
    lines = len(worker.lines())
    password.write_text("second")
    account.change_password("second")
    account.end_sessions()
    own_scene.wait_for_end(own_scene.add(3))

    own_scene.check()
    assert [] == [line for line in worker.lines()[lines:] if "password" in line or "Access denied" in line]
