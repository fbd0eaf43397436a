"""The disk that has the tables is full for a while: a real one, mounted for the test by whoever may; or InnoDB's share of it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from proletarian_sa import create_all
from tests.faults.conditions import MOST_LINES, Condition, go_through
from tests.faults.durations import LONGEST_PAUSE
from tests.faults.own_server import OwnServer
from tests.faults.scene import Nursery, Scene

pytestmark = pytest.mark.long

SIZE = 8
"""Mebibytes of the disk; room for empty tables and some jobs."""
WORDS = ("No space left",)
PADDING = "x" * 40_000
"""In each payload: the free room inside of the tables' files is soon used up."""


class Disk:
    """A small disk of a server's."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self.folder: Path | None = None
        if os.geteuid() != 0:
            pytest.skip("no right to mount a disk")

    def mount(self, folder: Path) -> None:
        """Mount it there."""
        folder.mkdir(parents=True, exist_ok=True)
        folder.parent.chmod(0o755)
        options = f"size={SIZE}m,mode=0700,uid={self._owner},gid={self._owner}"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=False, capture_output=True)
        if done.returncode:
            pytest.skip("no right to mount a disk")
        self.folder = folder

    @property
    def _filling(self) -> Path:
        assert self.folder is not None
        return self.folder / "filling"

    def fill(self) -> None:
        """Leave no room."""
        with suppress(OSError), self._filling.open("ab", buffering=0) as file:
            while file.write(b"\0" * 4096):
                pass

    def make_room(self) -> None:
        """Take that away."""
        self._filling.unlink()

    def close(self) -> None:
        """Take it from its folder, once nobody uses it; a second call does nothing."""
        if self.folder is not None:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
            self.folder = None


@pytest.fixture
def disk(own_server: OwnServer) -> Iterator[Disk]:
    """Return a disk, not mounted yet."""
    if not own_server.kind.startswith("postgresql"):
        pytest.skip("no tablespaces at any place")
    made = Disk((own_server.node.folder / "data").stat().st_uid)
    yield made
    made.close()


class Tablespace:
    """A file of InnoDB's that may not grow, and has the queue's tables; who makes room starts the server anew."""

    def __init__(self, server: OwnServer) -> None:
        self._server = server
        size = (server.node.folder / "data" / "ibdata1").stat().st_size // 2**20
        self._start(size + 16)

    def _start(self, most: int) -> None:
        self._server.restart("fast", f"--innodb-data-file-path=ibdata1:12M:autoextend:max:{most}M")

    def create(self, engine: sa.Engine) -> None:
        """Make the queue's tables in it."""
        self._server.ask("SET GLOBAL innodb_file_per_table = OFF")
        create_all(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE filling (id INTEGER PRIMARY KEY AUTO_INCREMENT, it LONGBLOB)")
        self._server.ask("SET GLOBAL innodb_file_per_table = ON")
        self._engine = engine

    def fill(self) -> None:
        """Leave no room."""
        for size in (200_000, 20_000, 2000, 200):
            with suppress(sa.exc.OperationalError), self._engine.connect() as connection:
                while True:
                    connection.exec_driver_sql("INSERT INTO filling (it) VALUES (REPEAT('x', %s))", (size,))
                    connection.commit()

    def make_room(self) -> None:
        """Let it grow."""
        self._start(1024)


@pytest.fixture
def tight_scene(nursery: Nursery, own_server: OwnServer, claim: str, tmp_path: Path) -> Iterator[tuple[Scene, Tablespace]]:
    """Return a scene with the queue's tables in a tablespace; the others have files of their own."""
    if own_server.kind != "mysql":  # MariaDB's has the undo log too: nothing at all can be written, and 10.11 crashes
        pytest.skip("no tablespace of the tables alone")
    space = Tablespace(own_server)
    with own_server.new_database() as database:
        engine = database.create_engine(poolclass=sa.NullPool)
        space.create(engine)
        with Scene(nursery, engine, database.kind, claim, tmp_path) as made:
            yield made, space


def test_tablespace_full(tight_scene: tuple[Scene, Tablespace]) -> None:
    """Disk full: likewise where it is the tablespace, whose growth takes a restart."""
    scene, space = tight_scene
    worker = scene.start(worker={"worker_threads": 2}, longest_pause=LONGEST_PAUSE)
    fault = "tablespace full, server restarted with a larger one"
    condition = Condition(fault, space.fill, space.make_room, ("is full",), lines=2 * MOST_LINES)
    go_through(scene, worker, condition, padding=PADDING)

    scene.check()
    scene.check_alive()
    assert 0 == worker.stop()


@pytest.fixture
def small_scene(nursery: Nursery, own_server: OwnServer, disk: Disk, claim: str, tmp_path: Path) -> Iterator[Scene]:
    """Return a scene with the queue's tables on the small disk; the others lie elsewhere."""
    with own_server.new_database() as database:
        engine = database.create_engine(poolclass=sa.NullPool)
        create_all(engine)
        name = str(database.url.database)
        disk.mount(own_server.node.folder / "disks" / name)
        own_server.ask(f"CREATE TABLESPACE {name} LOCATION '{disk.folder}'")
        with engine.begin() as connection:
            for table in ("job", "archived_job"):
                connection.exec_driver_sql(f"ALTER TABLE proletarian.{table} SET TABLESPACE {name}")
        with Scene(nursery, engine, database.kind, claim, tmp_path) as made:
            yield made


def test_disk_full(small_scene: Scene, disk: Disk) -> None:
    """Disk full: it is named and waited for; when there is room again the worker goes on, and no job has failed for it."""
    worker = small_scene.start(worker={"worker_threads": 2}, longest_pause=LONGEST_PAUSE)
    go_through(small_scene, worker, Condition("disk full", disk.fill, disk.make_room, WORDS), padding=PADDING)

    small_scene.check()
    small_scene.check_alive()
    assert 0 == worker.stop()
