"""Servers that reload an application when its code changes: a new process, or the same one with new code."""

import signal
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.faults.scene import PATIENCE, Nursery, Worker
from tests.helpers import wait_until
from tests.observing import add
from tests.queue_contents import archived, queued
from tests.servers.database import Database

pytestmark = pytest.mark.long


@pytest.fixture(params=["sqlite"])
def database_kind(request: pytest.FixtureRequest) -> str:
    """Run on the database that is always there."""
    return str(request.param)


CODES = {"SIGTERM": -signal.SIGTERM, "SIGKILL": -signal.SIGKILL, "exits": 3}


class Reloader:
    """Starts the processes of an application, and ends them when its code has changed."""

    def __init__(self, nursery: Nursery, url: str, folder: Path, ending: str, executor: str) -> None:
        self.folder, self.ending = folder, ending
        self._nursery = nursery
        self._environment = {"RELOADING_URL": url, "RELOADING_FOLDER": str(folder), "RELOADING_EXECUTOR": executor}

    def start(self, generation: str) -> Worker:
        """Start a process."""
        environment = self._environment | {"RELOADING_GENERATION": generation}
        return self._nursery.run(
            self.folder / f"output{generation}", self.ending, module="tests.programs.reloading", environment=environment
        )

    def reload(self, process: Worker) -> Worker:
        """Replace a process, and return the next, which may be the same."""
        if self.ending.startswith("SIG"):
            process.signal(signal.Signals[self.ending])
        else:
            (self.folder / "changed").touch()
        if self.ending == "executes":
            wait_until(lambda: not (self.folder / "changed").exists(), PATIENCE)
            return process
        assert CODES[self.ending] == process.wait(), process.text()
        (self.folder / "changed").unlink(missing_ok=True)
        return self.start("2")

    def runs(self) -> list[list[str]]:
        """Return each run: generation, process, payload."""
        file = self.folder / "ran"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def is_alive(pid: int) -> bool:
    """Return whether a process runs, and is not only waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


WAYS = [*((ending, "thread") for ending in (*CODES, "executes")), ("SIGKILL", "process"), ("executes", "process")]


@pytest.fixture(params=WAYS, ids="-".join)
def reloader(
    request: pytest.FixtureRequest, nursery: Nursery, database: Database, queue_engine: sa.Engine, tmp_path: Path
) -> Reloader:
    """Return a server for each way to end a process, whose worker's handlers are threads or processes."""
    return Reloader(nursery, database.url_text, tmp_path, *request.param)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no list of processes")
def test_a_server_that_reloads(queue_engine: sa.Engine, reloader: Reloader) -> None:
    """Reloading servers: after it one generation polls, every old process ends, and a job that was cut off runs in the new one."""
    process = reloader.start("1")
    try:
        before = [add(queue_engine, payload=number) for number in range(3)]
        long = add(queue_engine, "long", "long")
        wait_until(lambda: process.ended.is_set() or len(reloader.runs()) == 4, PATIENCE)
        wait_until(lambda: process.ended.is_set() or len(archived(queue_engine)) == 3, PATIENCE)
        process = reloader.reload(process)
        wait_until(lambda: process.ended.is_set() or queued(queue_engine) == [], PATIENCE)
        after = [add(queue_engine, payload=number) for number in range(3, 9)]
        wait_until(lambda: process.ended.is_set() or queued(queue_engine) == [], PATIENCE)
        runs = reloader.runs()
        old = {int(pid) for generation, pid, _ in runs if generation == "1"} - {process.pid}
        wait_until(lambda: not any(is_alive(pid) for pid in old), PATIENCE)
        assert is_alive(process.pid), process.text()
    finally:
        process.kill()

    assert Counter(before + after + [long]) == Counter(row.job_id for row in archived(queue_engine))
    assert {("success", 1)} == {(row.status, row.attempts) for row in archived(queue_engine)}
    assert {"0", "1", "2", "long"} == {payload for generation, _, payload in runs if generation == "1"}
    assert {"long", *"345678"} == {payload for generation, _, payload in runs if generation == "2"}
    assert len(before + after) + 2 == len(runs)
