"""Programs that end while their worker runs: within the limit, without a word of the threads, and without a false record."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from proletarian_sa import create_all
from tests.command import APP, Command
from tests.helpers import wait_until
from tests.observing import add
from tests.queue_contents import archived, queued
from tests.servers.database import new_file
from tests.test_cli_process import can_be_process_1, only_child

ROOT = Path(__file__).parents[2]
LIMIT = 60.0
"""Seconds that a process may take on a busy machine to import, start, and end."""


class Program:
    """A running program, killed at the end of the test if it is still there."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.process.kill()
        self.process.communicate()

    def end(self):
        """Wait for the end; return exit code, output and errors."""
        out, error = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, out, error


def exits(url, job_type, ending, *more):
    """Start the program that ends in this way."""
    return Program("tests.programs.exits", url, job_type, ending, *more)


def errors_in(text):
    """Return the first words of each traceback's end, and whatever else the interpreter complains about."""
    lines = [line for line in text.splitlines() if line and not line.startswith(" ") and not line.startswith("Traceback")]
    return [line for line in lines if "rror" in line or "xception" in line or "ignored" in line]


ENDINGS = {"returns": 0, "raises": 1, "exits": 5, "stops": 0}
WAYS = [
    ("none", "returns"),
    ("none", "raises"),
    ("none", "exits"),
    ("endless", "returns"),
    ("endless", "raises"),
    ("endless", "stops"),
    ("polite", "returns"),
    ("pool", "returns"),
]


@pytest.fixture
def database_of_one_kind(request, servers, tmp_path):
    """Return the database that is always there: what an interpreter does at its end is the same whatever the database."""
    with new_file("sqlite", servers.get("sqlite").version, tmp_path) as database:
        engine = database.create_engine()
        create_all(engine)
        yield database, engine


@pytest.mark.parametrize(("job_type", "ending"), WAYS)
def test_a_program_that_ends_while_its_worker_runs(database_of_one_kind, job_type, ending):
    """Interpreter exit without stop, handler outlives the stop: it ends in time, in its own way; no job has a false outcome."""
    database, engine = database_of_one_kind
    if job_type != "none":
        add(engine, job_type)
    with exits(database.url_text, job_type, ending) as program:
        code, out, error = program.end()
    rows = [(row.attempts, row.claimed_by is not None) for row in queued(engine)]
    done = [(row.status, row.attempts) for row in archived(engine)]

    assert ENDINGS[ending] == code, error
    assert ["LookupError: main has a bug"] * (ending == "raises") == errors_in(error), error
    assert ("['endless']\n" if ending == "stops" else "") == out
    # Asked to stop before the interpreter closes its pools of threads, a handler that uses one can come to its end.
    assert {"none": [], "endless": [(1, True)], "polite": [(0, False)], "pool": []}[job_type] == rows
    assert {"pool": [("success", 1)]}.get(job_type, []) == done


def test_what_an_endless_job_has_written_is_rolled_back(database, queue_engine):
    """Interpreter exit without stop: the writes of a job that is cut off are undone, and the job runs again after its lease."""
    add(queue_engine, "writes")
    with exits(database.url_text, "writes", "returns") as program:
        code, _, error = program.end()

    assert (0, []) == (code, errors_in(error)), error
    assert [("writes", 1, True)] == [(row.job_type, row.attempts, row.claimed_by is not None) for row in queued(queue_engine)]
    assert [] == archived(queue_engine)


class Door:
    """A way to a server that can be shut."""

    def __init__(self, url):
        self._target = (url.host, url.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = url.set(host="127.0.0.1", port=self._listener.getsockname()[1])
        self._open = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                other = socket.create_connection(self._target)
                self._open += [one, other]
                for source, target in ((one, other), (other, one)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source, target):
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def shut(self):
        """Cut all connections, and refuse new ones."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def test_the_database_is_down_when_the_program_ends(database, queue_engine, tmp_path):
    """Interpreter exit without stop: also with the database down the process ends in time, without a traceback of its threads."""
    database.require("server")
    door, sign = Door(database.url), tmp_path / "end"
    add(queue_engine, "endless")
    with exits(door.url.render_as_string(hide_password=False), "endless", "waits for a file", str(sign)) as program:
        wait_until(sign.with_suffix(".begun").exists, timeout=LIMIT)  # the row says so before the worker has heard of it
        door.shut()
        sign.touch()
        code, _, error = program.end()

    assert 0 == code, error
    assert "Exception in thread" not in error
    assert "Exception ignored" not in error
    assert "Fatal Python error" not in error
    assert [1] == [row.attempts for row in queued(queue_engine)]


TEST_OF_AN_APPLICATION = """
from tests.programs import exits

def test_something():
    worker = exits.start({url!r})
    exits.begun.wait()
    assert worker.is_running
"""


def test_the_end_of_a_test_run(database_of_one_kind, tmp_path):
    """Interpreter exit without stop: a test run of an application's that forgets to stop its worker ends with its own exit code."""
    database, engine = database_of_one_kind
    add(engine, "polite")
    file = tmp_path / "test_application.py"
    file.write_text(TEST_OF_AN_APPLICATION.format(url=database.url_text))
    with Program("pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path), str(file)) as program:
        code, out, error = program.end()

    assert (0, "") == (code, error), out
    assert "1 passed" in out
    assert "Exception" not in out
    assert [0] == [row.attempts for row in queued(engine)]


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no PID namespaces")
def test_an_idle_process_1_ends_at_once(database_of_one_kind):
    """PID 1 in a container: a worker without a job ends within the ten seconds that a container is given."""
    if not can_be_process_1():
        pytest.skip("no PID namespaces")
    database, _ = database_of_one_kind
    with Command(f"{APP}:make_worker", prefix=["unshare", "--pid", "--fork", "--mount-proc"], APP_URL=database.url_text) as command:
        command.wait_for("worker started")
        began = time.monotonic()
        os.kill(only_child(command.process.pid), signal.SIGTERM)

        assert 0 == command.code(), command.output
        assert time.monotonic() - began < 10
