"""An application of which the command line starts the worker: its handlers tell the test what they do, and wait for it."""

import os
import signal
import sys
import threading
import time
import traceback

import sqlalchemy as sa

from proletarian_sa import JobInterrupted, JobRegistry, QueueWorker

jobs = JobRegistry()


def tell(text):
    """Write a line to the test."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def make_telling_worker():
    """Make the worker, and tell how long a thread may keep the interpreter."""
    tell(f"a turn takes {sys.getswitchinterval():g}")
    return make_worker()


@jobs.handler("tell")
def tell_payload(payload, job):
    """Tell what was given."""
    tell(f"{job.queue} {payload}")


@jobs.handler("wait")
def wait_for_the_test(_payload):
    """Wait until the test writes a line."""
    tell("begun")
    sys.stdin.readline()
    tell("ended")


@jobs.handler("interruptible")
def wait_until_asked_to_stop(_payload, job):
    """Wait, and give the job back."""
    tell("begun")
    tell(f"asked to stop: {job.wait(60)}")
    raise JobInterrupted


@jobs.handler("aside")
def signal_aside(_payload, job):
    """Send two signals that the system gives to this thread, the second when the worker is stopping; do not return."""
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    job.wait(60)
    wait_until_the_main_thread_waits()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Event().wait()


def wait_until_the_main_thread_waits():
    """Return when it does so for the end of the worker."""
    main = threading.main_thread().ident
    while not any(frame.f_code.co_name == "stop" for frame, _ in traceback.walk_stack(sys._current_frames()[main])):
        time.sleep(0.01)


def make_worker():
    """Make the worker: the app factory."""
    engine = sa.create_engine(os.environ["APP_URL"])
    return QueueWorker(engine, jobs, polling_interval=0.02, stop_timeout=float(os.environ.get("APP_STOP_TIMEOUT", "60")))


def make_slowly():
    """Make the worker, as soon as the test writes a line."""
    tell("making")
    sys.stdin.readline()
    return make_worker()


def make_queue(queue):
    """Take an argument that the command cannot give."""
    return make_worker().with_options(queue=queue)


def make_nothing():
    """Forget to return the worker."""


def fail():
    """Fail in the application's own code."""
    raise LookupError("no configuration")


class Settings:
    """A place inside the module."""

    make_worker = staticmethod(make_worker)


number = 7
if "APP_URL" in os.environ:
    worker = make_worker()


def refuse() -> QueueWorker:
    """Fail as code does that reads settings."""
    raise ValueError("a bad setting")
