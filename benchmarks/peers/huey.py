"""huey on SQLite."""

from __future__ import annotations

import time

from huey import SqliteHuey

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.peers.address import file_of


def drain(url: str, *, jobs: int, workers: int) -> Numbers:
    """Work off a full queue by so many threads, with every commit on disk."""
    huey = SqliteHuey("bench", filename=file_of(url), fsync=True, results=False)
    watch = Stopwatch(jobs)
    work = huey.task()(watch_task(watch))
    for n in range(jobs):
        work(n)
    consumer = huey.create_consumer(workers=workers, worker_type="thread", initial_delay=0.01, periodic=False)
    consumer.start()
    watch.done.wait()
    while huey.pending_count():
        time.sleep(0.002)
    ended = time.perf_counter()
    consumer.stop(graceful=True)
    return watch.numbers(ended)


def watch_task(watch: Stopwatch):  # type: ignore[no-untyped-def]  # noqa: ANN201 - huey takes any function
    """Return the job, which counts."""

    def work(_n: int) -> None:
        watch.tick()

    return work
