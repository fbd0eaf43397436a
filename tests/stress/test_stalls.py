"""Workers that stand still past their leases, and are killed, do no job's work twice and lose none."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from proletarian_sa import enqueue_many
from tests.helpers import scaled, wait_until
from tests.queue_contents import archived
from tests.servers.database import Database
from tests.stress import tables
from tests.stress.processes import PATIENCE, REPOSITORY
from tests.stress.test_many_processes import is_empty, lines

pytestmark = pytest.mark.long

JOBS = 200
EVERY = 33
"""One of so many jobs stops its process: three of a hundred."""
KILLS = 4


def test_stalls_and_kills(database: Database, queue_engine: sa.Engine, tmp_path: Path) -> None:
    """Four workers, 3 % of handlers stalling past their lease, random SIGKILLs: archived once, finished once, effects once."""
    tables.metadata.create_all(queue_engine)
    jobs = scaled(JOBS)
    payloads = [{"stall": 0 if number % EVERY else 1 + number // EVERY % 2} for number in range(1, jobs + 1)]
    with queue_engine.begin() as connection:
        ids = [str(job_id) for job_id in enqueue_many(connection, [{"job_type": "work", "payload": one} for one in payloads])]
    log, report, output = tmp_path / "log", tmp_path / "report", tmp_path / "output"
    options = {"url": database.url_text, "log": str(log), "report": str(report), "kills": scaled(KILLS)}

    with output.open("w") as file:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "tests.stress.stalls", json.dumps(options)], cwd=REPOSITORY, stdin=subprocess.PIPE, stderr=file
        )
    try:
        wait_until(lambda: is_empty(queue_engine), timeout=scaled(int(PATIENCE)), pause=0.1)
        wait_until(lambda: is_over(report), timeout=PATIENCE)
    except AssertionError as error:
        raise AssertionError(report.read_text() + output.read_text()) from error
    finally:
        supervisor.stdin.close()
        supervisor.wait(PATIENCE)
    done, told = json.loads(report.read_text()), lines(log)
    with queue_engine.connect() as connection:
        effects = Counter(connection.scalars(sa.select(tables.effects.c.job_id)))
        runs = Counter(connection.scalars(sa.select(tables.runs.c.job_id)))
    finished = Counter(line["job_id"] for line in told if line["name"] == "JobSucceeded")

    assert sorted(ids) == sorted(str(row.job_id) for row in archived(queue_engine)), output.read_text()
    assert {"success"} == {row.status for row in archived(queue_engine)}
    assert {1} == {row.attempts for row in archived(queue_engine)}
    assert dict.fromkeys(ids, 1) == dict(effects)
    assert {1} == set(finished.values())
    assert scaled(KILLS) == done["kills"] == done["deaths"]
    assert jobs // EVERY - scaled(KILLS) <= done["stalls"]  # a kill may come before anybody has noticed
    assert set(runs) == set(ids)


def is_over(report: Path) -> bool:
    """Return whether all kills are done, and all deaths are known."""
    try:
        done = json.loads(report.read_text())
    except ValueError:  # in the making
        return False
    return bool(done["kills"] == done["deaths"] == scaled(KILLS))
