"""An application with a worker that installs signal handlers: run as `python -m tests.programs.signals_app WAY`.

WAY says what its main thread does meanwhile. It tells the test what happens, and waits for it.
"""

import asyncio
import os
import signal
import sys
import threading
import time

import sqlalchemy as sa

from proletarian_sa import JobInterrupted, QueueWorker, events
from tests.programs.cli_app import jobs, tell

TOLD = (events.WorkerStarted, events.WorkerStopping, events.WorkerStopped)


def tell_event(event):
    """Tell what the worker does."""
    if isinstance(event, events.TransientErrorMet):
        tell(f"TransientErrorMet {event.consecutive}")
    elif isinstance(event, TOLD):
        tell(f"{type(event).__name__} {event.worker_id}")


@jobs.handler("deaf")
def never_return(_payload):
    """Ignore that the worker stops."""
    tell("begun")
    threading.Event().wait()


@jobs.handler("raises")
def interrupted(_payload, job):
    """Give the job back as soon as the worker stops."""
    tell("begun")
    job.wait(60)
    raise JobInterrupted


@jobs.handler("until")
def wait_for_a_file(payload):
    """Return when the file is there."""
    tell("begun")
    while not os.path.exists(payload):  # noqa: PTH110 - a string is what it is given
        time.sleep(0.01)


def make_worker(worker_id="worker", **options):
    """Make a worker that installs signal handlers."""
    engine = sa.create_engine(os.environ["APP_URL"])
    timeout = float(os.environ.get("APP_STOP_TIMEOUT", "60"))
    options = {"polling_interval": 0.02, "stop_timeout": timeout, "install_signal_handlers": True} | options
    return QueueWorker(engine, jobs, worker_id=worker_id, on_event=tell_event, **options)


def do_something_else():
    """Be busy elsewhere. Python may see a signal that arrives just before a wait begins only when the wait ends."""
    while True:
        time.sleep(0.1)


def run():
    """Sit in `run`, and do something of one's own afterwards."""
    make_worker().run()
    tell("run has returned")
    sys.exit(5)


def start():
    """Do something else."""
    make_worker().start()
    do_something_else()


def inside():
    """Do something else inside of a `with` statement."""
    try:
        with make_worker():
            do_something_else()
    except KeyboardInterrupt:
        tell("KeyboardInterrupt")
        raise


def two():
    """Have two workers."""
    make_worker("one").start()
    make_worker("other").start()
    do_something_else()


def chained():
    """Have a signal handler of one's own, which leaves the ending to the main thread."""
    asked = threading.Event()

    def on_signal(number, frame):
        tell(f"own handler {number} {frame is not None}")
        asked.set()

    signal.signal(signal.SIGTERM, on_signal)
    worker = make_worker()
    worker.start()
    while not asked.wait(0.1):
        continue
    tell(f"joined {worker.join(60)}")
    tell(f"put back {(worker.stop(), signal.getsignal(signal.SIGTERM) is on_signal)[1]}")
    sys.exit(6)


def ignoring():
    """Be started by nohup and its like."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start()


def exiting():
    """End by `sys.exit` while a job is running, without stopping the worker."""
    make_worker().start()
    sys.stdin.readline()
    sys.exit(7)


def exiting_from_handler():
    """Have a signal handler of one's own that ends the program."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(8))
    with make_worker():
        do_something_else()


def asyncio_handler():
    """Have an event loop with a signal handler of its own."""

    async def main():
        asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
        worker = make_worker()
        worker.start()
        await asked.wait()
        tell("the loop has been told")
        tell(f"joined {await asyncio.to_thread(worker.join, 60)}")

    asyncio.run(main())
    sys.exit(9)


def asyncio_plain():
    """Have an event loop without a signal handler of the application's."""

    async def main():
        with make_worker():
            try:
                await asyncio.sleep(3600)
            finally:
                tell("the task ends")

    asyncio.run(main())


def main(way):
    """Go one way."""
    globals()[way]()


if __name__ == "__main__":
    main(sys.argv[1])
