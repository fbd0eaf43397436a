"""How fast many jobs are enqueued at once, until the commit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.scenarios.queue import new_queue
from proletarian_sa import enqueue_many

if TYPE_CHECKING:
    from benchmarks.measure import Numbers


def bulk(url: str, *, jobs: int, batch: int) -> Numbers:
    """Enqueue lists of so many jobs, each list in a transaction of its own."""
    engine = new_queue(url)
    with engine.begin() as connection:  # once before, so that all is loaded and compiled
        enqueue_many(connection, [{"job_type": "work", "payload": {"n": -1}}])
    rows = [{"job_type": "work", "payload": {"n": n}} for n in range(jobs)]
    begun, cpu = time.perf_counter(), time.process_time()
    for first in range(0, jobs, batch):
        with engine.begin() as connection:
            enqueue_many(connection, rows[first : first + batch])
    return {"jobs/s": jobs / (time.perf_counter() - begun), "CPU µs/job": (time.process_time() - cpu) / jobs * 1e6}
