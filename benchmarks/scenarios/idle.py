"""What an idle worker asks of its database."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.scenarios.queue import counting_worker, new_queue
from proletarian_sa import JobTables, default_tables


def idle(url: str, *, seconds: float, threads: int = 16, polling_interval: float = 0.1, notify: bool = False) -> Numbers:
    """Count the statements of an idle worker, and its processor time."""
    engine = new_queue(url, threads=threads)
    tables = JobTables(notify=True) if notify else default_tables
    of_jobs = statements = 0

    def count(_connection: object, _cursor: object, statement: str, *_: Any) -> None:
        nonlocal of_jobs, statements
        statements += 1
        of_jobs += default_tables.job.name in statement

    with counting_worker(engine, Stopwatch(0), worker_threads=threads, polling_interval=polling_interval, tables=tables):
        time.sleep(min(1.0, seconds))
        sa.event.listen(engine, "before_cursor_execute", count)
        begun, cpu = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        sa.event.remove(engine, "before_cursor_execute", count)
        lasted, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return {
        "statements about jobs per interval": of_jobs / (lasted / polling_interval),
        "statements/s": statements / lasted,
        "CPU ms/s": cpu / lasted * 1000,
    }
