"""Workers on several nodes who all claim from the head of one queue."""

import time
from collections import Counter
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from proletarian_sa import QueueWorker, RunningJob, default_tables, enqueue_many, events
from proletarian_sa.spread import Spread
from tests.clusters.load import ON_EACH, PATIENCE, conflicts
from tests.helpers import wait_until
from tests.queue_contents import archived

JOBS = 900
SECONDS = 0.02
"""What a handler takes: each job is a claim, and of six workers there are always some who claim."""


@dataclass(frozen=True)
class Contest:
    """What came of it."""

    claims: int
    conflicts: int
    seconds: float

    @property
    def share(self) -> float:
        """How many of the claims were undone by another, 0 to 1."""
        return self.conflicts / self.claims

    def __str__(self) -> str:
        return f"{self.conflicts} conflicts in {self.claims} claims ({self.share:.0%}), {JOBS / self.seconds:.0f} jobs/s"


def before_and_after(engines: list[sa.Engine]) -> tuple[Contest, Contest]:
    """Measure claims that never spread, and then as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spread, "lost", lambda _spread: None)
        before = contest(engines)
    return before, contest(engines)


def contest(engines: list[sa.Engine]) -> Contest:
    """Let two workers on each engine do jobs that are all due already, and count how often one claim undid another."""
    with engines[0].begin() as connection:
        ids = enqueue_many(connection, [{"job_type": "work"}] * JOBS)
    for engine in engines:
        wait_until(lambda engine=engine: has_all(engine, len(ids)), timeout=PATIENCE, pause=0.02)
    seen: list[events.Event] = []
    runs: list[object] = []

    def handler(job: RunningJob) -> None:
        runs.append(job.job_id)
        time.sleep(SECONDS)

    options = {"handler_mode": "advanced", "polling_interval": 0.05, "on_event": seen.append}
    workers = [QueueWorker(engine, handler, **options) for engine in engines for _ in range(ON_EACH)]
    begun = time.monotonic()
    try:
        for worker in workers:
            worker.start()
        wait_until(lambda: len(runs) >= len(ids), timeout=PATIENCE, pause=0.01)
        took = time.monotonic() - begun
    finally:
        for worker in workers:
            worker.stop()
    wait_until(lambda: set(ids) <= {row.job_id for row in archived(engines[0])}, timeout=PATIENCE)
    assert Counter(ids) == Counter(runs)
    lost, claims = conflicts(engines[0], seen)
    return Contest(claims, lost, took)


def has_all(engine: sa.Engine, count: int) -> bool:
    """Tell whether a node has seen all jobs, which come there after the commit elsewhere."""
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(default_tables.job)) == count
