"""Alchemical Queues on SQLite."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from alchemical_queues import AlchemicalQueues
from alchemical_queues.tasks import Worker, task

from benchmarks.measure import Numbers, Stopwatch

watch = Stopwatch(0)


@task
def work(_info: object, _n: int) -> None:
    """Count."""
    watch.tick()


def write_ahead(connection: Any, _record: object) -> None:
    """Set what an application on SQLite would."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def drain(url: str, *, jobs: int, workers: int) -> Numbers:
    """Work off a full queue by so many threads, each with a worker."""
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", write_ahead)
    queues = AlchemicalQueues(engine)
    queues.create_all()
    queue = queues.get_task_queue("bench")
    watch.jobs = jobs
    for n in range(jobs):
        work(n).schedule(queue)
    for _ in range(workers):
        threading.Thread(target=Worker(queue, poll_every=timedelta(milliseconds=10)).work, daemon=True).start()
    watch.done.wait()
    while not queue.empty():
        time.sleep(0.002)
    return watch.numbers(time.perf_counter())
