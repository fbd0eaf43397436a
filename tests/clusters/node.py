"""One server of a cluster, or a pooler before one: started, killed in the middle of something, and started again."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from tests.servers import guard
from tests.servers.errors import ServerFailedError
from tests.servers.launch import make_folder
from tests.servers.programs import is_root, unprivileged_user

PATIENCE = 90.0
"""Seconds that a node may take until it answers, on a busy machine too: one that joins fetches what it lacks."""
LOG_SHOWN = 3000
LASTING_PORTS = range(15_000, 30_000)
"""Below what Linux gives to connections, 32768 and above unless it is told otherwise."""


@dataclass
class Node:
    """A server program with its data, which outlives the program.

    Attributes:
        name: For messages.
        folder: All of its files, in the cluster's folder.
        url: A SQLAlchemy URL with no database chosen.
        command: Runs it in the foreground.
        pid_file: Where the program writes its process id.
        question: Answered, with something true, only by a node that serves.
        stop_signal: Ends it at once, and all processes of its own.
        user: A user id to run as, None to stay.
    """

    name: str
    folder: Path
    url: str
    command: list[str]
    pid_file: Path
    question: str = "SELECT 1"
    stop_signal: signal.Signals = signal.SIGKILL
    user: int | None = None
    guard: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self, *more: str) -> None:
        """Start it under its guard, with more options, and return at once."""
        self.pid_file.unlink(missing_ok=True)
        # the guard removes a folder when the program has ended; the data is not to go with it
        passing = tempfile.mkdtemp(dir=self.folder)
        user = "" if self.user is None else str(self.user)
        guarded = [sys.executable, "-I", guard.__file__, passing, str(int(self.stop_signal)), user, *self.command, *more]
        with self.log.open("ab") as log:
            self.guard = subprocess.Popen(guarded, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)

    def wait(self) -> None:
        """Wait until it serves.

        Raises:
            ServerFailedError: It ended, or did not serve in time; the message has the end of its log.
        """
        assert self.guard is not None
        deadline = time.monotonic() + PATIENCE
        while not self.serves():
            if self.guard.poll() is not None:
                raise ServerFailedError(f"{self.name} ended at once:\n{self.end_of_log()}")
            if time.monotonic() > deadline:
                raise ServerFailedError(f"{self.name} did not serve in {PATIENCE} s:\n{self.end_of_log()}")
            time.sleep(0.1)

    def serves(self) -> bool:
        """Tell whether it answers the question."""
        with suppress(sa.exc.DBAPIError):
            return bool(self.ask(self.question))
        return False

    def ask(self, statement: str) -> object:
        """Run one statement outside of transactions on a connection of its own; return the first value, if there is one."""
        engine = sa.create_engine(self.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            result = connection.exec_driver_sql(statement)
            return result.scalar() if result.returns_rows else None

    def kill(self) -> None:
        """Kill the program by SIGKILL, and return when it is gone."""
        assert self.guard is not None
        os.kill(int(self.pid_file.read_text().split()[0]), signal.SIGKILL)
        self.guard.wait(PATIENCE)
        self.stop()

    def stop(self) -> None:
        """End it by its signal; a second call does nothing."""
        if self.guard is not None and self.guard.stdin is not None:
            self.guard.stdin.close()
            self.guard.wait()

    @property
    def log(self) -> Path:
        """What the program says."""
        return self.folder / "log"

    def end_of_log(self) -> str:
        """Read the end of its log."""
        return self.log.read_text(errors="replace")[-LOG_SHOWN:].strip()


@contextmanager
def cluster_folder() -> Iterator[Path]:
    """Make a folder, removed at the end, or by a guard when the tests are gone, however they went."""
    folder = make_folder()
    folder.chmod(0o755)
    keeper = subprocess.Popen(
        [sys.executable, "-I", guard.__file__, str(folder), str(int(signal.SIGKILL)), "", "sleep", "infinity"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def nodes_in(write: Callable[[Path], list[Node]], start: Callable[[list[Node]], None]) -> Iterator[list[Node]]:
    """Write the nodes' configuration into a folder, start them, and stop them at the end."""
    with cluster_folder() as folder:
        nodes = write(folder)
        try:
            start(nodes)
            yield nodes
        finally:
            for node in nodes:
                node.stop()


def own_folder(cluster: Path, name: str) -> Path:
    """Make a node's folder, which belongs to the user that `server_user` names."""
    folder = cluster / name
    folder.mkdir()
    user = server_user()
    if user is not None:
        os.chown(folder, user, user)
    return folder


def server_user() -> int | None:
    """Return who is to run servers that refuse to be root: None is whoever runs the tests."""
    return unprivileged_user() if is_root() else None


def run_as(user: int | None, command: Sequence[str | Path], **options: object) -> str:
    """Run a program to its end as a user and return all that it said.

    Raises:
        ServerFailedError: It failed.
    """
    extra = [] if user is not None else None
    done = subprocess.run(  # type: ignore[call-overload]
        [str(part) for part in command],
        check=False,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=user,
        group=user,
        extra_groups=extra,
        **options,
    )
    if done.returncode:
        raise ServerFailedError(f"{command[0]} failed:\n{done.stdout[-LOG_SHOWN:]}")
    return str(done.stdout)


def free_ports(count: int) -> list[int]:
    """Find different ports of the loopback that nobody listens on.

    Not of those that the system gives to the near end of connections: while a node is down, one of its would soon be taken.
    """
    found: list[int] = []
    for port in random.sample(LASTING_PORTS, len(LASTING_PORTS)):
        if len(found) == count:
            break
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found
