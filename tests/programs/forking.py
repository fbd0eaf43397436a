"""An application whose handlers fork: `proletarian-sa worker tests.programs.forking:make_worker`.

Each handler writes through `job.session`, forks, waits for the child's end, and writes again: on the connection that the child has
a copy of.
"""

import multiprocessing
import os
import subprocess
import sys

import sqlalchemy as sa

from proletarian_sa import JobRegistry, QueueWorker
from tests.stress import tables

jobs = JobRegistry()
engine = sa.create_engine(os.environ["APP_URL"])
CHILDREN = {"returns": 0, "raises": 1, "exits": 7, "exits with words": 1, "uses the session": 1, "leaves": 8}
"""What a child does, and the exit code that its parent sees."""


def child(way, job):
    """Do what a child should not, or may."""
    if way == "raises":
        raise LookupError("the child's own reason")
    if way == "exits":
        sys.exit(7)
    if way == "exits with words":
        sys.exit("the child's last words")
    if way == "uses the session":
        job.session.execute(sa.select(1))
    if way == "leaves":
        os._exit(8)


@jobs.handler("fork")
def fork(payload, job):
    """Fork a child that goes its own way."""
    effect = job.session.execute(sa.insert(tables.effects), {"job_id": "before"})
    pid = os.fork()
    if pid == 0:
        print(f"child {payload}")  # noqa: T201 - for the test to read
        child(payload, job)
        return
    _, status = os.waitpid(pid, 0)
    assert CHILDREN[payload] == os.waitstatus_to_exitcode(status)
    job.session.execute(sa.update(tables.effects).where(tables.effects.c.number == effect.inserted_primary_key[0]), after(job))


@jobs.handler("multiprocessing")
def use_multiprocessing(_payload, job):
    """Fork a child the convenient way."""
    effect = job.session.execute(sa.insert(tables.effects), {"job_id": "before"})
    process = multiprocessing.get_context("fork").Process(target=os.getpid)
    process.start()
    process.join()
    assert 0 == process.exitcode
    job.session.execute(sa.update(tables.effects).where(tables.effects.c.number == effect.inserted_primary_key[0]), after(job))


@jobs.handler("subprocess")
def use_subprocess(_payload, job):
    """Start a program."""
    effect = job.session.execute(sa.insert(tables.effects), {"job_id": "before"})
    subprocess.run(["true"], check=True)
    job.session.execute(sa.update(tables.effects).where(tables.effects.c.number == effect.inserted_primary_key[0]), after(job))


def after(job):
    """Return what is to be written."""
    return {"job_id": str(job.job_id)}


def make_worker():
    """Make the worker: the app factory."""
    executor = os.environ.get("APP_EXECUTOR", "thread")
    return QueueWorker(engine, jobs, claim=os.environ["APP_CLAIM"], executor=executor, polling_interval=0.02)
