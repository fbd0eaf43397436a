"""An application on a platform that has next to nothing: no fork, no signals but those for Ctrl-C and Ctrl-Break, as on Windows.

    APP_URL=… python -m tests.programs.bare_platform WAY

What is missing is taken away before proletarian_sa and SQLAlchemy are imported; Ctrl-Break is SIGUSR2 here.
"""

import asyncio
import concurrent.futures
import logging
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading

import uuid_utils.compat

# What Python and this package bring has forms of its own for such platforms: here it is as it is.
BROUGHT = (asyncio, concurrent.futures, logging, multiprocessing, random, subprocess, tempfile, uuid_utils)
CTRL_C = ("SIGINT", "SIGBREAK")


def take_away() -> None:
    """Take away what the platform does not have."""
    signal.SIGBREAK = signal.SIGUSR2
    for name in [name for name in dir(signal) if name.startswith("SIG") and not name.startswith(("SIG_", *CTRL_C))]:
        delattr(signal, name)
    for name in ("pthread_kill", "pthread_sigmask", "sigwait", "sigpending", "siginterrupt", "setitimer", "alarm", "pause"):
        delattr(signal, name)
    for name in ("fork", "register_at_fork", "forkpty", "setsid", "getsid", "killpg", "geteuid", "getuid", "uname", "sysconf"):
        delattr(os, name)
    for name in ("fcntl", "resource", "pwd", "grp", "termios", "syslog"):
        sys.modules[name] = None


if not hasattr(signal, "SIGBREAK"):  # else this is imported a second time, as the application's module
    take_away()

import sqlalchemy as sa  # noqa: E402 - not before

from proletarian_sa import JobRegistry, QueueWorker, cli  # noqa: E402 - likewise

jobs = JobRegistry()


@jobs.handler("say")
def say(payload):
    """Tell that it has run, and how bare the platform is."""
    print(f"ran {payload} {hasattr(os, 'register_at_fork')} {hasattr(signal, 'SIGTERM')}", flush=True)  # noqa: T201 - for the test


def make_worker(**options):
    """Make the worker: the app factory."""
    return QueueWorker(sa.create_engine(os.environ["APP_URL"]), jobs, polling_interval=0.02, **options)


def command():
    """Be the command."""
    cli.main(["worker", "tests.programs.bare_platform:make_worker"], prog_name="proletarian-sa")


def option():
    """Sit in `run`, with `install_signal_handlers`."""
    make_worker(install_signal_handlers=True).run()
    sys.exit(5)


def plain():
    """Sit in `run`, without."""
    try:
        make_worker().run()
    except KeyboardInterrupt:
        sys.exit(6)


def elsewhere():
    """Start and stop in another thread."""
    ended = threading.Event()

    def work():
        with make_worker():
            ended.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
    except KeyboardInterrupt:
        ended.set()
        thread.join()
        sys.exit(7)


def loop():
    """Have an event loop, which can add no signal handlers."""

    async def main():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler = None
        with make_worker(install_signal_handlers=True):
            await asyncio.sleep(3600)

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(8)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
