"""How soon an idle worker begins a job: from the moment when COMMIT is sent to the first line of the handler."""

from __future__ import annotations

import multiprocessing
import random
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from benchmarks.measure import Numbers, percentile
from benchmarks.scenarios.queue import make_worker, new_queue, open_engine
from proletarian_sa import JobTables, enqueue

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

QUIET = 0.02
"""Seconds between a job's start and the next commit, and up to as many more by chance: the worker is idle again."""


def pick_up(url: str, *, jobs: int, process: bool = True, polling_interval: float = 0.1) -> Numbers:
    """Commit jobs one by one for a worker in another process, or in this one; by NOTIFY where there is such a thing."""
    tables = JobTables(notify=True)
    engine = new_queue(url)
    here, there = multiprocessing.get_context("spawn").Pipe()
    arguments = (url, there, polling_interval)
    worker: Any = multiprocessing.get_context("spawn").Process(target=work, args=arguments) if process else None
    if worker:
        worker.start()
        here.recv()
    else:
        worker = make_worker(engine, lambda _: there.send(time.monotonic()), polling_interval=polling_interval, tables=tables)
        worker.start()

    def commit() -> float:
        session = Session(engine)
        enqueue(session, "work", tables=tables)
        session.flush()
        sent = time.monotonic()
        session.commit()
        session.close()
        return sent

    numbers = sample(jobs, commit, here)
    if process:
        here.send(None)
        worker.join()
    else:
        worker.stop()
    return numbers


def sample(jobs: int, commit: Callable[[], float], started: Connection) -> Numbers:
    """Commit one after the other; `commit` returns when it was sent, `started` receives when the work has begun."""
    waits = []
    for _ in range(jobs + 5):
        time.sleep(QUIET * random.uniform(1, 2))
        sent = commit()
        waits.append((started.recv() - sent) * 1000)
    waits = waits[5:]  # the first ones load and compile
    return {"median ms": percentile(waits, 0.5), "p99 ms": percentile(waits, 0.99)}


def work(url: str, there: Connection, polling_interval: float) -> None:
    """Be a process with a worker, until told to stop."""
    worker = make_worker(
        open_engine(url), lambda _: there.send(time.monotonic()), polling_interval=polling_interval, tables=JobTables(notify=True)
    )
    with worker:
        time.sleep(0.5)
        there.send(0.0)
        there.recv()
