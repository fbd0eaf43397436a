"""How fast jobs are worked off of which each fails once and is tried again at once."""

from __future__ import annotations

import threading

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.scenarios.queue import make_worker, new_queue, wait_until_empty
from proletarian_sa import RetryStrategy


def retries(url: str, *, jobs: int, threads: int = 4) -> Numbers:
    """Return jobs a second; each is claimed twice, fails once, and succeeds."""
    engine = new_queue(url, jobs, threads=threads)
    watch, seen, lock = Stopwatch(2 * jobs), set[int](), threading.Lock()

    def work(payload: dict[str, int]) -> None:
        watch.tick()
        with lock:
            first = payload["n"] not in seen
            seen.add(payload["n"])
        if first:
            raise ValueError("the first attempt of each job fails")

    with make_worker(engine, work, worker_threads=threads, retry=RetryStrategy(retries=1, delays=[0])) as worker:
        watch.wait_for(worker)
        ended = wait_until_empty(engine)
    return {"jobs/s": jobs / (ended - watch.started)}
