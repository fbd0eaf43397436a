"""Start a server by its recipe in a temporary folder and wait until it answers."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from sqlalchemy.exc import DBAPIError

from tests.servers import guard
from tests.servers.errors import ServerFailedError
from tests.servers.programs import anyone_may_enter
from tests.servers.recipe import Recipe
from tests.servers.server import Server
from tests.servers.version import ask_version

LOG_SHOWN = 2000
"""Characters of a failed server's log that are worth showing."""
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a file system of Linux's in memory
ROOM = 6 * 2**30  # bytes


def launch(name: str, write_recipe: Callable[[Path, int], Recipe]) -> Server:
    """Start a server on a free port.

    Raises:
        ServerMissingError: The recipe finds nothing to start.
        ServerFailedError: It does not start, or does not answer in time.
    """
    folder = make_folder()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - it is read after the server's folder is gone
    try:
        recipe = write_recipe(folder, free_port())
        prepare(name, recipe, folder, log)
        process = start(recipe, folder, log)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        log.close()
        raise
    try:
        version = wait_for_answer(name, recipe, process, log)
    except BaseException:
        stop(process, log)
        raise
    return Server(name, recipe.url, version, lambda: stop(process, log))


def make_folder() -> Path:
    """Make a temporary folder in a place where a server's own user may go too: in memory, if there is plenty of that.

    Thousands of databases are made and dropped in a run, and a file system on disk can take ten times as long for that. A place
    that the environment names, as `TMPDIR`, comes first.
    """
    named = Path(tempfile.gettempdir())
    chosen = IN_MEMORY if "TMPDIR" not in os.environ and is_roomy(IN_MEMORY) else named
    return Path(tempfile.mkdtemp(prefix="proletarian-", dir=chosen if anyone_may_enter(chosen) else "/tmp"))  # noqa: S108


def is_roomy(place: Path) -> bool:
    """Tell whether there is room for all servers' files."""
    return place.is_dir() and os.access(place, os.W_OK) and shutil.disk_usage(place).free >= ROOM


def free_port() -> int:
    """Find a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare(name: str, recipe: Recipe, folder: Path, log: BinaryIO) -> None:
    """Hand the folder to the server's user and create the data in it."""
    if recipe.user is not None:
        os.chown(folder, recipe.user, recipe.user)
    if recipe.prepare is None:
        return
    result = subprocess.run(
        recipe.prepare,
        check=False,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        user=recipe.user,
        group=recipe.user,
        extra_groups=None if recipe.user is None else [],
    )
    if result.returncode != 0:
        raise ServerFailedError(f"{name} could not create its data:\n{end_of(log)}")


def start(recipe: Recipe, folder: Path, log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the server under its guard, in a session of its own so that Ctrl-C is for the tests only."""
    user = "" if recipe.user is None else str(recipe.user)
    return subprocess.Popen(
        [sys.executable, "-I", guard.__file__, str(folder), str(int(recipe.stop_signal)), user, *recipe.command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def wait_for_answer(name: str, recipe: Recipe, process: subprocess.Popen[bytes], log: BinaryIO) -> str:
    """Ask for the version until there is one."""
    deadline = time.monotonic() + recipe.patience
    while True:
        try:
            return ask_version(recipe.url)
        except DBAPIError as error:
            if process.poll() is not None:
                raise ServerFailedError(f"{name} ended at once:\n{end_of(log)}") from error
            if time.monotonic() > deadline:
                raise ServerFailedError(f"{name} did not answer in {recipe.patience} s:\n{end_of(log)}") from error
        time.sleep(0.05)


def stop(process: subprocess.Popen[bytes], log: BinaryIO) -> None:
    """Let go of the guard's input and wait until server and folder are gone; a second call does nothing."""
    if process.stdin is not None:
        process.stdin.close()
    process.wait()
    log.close()


def end_of(log: BinaryIO) -> str:
    """Read the end of a log."""
    log.seek(0)
    return log.read().decode(errors="replace")[-LOG_SHOWN:].strip()
