"""The example with FastAPI: the README's commands do what it says, on each driver for asyncio; so does a server that reloads it."""

import json
import os
import re
import shlex
import signal
import sys
import urllib.request
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.command import COMMAND, ROOT, START, Command
from tests.helpers import wait_until
from tests.observing import PATIENCE, add
from tests.queue_contents import archived
from tests.servers.kinds import ASYNC_KINDS

pytestmark = pytest.mark.long

README = ROOT / "examples" / "fastapi_async" / "README.md"
BLOCKS = re.findall(r"(?:^ {4}.+\n)+", README.read_text(), re.MULTILINE)
(SERVE, POST, GET), PRINTED, ANSWERS, (SERVE_ALONE, WORK) = ([line.strip() for line in block.splitlines()] for block in BLOCKS)


@pytest.fixture(params=ASYNC_KINDS)
def database_kind(request):
    """Run on each driver for asyncio."""
    return request.param


@pytest.fixture
def folder(tmp_path, monkeypatch, database):
    """Return an empty folder; with the database as a setting, but for SQLite, which is used where there is none."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    if database.server:
        monkeypatch.setenv("DATABASE_URL", database.async_url.render_as_string(hide_password=False))
    (tmp_path / "application").mkdir()
    return tmp_path / "application"


class Typed(Command):
    """What somebody types, in a folder, with words at the end."""

    program = ()

    def __init__(self, line, folder, *more):
        words = shlex.split(line)
        settings = dict(word.split("=", 1) for word in words if re.match(r"[A-Z]+=", word))
        programs = {"python": sys.executable, "proletarian-sa": str(COMMAND)}
        command = [programs.get(word, word) for word in words if word.partition("=")[0] not in settings]
        super().__init__(*command, *more, cwd=folder, PYTHONPATH=str(ROOT), **settings)


def ask(line, address):
    """Send the request that `curl` would."""
    *options, url = shlex.split(line)[1:]
    method = options[options.index("-X") + 1] if options else "GET"
    request = urllib.request.Request(url.replace("http://127.0.0.1:8000", address), method=method)  # noqa: S310 - on loopback
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 - likewise
        return answer.read().decode()


def serve(line, folder):
    """Start the application on a port that is free; return it and its address."""
    application = Typed(line, folder, "--port", "0")
    found = re.search(r"http://[\d.]+:\d+", application.wait_for("Uvicorn running on"))
    return application, found.group()


def test_the_worker_in_the_lifespan(folder, database):
    """Requests are answered and the job is run in one process, which ends cleanly with its worker."""
    application, address = serve(SERVE, folder)
    with application:
        number = ask(POST, address)
        application.wait_for(PRINTED[0])
        wait_until(lambda: json.loads(ANSWERS[1]) == json.loads(ask(GET, address)), timeout=PATIENCE)
        last = ask(GET, address)
        application.process.send_signal(signal.SIGTERM)
        application.code()

    assert ANSWERS == [number, last]
    assert any("Application shutdown complete" in line for line in application.output)
    assert ([] if database.server else ["fastapi_async.db"]) == [path.name for path in folder.iterdir()]
    assert [] == [line for line in application.output if "Traceback" in line or "Exception ignored" in line]


@pytest.mark.parametrize("database_kind", ["aiosqlite", "asyncpg"], indirect=True)
def test_the_worker_apart(folder):
    """The same application without a worker leaves the job to the command."""
    application, address = serve(SERVE_ALONE, folder)
    with application, Typed(WORK, folder) as worker:
        ask(POST, address)
        worker.wait_for(PRINTED[0])
        wait_until(lambda: ask(GET, address) == ANSWERS[1], timeout=PATIENCE)
        worker.process.terminate()
        assert 0 == worker.code(), worker.output
        application.process.terminate()
        application.code()

    assert PRINTED[0] not in application.output


PAUSE = 0.5  # seconds between two changes of a file's time
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


def is_alive(pid):
    """Return whether a process runs, and is not only waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def descendants(pid):
    """Return the processes that a process has started, and those that these have."""
    found = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    return [*found, *(further for child in found for further in descendants(child))]


def change(file, text, application):
    """Change a file so that the server sees it: it looks at times only, and not before it has looked once."""
    file.write_text(text)
    later = file.stat().st_mtime

    def seen():
        nonlocal later
        later += 1
        os.utime(file, (later, later))
        return any("Reloading" in line for line in application.output)

    wait_until(seen, START, pause=PAUSE)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no list of processes")
@pytest.mark.parametrize("database_kind", ["aiosqlite"], indirect=True)
@pytest.mark.parametrize("ending", ["SIGTERM", "Ctrl-C"])
def test_a_server_that_reloads(folder, ending):
    """After `--reload` one generation works, with the new code; the old one is gone, and its running job is done by the new one."""
    source = (ROOT / "examples" / "fastapi_async" / "app.py").read_text() + LONG
    (folder / "app.py").write_text(source)
    engine = sa.create_engine(f"sqlite:///{folder}/fastapi_async.db")
    application, address = serve("python -m uvicorn app:app --reload", folder)
    with application:
        old = int(application.wait_for("Started server process [").split("[")[1].split("]")[0])
        application.wait_for("Application startup complete")
        ask(POST, address)
        application.wait_for(PRINTED[0])
        add(engine, "long", queue="fastapi_async")
        application.wait_for("long begun")

        change(folder / "app.py", source.replace("CUT_OFF = True", "CUT_OFF = False").replace("welcome, ", "hello, "), application)
        new = int(application.wait_for("Started server process [").split("[")[1].split("]")[0])
        application.wait_for("long ended")
        before = len(application.output)
        for _ in range(5):
            ask(POST, address)
        wait_until(lambda: len(archived(engine)) == 7, PATIENCE)
        wait_until(lambda: json.loads(ask(GET, address)) == {"Ada": True}, PATIENCE)
        assert not is_alive(old)
        assert is_alive(new)

        processes = descendants(application.process.pid)
        assert new in processes
        if ending == "Ctrl-C":  # a terminal gives it to all
            os.kill(new, signal.SIGINT)
        application.process.send_signal(signal.SIGINT if ending == "Ctrl-C" else signal.SIGTERM)
        application.code()
        wait_until(lambda: not any(is_alive(pid) for pid in processes), PATIENCE)

    engine.dispose()
    greetings = [line for line in application.output[before:] if line.endswith(", Ada")]
    assert ["hello, Ada"] * 5 == greetings
    assert 2 == sum("Application shutdown complete" in line for line in application.output)
    assert 2 == application.output.count("long begun")
    assert [] == [line for line in application.output if "Traceback" in line]
