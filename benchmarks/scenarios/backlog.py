"""Whether the rate depends on how many jobs wait: queued ones, and ones that are scheduled for later."""

from __future__ import annotations

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.scenarios.queue import counting_worker, fill, new_queue, settle

LATER = 30 * 86_400.0
"""Seconds until scheduled jobs are due."""


def backlog(url: str, *, queued: int, scheduled: int = 0, window: int = 10_000, windows: int = 3, threads: int = 4) -> Numbers:
    """Take a window of jobs from the queue, several times; it is filled up again in between.

    Returns the rate over all windows, each from the first call of a handler to the last.
    """
    engine = new_queue(url, scheduled, threads=threads, process_in=LATER)
    fill(engine, queued)
    settle(engine)
    seconds = 0.0
    for _ in range(windows):
        watch = Stopwatch(window)
        with counting_worker(engine, watch, worker_threads=threads) as worker:
            watch.wait_for(worker)
        seconds += watch.ended - watch.started
        fill(engine, watch.count)  # what the worker has done until it stopped
    return {"jobs/s": window * windows / seconds}
