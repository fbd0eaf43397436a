"""PgQueuer on asyncpg and on psycopg."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import uvloop
from pgqueuer import PgQueuer

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.peers.address import all_handled, plain, wait_until

TABLE = "pgqueuer"


def drain(url: str, *, jobs: int, driver: str, batch: int) -> Numbers:
    """Work off a full queue."""
    numbers: Numbers = uvloop.run(_drain(plain(url), jobs, driver, batch))
    return numbers


async def _drain(url: str, jobs: int, driver: str, batch: int) -> Numbers:
    connection, queuer = await connect(url, driver)
    observer = await asyncpg.connect(url)
    await queuer.qm.queries.install()
    watch = Stopwatch(jobs)

    async def work(_job: object) -> None:  # PgQueuer runs what is not async in threads, which is slower
        watch.tick()

    queuer.entrypoint("work")(work)
    await enqueue(queuer, jobs, 5000)
    await observer.execute("VACUUM ANALYZE")
    await observer.execute("CHECKPOINT")
    running = asyncio.create_task(queuer.run(batch_size=batch, dequeue_timeout=timedelta(seconds=1)))
    await all_handled(watch)
    queuer.shutdown.set()  # it would keep the last outcomes for a while, waiting for more
    ended = await wait_until(lambda: _is_empty(observer))
    await running
    await observer.close()
    await connection.close()
    return watch.numbers(ended)


def bulk(url: str, *, jobs: int, driver: str, batch: int) -> Numbers:
    """Enqueue lists of so many jobs, each list in a transaction of its own."""
    numbers: Numbers = uvloop.run(_bulk(plain(url), jobs, driver, batch))
    return numbers


async def _bulk(url: str, jobs: int, driver: str, batch: int) -> Numbers:
    connection, queuer = await connect(url, driver)
    await queuer.qm.queries.install()
    await enqueue(queuer, 1, 1)
    begun = time.perf_counter()
    await enqueue(queuer, jobs, batch)
    seconds = time.perf_counter() - begun
    await connection.close()
    return {"jobs/s": jobs / seconds}


async def connect(url: str, driver: str) -> tuple[Any, PgQueuer]:
    """Connect by a driver."""
    if driver == "asyncpg":
        connection = await asyncpg.connect(url)
        return connection, PgQueuer.from_asyncpg_connection(connection)
    other = await psycopg.AsyncConnection.connect(url, autocommit=True)
    return other, PgQueuer.from_psycopg_connection(other)


async def enqueue(queuer: PgQueuer, jobs: int, batch: int) -> None:
    """Enqueue jobs in batches."""
    for first in range(0, jobs, batch):
        numbers = range(first, min(first + batch, jobs))
        payloads = [b'{"n": %d}' % n for n in numbers]
        await queuer.qm.queries.enqueue(["work"] * len(numbers), payloads, [0] * len(numbers))


async def _is_empty(observer: Any) -> bool:
    return await observer.fetchval(f"SELECT 1 FROM {TABLE} LIMIT 1") is None  # noqa: S608
