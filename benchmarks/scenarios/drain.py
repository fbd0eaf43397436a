"""How fast a full queue is emptied: from the first call of a handler until the last outcome is in the archive."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.profile import profile
from benchmarks.scenarios.queue import counting_worker, new_queue, open_engine, wait_until_empty

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.process import BaseProcess
    from multiprocessing.sharedctypes import SynchronizedArray
    from multiprocessing.synchronize import Event


class Together(NamedTuple):
    """What several processes share: which are ready, how many jobs each has done, and the words to begin and to stop."""

    ready: SynchronizedArray[int]
    counts: SynchronizedArray[int]
    go: Event
    stop: Event


def drain(url: str, *, jobs: int, threads: int = 1, processes: int = 1, claim: str = "leased") -> Numbers:
    """Empty a queue by one worker in this process, or by several in as many processes."""
    engine = new_queue(url, jobs, threads=threads)
    if processes > 1:
        rate = drain_by_processes(url, jobs, processes, {"worker_threads": threads, "claim": claim})
        wait_until_empty(engine)
        return {"jobs/s": rate}
    watch = Stopwatch(jobs)
    with counting_worker(engine, watch, worker_threads=threads, claim=claim) as worker:
        watch.wait_for(worker)
        return watch.numbers(wait_until_empty(engine)) | profile(engine, jobs)


def drain_by_processes(url: str, jobs: int, processes: int, options: dict[str, Any]) -> float:
    """Let processes work at the same time; return their rate, from the moment when all may begin."""
    context = multiprocessing.get_context("spawn")
    together = Together(context.Array("l", processes), context.Array("l", processes), context.Event(), context.Event())
    workers = [context.Process(target=work, args=(url, number, together, options)) for number in range(processes)]
    for worker in workers:
        worker.start()
    wait(workers, together.ready, processes)
    begun = time.perf_counter()
    together.go.set()
    wait(workers, together.counts, jobs)
    ended = time.perf_counter()
    together.stop.set()
    for worker in workers:
        worker.join()
    return jobs / (ended - begun)


def wait(workers: Sequence[BaseProcess], counts: SynchronizedArray[int], wanted: int) -> None:
    """Wait until all together have come so far."""
    while sum(counts[:]) < wanted:
        if not all(worker.is_alive() for worker in workers):
            raise RuntimeError("a process has ended before the jobs did")
        time.sleep(0.002)


def work(url: str, number: int, together: Together, options: dict[str, Any]) -> None:
    """Be one of several processes: say that all is loaded, wait for the word, work, say how far we are."""
    watch = Stopwatch(0)
    worker = counting_worker(open_engine(url, options["worker_threads"]), watch, **options)
    together.ready[number] = 1
    together.go.wait()
    with worker:
        while not together.stop.wait(0.002):
            together.counts[number] = watch.count
