"""The servers to measure on: those of the tests, but with every commit on disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.environments import CACHE
from tests.servers.administrator import Administrator
from tests.servers.database import new_name
from tests.servers.errors import ServerFailedError, ServerMissingError
from tests.servers.kinds import RECIPES
from tests.servers.launch import launch
from tests.servers.programs import anyone_may_enter
from tests.servers.version import ask_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.servers.recipe import Recipe

INNODB: Final = ["--innodb-doublewrite=ON", "--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=1G"]
SETTINGS: Final = {
    "postgresql": [
        *("--fsync=on", "--synchronous_commit=on", "--full_page_writes=on"),
        *("--shared_buffers=1GB", "--max_wal_size=8GB", "--checkpoint_timeout=30min"),
    ],
    "mysql": [*INNODB, "--innodb-redo-log-capacity=2G"],
    "mariadb": [*INNODB, "--innodb-log-file-size=1G"],
}
"""Options that come last and so win: all is durable, and there is room, so that housekeeping falls into no run."""
ON_DISK: Final = Path("/var/tmp")  # noqa: S108 - where servers' own users may go, too, and temporary files survive a restart
KINDS: Final = (*SETTINGS, "sqlite")


class Place:
    """Where databases are made: servers that were started here, and a folder for SQLite's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.versions: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.administrators: dict[str, Administrator] = {}

    @contextmanager
    def database(self, kind: str) -> Iterator[str]:
        """Make a database, and drop it afterwards; return its SQLAlchemy URL."""
        name = new_name()
        if kind == "sqlite":
            (self.folder / name).mkdir()
            try:
                yield f"sqlite:///{self.folder / name / 'bench.db'}"
            finally:
                shutil.rmtree(self.folder / name)
            return
        administrator = self.administrators[kind]
        administrator.create_database(name)
        try:
            yield administrator.url.set(database=name).render_as_string(hide_password=False)
        finally:
            administrator.drop_database(name)


@contextmanager
def start(kinds: Iterable[str]) -> Iterator[Place]:
    """Start servers of these kinds, on disk, and stop them at the end; one that is not to be had is noted as missing."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        parent = CACHE if anyone_may_enter(CACHE) else ON_DISK
        stack.enter_context(temporary_files_in(parent))
        place = Place(parent / new_name())
        place.folder.mkdir()
        stack.callback(shutil.rmtree, place.folder, ignore_errors=True)
        for kind in kinds:
            if kind == "sqlite":
                place.versions[kind] = ask_version("sqlite://")
                continue
            try:
                server = launch(kind, lambda folder, port, kind=kind: durable(kind, RECIPES[kind](folder, port)))  # type: ignore[misc]
            except (ServerMissingError, ServerFailedError) as error:
                place.missing[kind] = str(error)
                continue
            stack.callback(server.stop)
            place.versions[kind] = server.version
            place.administrators[kind] = Administrator(server)
            stack.callback(place.administrators[kind].close)
        yield place


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Put servers' files there: tests' servers are in memory, where every commit is durable at no cost."""
    before, named = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        del os.environ["TMPDIR"]
        if named is not None:
            os.environ["TMPDIR"] = named


def durable(kind: str, recipe: Recipe) -> Recipe:
    """Return the recipe with our settings."""
    return replace(recipe, command=[*recipe.command, *SETTINGS[kind]])
