"""An async worker in the lifespan of a web application, as a server of ASGI runs it."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI
from litestar import Litestar
from starlette.applications import Starlette

from proletarian_sa import events
from tests.aio.scene import until
from tests.asgi import served
from tests.observing import add
from tests.queue_contents import archived

APPLICATIONS = {
    "Starlette": lambda lifespan: Starlette(lifespan=lifespan),
    "FastAPI": lambda lifespan: FastAPI(lifespan=lifespan),
    "Litestar": lambda lifespan: Litestar(lifespan=[lifespan]),
}


@pytest.mark.parametrize("application", APPLICATIONS)
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

        async with served(APPLICATIONS[application](lifespan)):
            add(queue_engine)
            await begun.wait()
            asyncio.get_running_loop().call_later(0.05, finish.set)
        stopped = not worker.is_running
        async with served(APPLICATIONS[application](lifespan)):
            add(queue_engine)
            await until(lambda: len(seen.of(events.JobSucceeded)) == 2)
        return stopped, worker.is_running

    assert (True, False) == scene.run(test)
    assert ["success", "success"] == [row.status for row in archived(queue_engine)]
