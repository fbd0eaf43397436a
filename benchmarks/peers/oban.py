"""Oban for Python."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from oban import Oban, worker
from oban.schema import install

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.peers.address import all_handled, plain, wait_until


class Work:
    """The job, which counts."""

    watch = Stopwatch(0)

    async def process(self, _job: object) -> None:
        """Count."""
        self.watch.tick()


Worker: Any = worker(queue="default")(Work)


def drain(url: str, *, jobs: int, limit: int) -> Numbers:
    """Work off a full queue, so many jobs at a time."""
    return asyncio.run(_drain(plain(url), jobs, limit))


async def _drain(url: str, jobs: int, limit: int) -> Numbers:
    pool = await Oban.create_pool(dsn=url)
    await install(pool)
    client = Oban(pool=pool)
    await enqueue(client, jobs, 1000)
    async with pool.connection() as connection:
        await connection.set_autocommit(True)
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
        await connection.set_autocommit(False)
    Work.watch = Stopwatch(jobs)

    async def is_empty() -> bool:
        async with pool.connection() as connection:
            cursor = await connection.execute("SELECT 1 FROM oban_jobs WHERE state <> 'completed' LIMIT 1")
            return await cursor.fetchone() is None

    async with Oban(pool=pool, queues={"default": limit}):
        await all_handled(Work.watch)
        ended = await wait_until(is_empty)
    await pool.close()
    return Work.watch.numbers(ended)


def bulk(url: str, *, jobs: int, batch: int) -> Numbers:
    """Enqueue lists of so many jobs, each list in a transaction of its own."""
    return asyncio.run(_bulk(plain(url), jobs, batch))


async def _bulk(url: str, jobs: int, batch: int) -> Numbers:
    pool = await Oban.create_pool(dsn=url)
    await install(pool)
    client = Oban(pool=pool)
    await enqueue(client, 1, 1)
    begun = time.perf_counter()
    await enqueue(client, jobs, batch)
    seconds = time.perf_counter() - begun
    await pool.close()
    return {"jobs/s": jobs / seconds}


async def enqueue(client: Oban, jobs: int, batch: int) -> None:
    """Enqueue jobs in batches."""
    for first in range(0, jobs, batch):
        await client.enqueue_many([Worker.new({"n": n}) for n in range(first, min(first + batch, jobs))])
