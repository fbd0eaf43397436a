"""procrastinate."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.peers.address import all_handled, plain, wait_until


def drain(url: str, *, jobs: int, concurrency: int) -> Numbers:
    """Work off a full queue, so many jobs at a time."""
    return asyncio.run(_drain(plain(url), jobs, concurrency))


async def _drain(url: str, jobs: int, concurrency: int) -> Numbers:
    app = App(connector=PsycopgConnector(conninfo=url, max_size=max(4, min(concurrency + 2, 20))))
    watch = Stopwatch(jobs)

    async def work(n: int) -> None:  # noqa: ARG001 - what is not async runs in threads, which is slower
        watch.tick()

    task = app.task(name="work")(work)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await enqueue(task, jobs, 1000)
        await app.connector.execute_query_async("ANALYZE")

        async def is_empty() -> bool:
            row = await app.connector.execute_query_one_async(
                "SELECT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE status <> 'succeeded') AS some"
            )
            return not row["some"]

        running = asyncio.create_task(
            app.run_worker_async(concurrency=concurrency, install_signal_handlers=False, listen_notify=False)
        )
        await all_handled(watch)
        ended = await wait_until(is_empty)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return watch.numbers(ended)


def bulk(url: str, *, jobs: int, batch: int) -> Numbers:
    """Enqueue lists of so many jobs, each list in a transaction of its own."""
    return asyncio.run(_bulk(plain(url), jobs, batch))


async def _bulk(url: str, jobs: int, batch: int) -> Numbers:
    app = App(connector=PsycopgConnector(conninfo=url))
    task = app.task(name="work")(lambda n: n)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await enqueue(task, 1, 1)
        begun = time.perf_counter()
        await enqueue(task, jobs, batch)
        return {"jobs/s": jobs / (time.perf_counter() - begun)}


async def enqueue(task: Any, jobs: int, batch: int) -> None:
    """Enqueue jobs in batches."""
    for first in range(0, jobs, batch):
        await task.batch_defer_async(*({"n": n} for n in range(first, min(first + batch, jobs))))
