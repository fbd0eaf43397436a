"""The demo: it adds up on every database, leaves nothing there, and says so when something does not add up."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from examples.demo import run as demo
from examples.demo import worker_process
from examples.demo.app import Base, User
from examples.demo.mail_server import MailServer
from proletarian_sa import Job, create_all, process_next_job
from tests.demo_table import TABLE, everything, read_table
from tests.helpers import wait_until
from tests.servers.database import Database

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
PATIENCE = 120.0
"""Seconds that a run may take on a busy machine; it gives up by itself before."""


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demo as `make demo` does; a run that hangs is asked to stop, so that it takes its worker along."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo.run", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, error = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, error = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def test_demo_adds_up_and_leaves_nothing(database: Database, engine: sa.Engine) -> None:
    """In an empty database every number is as expected, the exit code is 0, and afterwards the database is empty again."""
    result = run_demo(database.url_text)

    assert (0, "") == (result.returncode, result.stderr), result.stdout
    assert TABLE == read_table(result.stdout)
    assert result.stdout.endswith("The numbers add up.\n")
    assert [] == sa.inspect(engine).get_table_names()
    assert not sa.inspect(engine).has_schema("proletarian")


def test_demo_disturbs_nobody(database: Database, queue_engine: sa.Engine) -> None:
    """In a database that is in use it runs beside what is there: other people's users, jobs and archive stay as they were."""
    Base.metadata.create_all(queue_engine)
    with Session(queue_engine) as session, session.begin():
        session.add(User(name="Ada", email="ada@elsewhere.example"))
        session.add_all([Job(job_type="other", payload="done"), Job(job_type="other", payload="waits", queue="other")])
    process_next_job(queue_engine, lambda _job_type, _payload: None)
    before = everything(queue_engine)
    result = run_demo(database.url_text)

    assert (0, "") == (result.returncode, result.stderr), result.stdout
    assert TABLE == read_table(result.stdout)
    assert {"users": {"ada@elsewhere.example"}, "queued": {"'waits'"}, "archived": {"'done'"}} == before
    assert before == everything(queue_engine)


def test_demo_needs_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a URL it makes an SQLite file of its own, whatever the environment says; where no terminal is it prints lines."""
    monkeypatch.setenv("DATABASE_URL", "foo")
    result = run_demo()
    mails = [int(number) for number in re.findall(r"(\d+) mails received", result.stdout)]

    assert (0, "") == (result.returncode, result.stderr), result.stdout
    assert TABLE == read_table(result.stdout)
    assert "\x1b" not in result.stdout
    assert 25 == mails[-1]
    assert sorted(mails) == mails


def test_demo_moves_on_a_terminal() -> None:
    """On a terminal bars move while it runs, and the table comes last."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "examples.demo.run"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    )
    os.close(theirs)
    watchdog = threading.Timer(PATIENCE, process.terminate)
    watchdog.start()
    printed = read_to_the_end(ours)
    watchdog.cancel()
    text = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", printed)
    bars = re.findall(r"mails received +\S* *(\d+)/25", text)

    assert 0 == process.wait(), text
    assert "\x1b[1A" in printed  # the cursor went up, to draw again
    assert "25" == bars[-1]
    assert TABLE == read_table(text.replace("\r", ""))


def read_to_the_end(terminal: int) -> str:
    """Return all that a process prints on its terminal; Linux reports its end as an error."""
    read = bytearray()
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:
            chunk = b""
        if not chunk:
            os.close(terminal)
            return read.decode()
        read += chunk


def test_demo_stops_tidily(database: Database, engine: sa.Engine) -> None:
    """Asked to stop in the middle, it stops its worker and takes away its tables and rows."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo.run", database.url_text],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    assert process.stdout is not None
    printed = ""
    while "signed up" not in printed:
        line = process.stdout.readline()
        assert line, process.communicate()
        printed += line
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate()
    watchdog.cancel()

    assert (130, "") == (process.returncode, error)
    assert [] == sa.inspect(engine).get_table_names()


def test_worker_ends_with_the_run(tmp_path: Path) -> None:
    """Whatever ends the run in the middle, the worker is stopped as at its end."""
    url = f"sqlite:///{tmp_path}/test.db"
    engine = sa.create_engine(url)
    create_all(engine)
    engine.dispose()
    settings = {"DATABASE_URL": url, "MAIL_QUEUE": "mail", "SMTP_PORT": "1"}
    with suppress(KeyboardInterrupt), worker_process.WorkerProcess(settings, tmp_path / "worker.log") as worker:
        wait_until(lambda: "worker started" in "".join(worker.last_words(1)), timeout=PATIENCE)
        raise KeyboardInterrupt

    assert not worker.is_running
    assert worker.last_words(1)[0].endswith("worker stopped")


def test_lost_mail_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A mail that the SMTP server accepts and loses makes the whole run fail, and the table says where."""

    class Forgetful(MailServer):
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name for it
            if envelope.rcpt_tos[0].startswith("ada@"):
                return "250 2.0.0 Taken"
            return await super().handle_DATA(server, session, envelope)

    monkeypatch.setattr(demo, "MailServer", Forgetful)
    code = demo.main([])
    out = capsys.readouterr().out
    wrong = {what: row for what, row in read_table(out).items() if row[0] != row[1]}

    assert 1 == code
    assert {"mails that the SMTP server received": (25, 24), "people who got one mail, and only one": (25, 24)} == wrong
    assert "The numbers do NOT add up." in out


@pytest.mark.timeout(PATIENCE)
def test_worker_that_cannot_start_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """If the worker ends by itself the run does not wait for it, fails, and shows what the worker said."""
    monkeypatch.setattr(demo, "PATIENCE", 2 * PATIENCE)
    monkeypatch.setattr(worker_process, "COMMAND", ("proletarian-sa", "worker", "examples.demo.app:no_such_factory"))
    code = demo.main([])
    out = capsys.readouterr().out
    table = read_table(out)

    assert 1 == code
    assert (0, 26) == table["jobs left in the queue"]
    assert (0, 2) == table["the worker's exit code after SIGTERM"]
    assert "has no 'no_such_factory'" in out


def test_wrong_url_ends_the_process() -> None:
    """The command's exit code is 2, and there is no traceback."""
    result = run_demo("foo")

    assert (2, "") == (result.returncode, result.stdout)
    assert result.stderr.startswith("demo: 'foo' is not a database URL. Type: make demo DATABASE_URL=")


def test_make_demo_takes_the_url_from_its_command_line() -> None:
    """A DATABASE_URL that is in the environment for another purpose is no wish to run the demo there."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment = {**clean, "DATABASE_URL": "from-environment"}
    make = ["make", "--dry-run", "demo"]
    without = subprocess.run(make, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    given = [*make, "DATABASE_URL=mysql+pymysql://u@h/n?a=1&b=2"]
    with_url = subprocess.run(given, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert "python -m examples.demo.run" == without.splitlines()[-1].strip().removeprefix(".venv/bin/")
    assert with_url.splitlines()[-1].endswith("-m examples.demo.run 'mysql+pymysql://u@h/n?a=1&b=2'")
