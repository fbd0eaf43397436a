"""DBOS: workflows that do nothing, on a queue."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from dbos import DBOS

from benchmarks.measure import Numbers, Stopwatch

QUEUE = "work"
watch = Stopwatch(0)


@DBOS.workflow()
def work(_n: int) -> None:
    """Count."""
    watch.tick()


def drain(url: str, *, jobs: int, worker_concurrency: int | None, polling: float) -> Numbers:
    """Work off a full queue; nobody takes from a queue that is not registered yet."""
    watch.jobs = jobs
    config: dict[str, Any] = {"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"}
    DBOS(config=config)  # type: ignore[arg-type,unused-ignore]
    DBOS.launch()
    engine = sa.create_engine(url)
    begun = time.perf_counter()
    for n in range(jobs):
        DBOS.enqueue_workflow(QUEUE, work, n)
    enqueued = time.perf_counter()
    DBOS.register_queue(QUEUE, worker_concurrency=worker_concurrency, polling_interval_sec=polling)
    watch.done.wait()
    unfinished = sa.text("SELECT 1 FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING') LIMIT 1")
    while True:
        with engine.connect() as connection:
            if connection.execute(unfinished).first() is None:
                break
        time.sleep(0.002)
    numbers = watch.numbers(time.perf_counter())
    DBOS.destroy()
    return numbers | {"enqueued/s": jobs / (enqueued - begun)}
