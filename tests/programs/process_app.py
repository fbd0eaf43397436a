"""An application whose handlers run in processes of their own."""

import ctypes
import os
import signal
import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from proletarian_sa import JobInterrupted, JobRegistry, QueueWorker, RetryStrategy

engine = sa.create_engine(os.environ["APP_DATABASE_URL"])
effects = sa.Table("effects", sa.MetaData(), sa.Column("number", sa.Integer))
jobs = JobRegistry()
ONCE_MORE = RetryStrategy(retries=1, delays=[0])


class OddError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")
        self.function = lambda: one


@jobs.handler("work")
def work(payload, job):
    """Say which process it is, by an effect of its own."""
    job.session.execute(effects.insert().values(number=os.getpid()))


@jobs.handler("fail", retry=lambda job, error: RetryStrategy(retries=1, delays=[error.args[1]]))
def fail(payload):
    """Fail, and fail again after as long as the error says."""
    raise ValueError("no", 0)


@jobs.handler("odd")
def odd(payload):
    """Fail with what cannot be sent."""
    raise OddError("one", "other")


@jobs.handler("exit", retry=ONCE_MORE)
def exit_(payload, job):
    """End the process, after a write that must not stay."""
    job.session.execute(effects.insert().values(number=0))
    os._exit(7)


@jobs.handler("crash")
def crash(payload):
    """Follow a null pointer."""
    ctypes.string_at(0)


@jobs.handler("endless", timeout=0.3)
def endless(payload, job):
    """Never return, after a write that must not stay."""
    job.session.execute(effects.insert().values(number=0))
    while True:
        pass


@jobs.handler("committed")
def committed(payload, job):
    """End the process right after the commit, before anybody hears of it."""
    job.session.execute(effects.insert().values(number=1))
    sa.event.listen(job.session, "after_commit", lambda _session: os._exit(8))


@jobs.handler("wait")
def wait(payload, job):
    """Say that it has begun, and wait until it is asked to stop."""
    Path(payload).write_text(str(os.getpid()))
    if job.wait(60):
        raise JobInterrupted


@jobs.handler("deaf")
def deaf(payload):
    """Say that it has begun, and hold the interpreter in C code for some seconds, so that no other thread of this process runs."""
    Path(payload).write_text(str(os.getpid()))
    ctypes.PyDLL(None).usleep(2_000_000)


@jobs.handler("signals")
def signals(payload, job):
    """Ask the own process to end, as a terminal or a supervisor does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    assert threading.current_thread() is not threading.main_thread()


def make_worker(**options: Any) -> QueueWorker:
    """Return the worker: the app factory."""
    return QueueWorker(engine, jobs, executor="process", factory="tests.programs.process_app:make_worker", **options)


def broken() -> QueueWorker:
    """Be a factory that works in the process of the worker only."""
    raise LookupError("no settings here")
