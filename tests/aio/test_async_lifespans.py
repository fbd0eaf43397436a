"""An async worker in the lifespan of a web application, as a server of ASGI runs it."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from proletarian_sa import events
from tests.aio.scene import until
from tests.observing import add
from tests.queue_contents import archived


@asynccontextmanager
async def served(app):
    """Begin and end an application's lifespan, as a server does."""
    to_app, from_app = asyncio.Queue(), asyncio.Queue()
    task = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, to_app.get, from_app.put))
    await to_app.put({"type": "lifespan.startup"})
    assert {"type": "lifespan.startup.complete"} == await from_app.get()
    try:
        yield
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        assert {"type": "lifespan.shutdown.complete"} == await from_app.get()
        await task


@pytest.mark.parametrize("application", [Starlette, FastAPI])
@pytest.mark.parametrize("driver", ["aiosqlite"])
def test_a_worker_in_a_lifespan(queue_engine, scene, application):
    """It runs jobs while the application is served; a job that runs at the end is waited for; reloaded, a new one goes on."""
    begun, finish = asyncio.Event(), asyncio.Event()

    async def handle(_job):
        begun.set()
        await finish.wait()

    async def test():
        worker, seen = scene.work(handle)

        @asynccontextmanager
        async def lifespan(_app):
            async with worker:
                yield

        async with served(application(lifespan=lifespan)):
            add(queue_engine)
            await begun.wait()
            asyncio.get_running_loop().call_later(0.05, finish.set)
        stopped = not worker.is_running
        async with served(application(lifespan=lifespan)):
            add(queue_engine)
            await until(lambda: len(seen.of(events.JobSucceeded)) == 2)
        return stopped, worker.is_running

    assert (True, False) == scene.run(test)
    assert ["success", "success"] == [row.status for row in archived(queue_engine)]
