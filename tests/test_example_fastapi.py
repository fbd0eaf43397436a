"""The example with FastAPI: the README's commands do what it says, on each driver for asyncio."""

import json
import re
import shlex
import signal
import sys
import urllib.request

import pytest

from tests.command import COMMAND, ROOT, Command
from tests.helpers import wait_until
from tests.observing import PATIENCE
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
