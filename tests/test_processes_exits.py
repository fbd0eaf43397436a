"""`executor="process"` under the command: however the worker ends, so do the processes of its handlers, and nothing is false."""

import os
import signal
from pathlib import Path

import pytest

from proletarian_sa import create_all
from tests.command import Command
from tests.helpers import wait_until
from tests.observing import PATIENCE, add
from tests.queue_contents import archived, queued
from tests.servers.database import new_file
from tests.test_processes import begun

APP = "tests.programs.hostile_app"
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no process table in a folder")


@pytest.fixture
def database_of_one_kind(servers, tmp_path):
    """Return a database that is always there: how processes end is the same whatever the database."""
    with new_file("sqlite", servers.get("sqlite").version, tmp_path) as database:
        engine = database.create_engine()
        create_all(engine)
        yield database, engine


def is_running(pid: int) -> bool:
    """Return whether there is such a process; one that has ended may wait for its parent to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    """Return the processes of handlers that a process has begun."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (OSError, ValueError):
            continue
    return found


def test_the_worker_is_killed(database_of_one_kind, tmp_path):
    """Nobody is left to hear of an outcome: a busy process ends, and one that has nothing to do."""
    database, engine = database_of_one_kind
    add(engine, "busy", str(tmp_path / "sign"))
    with Command("--threads", "2", f"{APP}:make_worker", APP_DATABASE_URL=database.url_text) as command:
        pid = begun(tmp_path / "sign")
        both = children(command.process.pid)
        command.process.kill()
        command.process.wait()
        wait_until(lambda: not any(map(is_running, both)), timeout=PATIENCE)

    assert pid in both
    assert 2 == len(both)
    assert [1] == [row.attempts for row in queued(engine)]


def test_the_time_to_stop_is_over(database_of_one_kind, tmp_path):
    """A handler that is cut off by the end of the worker's process has not failed: its job runs again after its lease."""
    database, engine = database_of_one_kind
    add(engine, "busy", str(tmp_path / "sign"))
    with Command(f"{APP}:make_impatient_worker", APP_DATABASE_URL=database.url_text) as command:
        pid = begun(tmp_path / "sign")
        command.process.send_signal(signal.SIGTERM)
        code = command.code()

    assert 3 == code, command.output
    assert any("cut off: " in line for line in command.output)
    assert not is_running(pid)
    assert [] == archived(engine)
    assert [(1, True)] == [(row.attempts, row.claimed_by is not None) for row in queued(engine)]


@pytest.mark.parametrize("moment", ["starting", "started"])
def test_ctrl_c_reaches_all_processes(database_of_one_kind, moment):
    """A terminal sends Ctrl-C to the processes of handlers, too, while they start as well: the worker stops as usual, quietly."""
    database, _ = database_of_one_kind
    prefix = ["setsid", "--wait"]
    with Command(f"{APP}:make_worker", prefix=prefix, APP_DATABASE_URL=database.url_text) as command:
        if moment == "started":
            command.wait_for("worker started")
        (leader,) = wait_until(lambda: sessions(command.process.pid), timeout=PATIENCE)
        wait_until(lambda: children(leader), timeout=PATIENCE, pause=0.001)
        os.killpg(leader, signal.SIGINT)
        code = command.code()

    assert 0 == code, command.output
    assert [] == [line for line in command.output if "Traceback" in line or "KeyboardInterrupt" in line]


def sessions(pid: int) -> list[int]:
    """Return the process that `setsid` has become, or has started."""
    try:
        forked = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [one for one in [pid, *forked] if os.getsid(one) == one]
    except OSError:
        return []
