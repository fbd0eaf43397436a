"""A web application that starts a worker by the way, under a server that reloads it.

    python -m tests.programs.reloading ENDING

ENDING is what the server does to a process whose code has changed: `exits`, the process ends itself by `sys.exit`; `executes`, it
becomes the next by `os.execv`; all else comes from outside. RELOADING_URL, RELOADING_GENERATION and RELOADING_FOLDER are in the
environment, and RELOADING_EXECUTOR. Each run of a handler is a line in the file `ran`.
"""

import os
import sys
from pathlib import Path

import sqlalchemy as sa

from proletarian_sa import JobInterrupted, JobRegistry, QueueWorker
from tests.helpers import wait_until

PATIENCE = 120.0
LEASE = 1.0
jobs = JobRegistry()


def folder():
    """Return where the test looks."""
    return Path(os.environ["RELOADING_FOLDER"])


@jobs.handler("work")
def work(payload):
    """Tell who ran it."""
    with (folder() / "ran").open("a") as file:
        file.write(f"{os.environ['RELOADING_GENERATION']} {os.getpid()} {payload}\n")


@jobs.handler("long")
def long(payload, job):
    """Run until asked to stop, in the first generation."""
    work(payload)
    if os.environ["RELOADING_GENERATION"] == "1" and job.wait(PATIENCE):
        raise JobInterrupted


def make_worker():
    """Make the worker."""
    engine = sa.create_engine(os.environ["RELOADING_URL"])
    executor, factory = os.environ["RELOADING_EXECUTOR"], "tests.programs.reloading:make_worker"
    return QueueWorker(engine, jobs, executor=executor, factory=factory, polling_interval=0.02, lease=LEASE)


def main(ending):
    """Start up, and serve until the code changes."""
    make_worker().start()
    wait_until((folder() / "changed").exists, PATIENCE, pause=0.02)
    if ending == "exits":
        sys.exit(3)
    if ending == "executes":
        (folder() / "changed").unlink()
        os.environ["RELOADING_GENERATION"] = "2"
        os.execv(sys.executable, [sys.executable, "-m", "tests.programs.reloading", "lives on"])  # noqa: S606 - as such servers do


if __name__ == "__main__":
    main(*sys.argv[1:])
