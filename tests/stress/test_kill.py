"""A worker that is killed costs its job one lease of time, and nobody else anything."""

import os
import signal
import uuid
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from proletarian_sa import QueueWorker, enqueue_many
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, lapse
from tests.queue_contents import archived, queued
from tests.servers.database import Database
from tests.stress import tables
from tests.stress.application import THREADS
from tests.stress.processes import python
from tests.stress.victim import KILLER, NAME, POINTS, make_jobs

pytestmark = pytest.mark.long

LEASE = 3600.0
"""Seconds: no lease lapses but those that the test lets lapse."""
WARM_UP = 30
"""Short jobs, after which a worker takes several at a time."""
AHEAD = 8
AFTER = 5


@pytest.mark.parametrize("point", POINTS)
def test_killed_worker(database: Database, queue_engine: sa.Engine, tmp_path: Path, point: str) -> None:
    """Lost job, worker killed: it runs once more after the lease, in one attempt, as do those taken ahead; others run at once."""
    tables.metadata.create_all(queue_engine)
    sign = tmp_path / "sign"
    warm_up = add(queue_engine, ["work"] * WARM_UP)
    arguments = [database.url_text, point, str(sign), str(LEASE)]
    recorder = Recorder()
    rescuers_jobs = make_jobs(database.create_engine(isolation_level="AUTOCOMMIT"))
    rescuer = QueueWorker(database.create_engine(), rescuers_jobs, polling_interval=0.02, lease=LEASE, on_event=recorder)
    with python("-m", "tests.stress.victim", *arguments, output=tmp_path / "output") as victim:
        wait_until(lambda: len(archived(queue_engine)) == WARM_UP, timeout=PATIENCE, pause=0.05)
        killer, *ahead = add(queue_engine, [KILLER] + ["work"] * AHEAD, due_in=0.3)
        wait_until(sign.exists, timeout=PATIENCE)
        with rescuer:
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait(PATIENCE)
            taken = [row.job_id for row in queued(queue_engine) if (row.claimed_by or "").startswith(NAME)]
            after = add(queue_engine, ["work"] * AFTER)
            wait_until(lambda: set(after) <= {row.job_id for row in archived(queue_engine)}, pause=0.05)
            for job_id in taken:
                lapse(queue_engine, job_id)
            wait_until(lambda: queued(queue_engine) == [], timeout=PATIENCE, pause=0.05)
    rows = {row.job_id: row for row in archived(queue_engine)}
    runs, effects = marks(queue_engine, tables.runs), marks(queue_engine, tables.effects)
    everybody = [*warm_up, killer, *ahead, *after]
    first_run = {job_id: number for number, job_id in reversed(list(enumerate(runs)))}
    last_run = {job_id: number for number, job_id in enumerate(runs)}
    others = {job_id for job_id in taken if job_id != killer}
    ran_twice = point in {"in the handler", "archived"}

    assert killer in taken
    assert point != "claimed" or len(others) >= THREADS - 1
    assert sorted(everybody) == sorted(rows)
    assert {"success"} == {row.status for row in rows.values()}
    assert sorted(everybody) == sorted(effects)
    assert Counter(everybody) + Counter([killer] if ran_twice else []) == Counter(runs)
    assert {1} == {row.attempts for row in rows.values()}
    assert {killer: 1, **dict.fromkeys(others, 1)} == {job_id: row.crashes for job_id, row in rows.items() if row.crashes}
    assert max(first_run[job_id] for job_id in after) < last_run[killer]


def add(engine: sa.Engine, job_types: list[str], due_in: float = 0) -> list[uuid.UUID]:
    """Enqueue jobs in one transaction, due in this order, a microsecond apart.

    `due_in` (seconds): a claim that meets the commit may see some of its rows and skip others, whose locks InnoDB has not released
    yet; jobs that become due after the commit are seen together.
    """
    with engine.begin() as connection:
        return enqueue_many(connection, [{"job_type": job_type, "process_in": due_in} for job_type in job_types])


def marks(engine: sa.Engine, table: sa.Table) -> list[uuid.UUID]:
    """Return whose marks there are, in the order in which they were made."""
    with engine.connect() as connection:
        return [uuid.UUID(text) for text in connection.scalars(sa.select(table.c.job_id).order_by(table.c.number))]
