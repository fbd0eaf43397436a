"""Run the demo: people sign up, a worker in a process of its own sends their mails, and in the end the numbers must add up.

Usage: python -m examples.demo.run [DATABASE_URL]

Without a URL it runs on an SQLite file in a temporary folder. Exit code 0: the numbers add up; 1: they do not; 2: it cannot
run there.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from examples.demo.app import sign_up
from examples.demo.database import CannotRunError, archived, brief, installed, open_database, queued
from examples.demo.mail_server import MailServer
from examples.demo.people import GRETA, NEMO, ROLF, TIMES_REFUSED, People
from examples.demo.progress import Show, Standing, progress
from examples.demo.summary import checks, count, exit_code, table
from examples.demo.worker_process import COMMAND, WorkerProcess

if TYPE_CHECKING:
    from types import FrameType

    import sqlalchemy as sa

PATIENCE = 60.0
"""Seconds from the last sign-up until the queue must be empty."""

BETWEEN_PEOPLE = 0.02
"""Seconds between two sign-ups, so that there is something to watch."""

BETWEEN_LOOKS = 0.1
"""Seconds between two looks at the queue."""

LOG_LINES = 20
"""How much of the worker's log is shown when the numbers do not add up."""


class ChangedMindError(Exception):
    """Somebody does not want to sign up after all."""


def main(arguments: list[str]) -> int:
    """Run the demo and return the exit code."""
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")  # seconds; a host that does not answer would keep us for minutes
    with tempfile.TemporaryDirectory(prefix="proletarian-demo-") as folder:
        try:
            engine = open_database(arguments[0] if arguments else f"sqlite:///{folder}/demo.db")
            try:
                return run(engine, Path(folder))
            finally:
                engine.dispose()
        except CannotRunError as error:
            print(f"demo: {error}", file=sys.stderr)
            return 2
        except SQLAlchemyError as error:
            print(f"demo: the database failed meanwhile: {brief(error)}", file=sys.stderr)
            return 1


def run(engine: sa.Engine, folder: Path) -> int:
    """Run the demo on a database that answers, leave nothing of it there, and return the exit code."""
    console = Console(highlight=False, soft_wrap=True)
    people = People()
    server = MailServer(greylisted=people.email(GRETA), times=TIMES_REFUSED, unknown=people.email(NEMO))
    settings = {
        "DATABASE_URL": engine.url.render_as_string(hide_password=False),
        "MAIL_QUEUE": people.queue,
        "SMTP_PORT": str(server.port),
    }
    with server, installed(engine, people):
        console.print(f"database: {engine.url.render_as_string()}", markup=False)
        console.print(f"worker:   {' '.join(COMMAND)}")
        with WorkerProcess(settings, folder / "worker.log") as worker, progress(console, len(people.names)) as show:
            sign_everybody_up(engine, people, server, show)
            wait_until_sent(engine, people, server, worker, show)
            worker_exit_code = worker.stop()
        checked = checks(people, count(engine, people, server.received, worker_exit_code))
    console.print(table(checked))
    code = exit_code(checked)
    if code == 0:
        console.print("The numbers add up.", style="bold green")
    else:
        console.print("The numbers do NOT add up. The worker's last words:", style="bold red")
        console.print("\n".join(worker.last_words(LOG_LINES)), markup=False)
    return code


def sign_everybody_up(engine: sa.Engine, people: People, server: MailServer, show: Show) -> None:
    """Sign people up one after the other, each in a transaction; Rolf changes his mind before the commit."""
    for number, name in enumerate(people.names, start=1):
        with Session(engine) as session, session.begin():
            people.job_ids.append(sign_up(session, name=name, email=people.email(name), queue=people.queue))
        show(look(engine, people, server, signed_up=number))
        time.sleep(BETWEEN_PEOPLE)
    with suppress(ChangedMindError), Session(engine) as session, session.begin():
        people.job_ids.append(sign_up(session, name=ROLF, email=people.email(ROLF), queue=people.queue))
        session.flush()  # his user and his job are in the transaction now
        raise ChangedMindError


def wait_until_sent(engine: sa.Engine, people: People, server: MailServer, worker: WorkerProcess, show: Show) -> None:
    """Return when the queue is empty, when the worker has ended, or when it takes too long: the summary tells which."""
    deadline = time.monotonic() + PATIENCE
    while worker.is_running and time.monotonic() < deadline:
        standing = look(engine, people, server, signed_up=len(people.names))
        show(standing)
        if standing.queued == 0:
            return
        time.sleep(BETWEEN_LOOKS)


def look(engine: sa.Engine, people: People, server: MailServer, *, signed_up: int) -> Standing:
    """Count how far the run has come."""
    with Session(engine) as session:
        in_queue, in_archive = len(queued(session, people)), len(archived(session, people))
    return Standing(
        signed_up=signed_up,
        queued=in_queue,
        archived=in_archive,
        mails=len(server.received),
        refused=server.refused_for_now + server.refused_for_good,
    )


def leave(_number: int, _frame: FrameType | None) -> None:
    """End as at Ctrl-C, so that the worker is stopped and the tables are removed."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
