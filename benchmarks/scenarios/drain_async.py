"""How fast a full queue is emptied by handlers that are coroutines, on one event loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import sqlalchemy as sa
import uvloop
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.profile import profile
from benchmarks.scenarios.queue import new_queue, wait_until_empty
from proletarian_sa import AsyncQueueWorker, JobRegistry
from proletarian_sa.cli import take_short_turns

if TYPE_CHECKING:
    from sqlalchemy import Engine


def drain(url: str, *, jobs: int, driver: str, concurrency: int) -> Numbers:
    """Empty a queue by one worker in this process; the queue is filled by another driver."""
    engine = new_queue(url, jobs)
    take_short_turns()  # as the command does
    numbers: Numbers = uvloop.run(_drain(engine, sa.make_url(url), jobs, driver, concurrency))
    return numbers


async def _drain(engine: Engine, url: sa.URL, jobs: int, driver: str, concurrency: int) -> Numbers:
    watch, registry = Stopwatch(jobs), JobRegistry()

    @registry.handler("work")
    async def work(_payload: object) -> None:
        watch.tick()

    async_engine = create_async_engine(url.set(drivername=f"{url.get_backend_name()}+{driver}"))
    before = time.thread_time()
    async with AsyncQueueWorker(async_engine, registry, concurrency=concurrency) as worker:
        await asyncio.to_thread(watch.wait_for, worker)
        numbers = watch.numbers(await asyncio.to_thread(wait_until_empty, engine)) | profile(engine, jobs, before)
    await async_engine.dispose()
    return numbers
