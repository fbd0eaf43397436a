"""Many worker processes and producers on one database lose nothing, do nothing twice, and are in nobody's way."""

import json
import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import default_tables, enqueue_many
from tests.helpers import wait_until
from tests.queue_contents import archived, queued
from tests.servers.database import Database
from tests.stress import tables
from tests.stress.application import THREADS, Options
from tests.stress.processes import PATIENCE, python
from tests.stress.producer import QUEUES, payload

pytestmark = pytest.mark.long

REPEATS = {"JobTransactionDied"}
"""Events that announce another run of the same job."""
ENDS = {"WorkerFailed", "ThreadDied", "OutcomeNotRecorded", "SinkFailed"}
"""Events that no worker may have."""


@dataclass(frozen=True)
class Load:
    """How much happens at the same time: worker processes of four threads, producer processes of two, jobs in all."""

    workers: int
    producers: int
    jobs: int

    @property
    def backlog(self) -> int:
        """How many of the jobs are there before any process starts."""
        return self.jobs // 5


def test_every_job_is_run_once(database: Database, queue_engine: sa.Engine, tmp_path: Path) -> None:
    """Double execution; deadlock on finish and claim: many processes on two queues archive every job once while others enqueue."""
    load = Load(workers=8, producers=2, jobs=3000) if database.server else Load(workers=2, producers=1, jobs=1000)

    report = run(database, queue_engine, load, tmp_path)

    report.check()


def test_serializable_database_costs_no_job(database: Database, queue_engine: sa.Engine, tmp_path: Path) -> None:
    """Serialization failure in the claim: where serializable is the default no claim, finish or enqueue fails for it."""
    database.require("default_isolation")
    with queue_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {database.url.database} SET default_transaction_isolation = 'serializable'")
    queue_engine.dispose()

    report = run(database, queue_engine, Load(workers=4, producers=1, jobs=1000), tmp_path)

    with queue_engine.connect() as connection:
        assert "serializable" == connection.exec_driver_sql("SHOW transaction_isolation").scalar()
    report.check()


@dataclass(frozen=True)
class Report:
    """What came of it all."""

    engine: sa.Engine
    load: Load
    enqueued: list[str]
    codes: dict[str, list[int]]
    output: str
    log: list[dict[str, Any]]

    def check(self) -> None:
        """Hold it against what is promised."""
        repeated = {line["job_id"] for line in self.log if line["name"] in REPEATS}
        archive = archived(self.engine)
        with self.engine.connect() as connection:
            runs = Counter(connection.scalars(sa.select(tables.runs.c.job_id)))
            effects = list(connection.scalars(sa.select(tables.effects.c.job_id)))
            signed_up = connection.scalar(sa.select(sa.func.sum(tables.signups.c.jobs)))

        assert {"producer": [0] * self.load.producers, "worker": [0] * self.load.workers} == self.codes, self.output
        assert [] == [line for line in self.log if line["name"] in ENDS]
        assert [THREADS] * self.load.workers == self.living_handlers()
        assert [] == queued(self.engine)
        assert sorted(self.enqueued) == sorted(str(row.job_id) for row in archive)
        assert {"success"} == {row.status for row in archive}
        assert set(self.enqueued) == set(runs)
        assert {} == {job_id: count for job_id, count in runs.items() if count > 1 and job_id not in repeated}
        assert sorted(str(row.job_id) for row in archive if json.loads(row.payload)["effect"]) == sorted(effects)
        assert len(self.enqueued) - self.load.backlog == signed_up

    def living_handlers(self) -> list[int]:
        """Return for each process how many of its handler threads lived to the end."""
        threads = [line["text"] for line in self.log if line["name"] == "Threads"]
        return [sum(" handler " in name for name in names) for names in threads]


def run(database: Database, engine: sa.Engine, load: Load, folder: Path) -> Report:
    """Let workers and producers run against each other until all jobs are done."""
    tables.metadata.create_all(engine)
    log, report, output = folder / "log", folder / "report", folder / "output"
    for file in (log, report):
        file.touch()
    url = database.url_text
    with engine.begin() as connection:
        rows = [{"job_type": "work", "payload": payload(n), "queue": QUEUES[n % 2]} for n in range(load.backlog)]
        enqueued = [str(job_id) for job_id in enqueue_many(connection, rows)]
    share = str((load.jobs - load.backlog) // load.producers)
    ids = [folder / f"ids {n}" for n in range(load.producers)]
    commands = [["worker", "tests.stress.application:make_worker", "--queue", QUEUES[n % 2]] for n in range(load.workers)]
    commands += [["producer", url, share, str(file)] for file in ids]
    herd = ["-m", "tests.stress.herd", str(report), json.dumps(commands), url]
    with python(*herd, environment=Options(url=url, log=str(log)).environment(), output=output) as process:
        wait_until(lambda: len(ended(report, "producer")) == load.producers, timeout=PATIENCE, pause=0.1)
        wait_until(lambda: is_empty(engine), timeout=PATIENCE, pause=0.1)
        workers = [line["pid"] for line in lines(report) if line["command"] == "worker" and "code" not in line]
        alive = [pid for pid in workers if pid not in {line["pid"] for line in ended(report, "worker")}]
        for pid in alive:
            os.kill(pid, signal.SIGUSR1)
        wait_until(lambda: log.read_text().count('"Threads"') == len(alive), pause=0.05)
        for pid in alive:
            os.kill(pid, signal.SIGTERM)
        process.wait(PATIENCE)
    for file in ids:
        enqueued += json.loads(file.read_text()) if file.exists() else []
    codes = {command: [line["code"] for line in ended(report, command)] for command in ("producer", "worker")}
    return Report(engine, load, enqueued, codes, output.read_text(), lines(log))


def lines(file: Path) -> list[dict[str, Any]]:
    """Return the JSON lines of a file; the last may still be in the making."""
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def ended(report: Path, command: str) -> list[dict[str, Any]]:
    """Return what is reported of processes that have ended."""
    return [line for line in lines(report) if line["command"] == command and "code" in line]


def is_empty(engine: sa.Engine) -> bool:
    """Return whether no job is queued or running."""
    with engine.connect() as connection:
        return connection.scalar(sa.select(default_tables.job.c.job_id).limit(1)) is None
