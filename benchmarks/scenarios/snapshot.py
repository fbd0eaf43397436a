"""Whether the rate falls while a transaction of somebody else keeps an old snapshot open, so that dead rows must stay."""

from __future__ import annotations

from contextlib import ExitStack

import sqlalchemy as sa

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.scenarios.queue import counting_worker, full_name, new_queue
from proletarian_sa import default_tables


def snapshot(url: str, *, jobs: int, held_open: bool, threads: int = 4) -> Numbers:
    """Return the rate over all jobs, and that of the last quarter, when most are dead rows."""
    engine = new_queue(url, jobs, threads=threads)
    watch = Stopwatch(jobs)
    with ExitStack() as stack:
        if held_open:
            connection = stack.enter_context(engine.connect().execution_options(isolation_level="REPEATABLE READ"))
            connection.execute(sa.text(f"SELECT count(*) FROM {full_name(engine)(default_tables.archived_job)}"))  # noqa: S608
        worker = stack.enter_context(counting_worker(engine, watch, worker_threads=threads))
        watch.wait_for(worker)
    return {"jobs/s": watch.rate(), "jobs/s at the end": watch.last_quarter / (watch.ended - watch.marked)}
