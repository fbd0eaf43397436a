"""Whether a worker's memory stays flat over many jobs, a tenth of which fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.scenarios.queue import make_worker, new_queue

SETTLED = 0.3
"""After this share of the jobs all is loaded and all buffers have grown."""


def memory(url: str, *, jobs: int, threads: int = 4) -> Numbers:
    """Return the resident memory when it had settled and at the end, in MiB, and the ratio of the two."""
    engine = new_queue(url, jobs, threads=threads)
    watch = Stopwatch(jobs)
    settled = 0.0

    def work(payload: dict[str, Any]) -> None:
        nonlocal settled
        watch.tick()
        if not settled and watch.count >= jobs * SETTLED:
            settled = resident()
        if payload["n"] % 10 == 0:
            raise ValueError("a tenth of the jobs fail")

    with make_worker(engine, work, worker_threads=threads) as worker:
        watch.wait_for(worker)
        ended = resident()
    return {"MiB settled": settled, "MiB at the end": ended, "growth": ended / settled, "jobs/s": watch.rate()}


def resident() -> float:
    """Return this process's resident memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
