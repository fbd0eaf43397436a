"""A server that reloads the example with FastAPI: one generation works, and every old process ends."""

import json
import os
import signal
import socket
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.command import ROOT
from tests.helpers import wait_until
from tests.observing import PATIENCE, add
from tests.queue_contents import archived
from tests.test_example_fastapi import GET, POST, PRINTED, ask, serve
from tests.test_processes_exits import is_running

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no list of processes"),
]
LONG = """

@jobs.handler("long")
async def long(_payload: object, job: AsyncRunningJob) -> None:
    print("long begun")
    while CUT_OFF:
        if await job.wait(60):
            from proletarian_sa import JobInterrupted
            raise JobInterrupted
    print("long ended")


CUT_OFF = True
"""


def descendants(pid):
    """Return the processes that a process has started, and those that these have."""
    found = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    return [*found, *(further for child in found for further in descendants(child))]


def replace(file, text):
    """Let a file have new contents at once, as editors do."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def listens(address):
    """Return whether somebody answers there."""
    try:
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), PATIENCE):
            return True
    except ConnectionRefusedError:
        return False


@contextmanager
def ended_with(application):
    """Let no process outlive a test that has failed: one that is started by another has its standard output."""
    try:
        yield
    finally:
        for pid in descendants(application.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty folder; its database is SQLite, in a file of its own."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    (tmp_path / "application").mkdir()
    return tmp_path / "application"


@pytest.mark.parametrize("ending", ["SIGTERM", "Ctrl-C"])
def test_a_server_that_reloads(folder, ending):
    """After `--reload` one generation works, with the new code; the old one is gone, and its running job is done by the new one."""
    source = (ROOT / "examples" / "fastapi_async" / "app.py").read_text() + LONG
    (folder / "app.py").write_text(source)
    engine = sa.create_engine(f"sqlite:///{folder}/fastapi_async.db")
    application, address = serve("python -m uvicorn app:app --reload", folder)
    with application, ended_with(application):
        old = int(application.wait_for("Started server process [").split("[")[1].split("]")[0])
        wait_until(lambda: listens(address), PATIENCE)  # later than it says that it has started
        ask(POST, address)
        application.wait_for(PRINTED[0])
        add(engine, "long", queue="fastapi_async")
        application.wait_for("long begun")

        replace(folder / "app.py", source.replace("CUT_OFF = True", "CUT_OFF = False").replace("welcome, ", "hello, "))
        new = int(application.wait_for("Started server process [").split("[")[1].split("]")[0])
        application.wait_for("long ended")
        before = len(application.output)
        for _ in range(5):
            ask(POST, address)
        wait_until(lambda: len(archived(engine)) == 7, PATIENCE)
        wait_until(lambda: json.loads(ask(GET, address)) == {"Ada": True}, PATIENCE)
        assert not is_running(old)
        assert is_running(new)

        processes = descendants(application.process.pid)
        assert new in processes
        if ending == "Ctrl-C":  # a terminal gives it to all
            os.kill(new, signal.SIGINT)
        application.process.send_signal(signal.SIGINT if ending == "Ctrl-C" else signal.SIGTERM)
        application.code()
        wait_until(lambda: not any(is_running(pid) for pid in processes), PATIENCE)

    engine.dispose()
    greetings = [line for line in application.output[before:] if line.endswith(", Ada")]
    assert ["hello, Ada"] * 5 == greetings
    assert 2 == sum("Application shutdown complete" in line for line in application.output)
    assert 2 == application.output.count("long begun")
    assert [] == [line for line in application.output if "Traceback" in line]
