"""A server of a test's own, to be stopped, killed and restarted: its data and its port stay the same.

Each pytest process starts one of a kind at most, when the first test asks for it: see the fixtures `own_server` and `own_scene`.
"""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import sqlalchemy as sa

from tests.clusters.node import PATIENCE, Node, cluster_folder, free_ports, own_folder
from tests.servers.administrator import Administrator
from tests.servers.database import Database, new_database
from tests.servers.errors import ServerMissingError
from tests.servers.kinds import RECIPES
from tests.servers.launch import prepare
from tests.servers.recipe import Recipe
from tests.servers.server import Server
from tests.servers.version import ask_version

How = Literal["fast", "immediate", "kill"]

LASTING: Final = {
    "postgresql": ["--synchronous_commit=on", "--full_page_writes=on"],
    "mysql": ["--innodb-flush-log-at-trx-commit=2", "--innodb-doublewrite=ON"],
    "mariadb": ["--innodb-flush-log-at-trx-commit=2", "--innodb-doublewrite=ON"],
}
"""Options, after those of throwaway servers, with which a server that is killed has all that it has committed."""
STOPS: Final = {
    "postgresql": {"fast": signal.SIGINT, "immediate": signal.SIGQUIT},
    "mysql": {"fast": signal.SIGTERM, "immediate": signal.SIGKILL},  # there is nothing in between
    "mariadb": {"fast": signal.SIGTERM, "immediate": signal.SIGKILL},
}


class OwnServer:
    """A server with its data, which runs until it is told otherwise.

    Attributes:
        kind: As `KINDS` has it.
        node: Its program.
        version: What it says.
        is_running: Whether it has been started and not been stopped.
        options: What it was given for this run beyond its usual options.
    """

    options: tuple[str, ...]

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._family = kind.partition("-")[0]
        recipe = RECIPES[kind](folder, free_ports(1)[0])
        if recipe.prepare is None:
            raise ServerMissingError(f"no programs of {kind} on this machine, to be stopped and started with their data")
        prepare_data(kind, recipe, folder)
        first = [option for option in recipe.command if option.startswith("--init-file")]
        command = [*(option for option in recipe.command if option not in first), *LASTING[self._family]]
        pid_file = folder / ("data/postmaster.pid" if self._family == "postgresql" else "pid")
        self.node = Node(kind, folder, recipe.url, command, pid_file, stop_signal=recipe.stop_signal, user=recipe.user)
        self.start(*first)
        self.options = ()
        self.version = ask_version(self.url)

    @property
    def url(self) -> str:
        """A SQLAlchemy URL with its password and no database chosen, of a user who may do everything."""
        return self.node.url

    @property
    def port(self) -> int:
        """Its port of the loopback, which stays the same."""
        port = sa.make_url(self.url).port
        assert port is not None
        return port

    def start(self, *options: str, wait: bool = True) -> None:
        """Start it, with more options for this run, and wait until it answers, unless told otherwise."""
        self.node.start(*options)
        self.is_running, self.options = True, options
        if wait:
            self.node.wait()

    def stop(self, how: How = "fast") -> None:
        """Stop it, and return when it is gone.

        Args:
            how: `fast` ends all sessions and shuts down; `immediate` recovers at the next start; `kill`: SIGKILL, of all its
                processes.
        """
        guard = self.node.guard
        assert guard is not None
        if how == "kill" or STOPS[self._family][how] == signal.SIGKILL:
            for pid in family_of(self.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            os.kill(self.pid, STOPS[self._family][how])
        guard.wait(PATIENCE)
        self.node.stop()
        self.is_running = False

    def kill(self) -> None:
        """Kill all its processes by SIGKILL, and return when they are gone."""
        self.stop("kill")

    def restart(self, how: How = "fast", *options: str) -> None:
        """Stop it, and start it with more options for this run."""
        self.stop(how)
        self.start(*options)

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return int(self.node.pid_file.read_text().split()[0])

    def ask(self, statement: str) -> object:
        """Run one statement outside of transactions on a connection of its own; return the first value, if there is one."""
        return self.node.ask(statement)

    @contextmanager
    def new_database(self) -> Iterator[Database]:
        """Make an empty database, dropped at the end; the server is started for that if it does not run."""
        administrator = Administrator(Server(self.kind, self.url, self.version))
        with new_database(self.kind, self.version, administrator) as database:
            administrator.close()
            yield database
            if not self.is_running:
                self.start()
        administrator.close()

    def close(self) -> None:
        """Stop it at once."""
        self.node.stop()
        self.is_running = False


class OwnServers:
    """The servers of one pytest process, one of a kind, each started when it is first asked for."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._outcomes: dict[str, OwnServer | ServerMissingError] = {}

    def get(self, kind: str) -> OwnServer:
        """Return the server of a kind, running with its usual options.

        Raises:
            ServerMissingError: None is to be had.
        """
        if kind not in self._outcomes:
            try:
                self._outcomes[kind] = self._make(kind)
            except ServerMissingError as error:
                self._outcomes[kind] = error
        found = self._outcomes[kind]
        if isinstance(found, ServerMissingError):
            raise found
        if not found.is_running:
            found.start()
        elif found.options:
            found.restart()
        return found

    def _make(self, kind: str) -> OwnServer:
        if kind not in RECIPES:
            raise ServerMissingError("no server")
        made = OwnServer(kind, own_folder(self._ends.enter_context(cluster_folder()), kind))
        self._ends.callback(made.close)
        return made

    def close(self) -> None:
        """Stop them all, and remove their data."""
        self._ends.close()


def prepare_data(kind: str, recipe: Recipe, folder: Path) -> None:
    """Make the data of a new server."""
    with tempfile.TemporaryFile() as log:
        prepare(kind, recipe, folder, log)


def family_of(pid: int) -> list[int]:
    """Return a process and its children."""
    children = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                children.append(int(status.parent.name))
    return [pid, *children]
