"""An application whose handlers do to their processes what no handler should."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import util
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import JobRegistry, QueueWorker

engine = sa.create_engine(os.environ["APP_DATABASE_URL"])
effects = sa.Table("effects", sa.MetaData(), sa.Column("number", sa.Integer))
jobs = JobRegistry()
HUGE = 10_000_000
"""Characters."""
LEASE = 0.4


class LeavingError(Exception):
    """An error that ends whatever tries to pickle it."""

    def __reduce__(self):
        raise SystemExit(4)


class TextError(Exception):
    """An error that is a text after its journey."""

    def __reduce__(self):
        return str, ("a text",)


class SlowError(Exception):
    """An error that takes its time to arrive."""

    def __setstate__(self, state):
        time.sleep(1.05)


def raises(error: BaseException) -> Any:
    """Return a handler that raises this."""

    def handler(payload: object) -> None:
        raise error

    return handler


slow = SlowError("slow")
slow.state = 1
for job_type, error in {
    "leaving": LeavingError("leaving"),
    "text": TextError("text"),
    "slow": slow,
    "huge": ValueError("x" * HUGE),
    "exit": SystemExit(3),
    "ctrl-c": KeyboardInterrupt(),
}.items():
    jobs.handler(job_type)(raises(error))


@jobs.handler("pid")
def pid(payload):
    """Say which process it is."""
    with Path(payload).open("a") as file:
        file.write(f"{os.getpid()}\n")


@jobs.handler("length")
def length(payload):
    """Look at a long payload."""
    assert payload["length"] == len(payload["text"])


@jobs.handler("end a program")
def end_a_program(payload):
    """Start a program, and ask it to end."""
    with subprocess.Popen(["sleep", "60"]) as program:
        program.terminate()
        assert -signal.SIGTERM == program.wait(50)


@jobs.handler("end a fork")
def end_a_fork(payload):
    """Fork, and ask the child to end."""
    ready, sign = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sign, b"ready")
        time.sleep(20)
        os._exit(0)
    os.read(ready, 5)
    os.kill(child, signal.SIGTERM)
    assert signal.SIGTERM == os.waitpid(child, 0)[1]


@jobs.handler("close what it prints to")
def close_standard_files(payload):
    """Print, and close standard input, output and error."""
    sys.stdout.write("printed by a handler\n")
    sys.stdout.flush()
    for number in range(3):
        os.close(number)


@jobs.handler("close all")
def close_all(payload):
    """Close all files, as daemons do."""
    os.closerange(3, 256)


@jobs.handler("elsewhere")
def change_the_directory(payload):
    """Go away."""
    os.chdir("/")


@jobs.handler("leave a thread")
def leave_a_thread(payload):
    """Start a thread that outlives its job."""
    threading.Thread(target=time.sleep, args=(1,)).start()


@jobs.handler("SIGKILL")
def kill(payload):
    """End as the kernel lets a process end that eats the memory."""
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.handler("leave a child")
def leave_a_child(payload):
    """End, and leave a child with a copy of all that was open."""
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    Path(payload).write_text(str(child))
    os._exit(5)


@jobs.handler("busy")
def busy(payload):
    """Say that it has begun, and never end."""
    Path(payload).write_text(str(os.getpid()))
    while True:
        pass


@jobs.handler("deaf")
def deaf(payload, job):
    """Say that it has begun, hold the interpreter in C code until somebody opens the other end of a pipe, and write."""
    Path(payload["sign"]).write_text(str(os.getpid()))
    ctypes.PyDLL(None).open(payload["pipe"].encode(), os.O_RDONLY)
    job.session.execute(sa.insert(effects).values(number=os.getpid()))


def speak_after_commit(session: Session) -> None:
    """Say that the session has committed, and wait until that is answered."""
    sign = Path(os.environ["APP_SIGN"])
    sign.touch()
    deadline = time.monotonic() + 60
    while sign.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@jobs.handler("speaks after its commit")
def speaks(payload, job):
    """Write, and say so once that is committed."""
    sa.event.listen(job.session, "after_commit", speak_after_commit)
    job.session.execute(sa.select(1))


def make_worker(**options: Any) -> QueueWorker:
    """Return the worker."""
    settings = {"executor": "process", "factory": "tests.programs.hostile_app:make_worker", "polling_interval": 0.02}
    return QueueWorker(engine, jobs, **(settings | options))


def make_impatient_worker() -> QueueWorker:
    """Return a worker that does not wait long for its handlers, in a program that takes its time to end."""
    util.Finalize(None, time.sleep, args=(0.5,), exitpriority=1)
    return make_worker(stop_timeout=0.3)


def make_thread_worker() -> QueueWorker:
    """Return a worker whose handlers are threads, with short leases."""
    return make_worker(executor="thread", lease=LEASE)


def make_slow_worker() -> QueueWorker:
    """Return the worker, in a process that takes long to start from the second time on."""
    sign = Path(os.environ["APP_SIGN"])
    if sign.exists():
        sign.with_suffix(".waits").touch()
        time.sleep(300)
    return make_worker()


def make_failing_worker() -> QueueWorker:
    """Return the worker, or fail while a file is there."""
    if Path(os.environ["APP_SIGN"]).exists():
        raise LookupError("the settings are gone")
    return make_worker()
