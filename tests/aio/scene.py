"""An event loop for one test, an async engine in it, and workers that are stopped at its end."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from proletarian_sa import AsyncQueueWorker
from tests.observing import PATIENCE, Recorder

DRIVERS = {
    "psycopg": ("postgresql",),
    "asyncpg": ("postgresql",),
    "asyncmy": ("mysql", "mariadb"),
    "aiosqlite": ("sqlite",),
}
"""The drivers, and the kinds of databases that each is tested on."""


class Scene:
    """What a test in asyncio is given.

    Attributes:
        engine: An async engine on the test's database, which has the queue's tables.
        url: Its URL.
    """

    def __init__(self, url: sa.URL, claim: str, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        self.url = url
        self._claim = claim
        self._loop_factory = loop_factory
        self._workers: list[AsyncQueueWorker] = []
        self._engines: list[AsyncEngine] = []

    def create_engine(self, url: sa.URL | None = None, **options: Any) -> AsyncEngine:
        """Create an engine, disposed of at the end."""
        self._engines.append(create_async_engine(url or self.url, **options))
        return self._engines[-1]

    def work(self, handler: Any, engine: AsyncEngine | None = None, **options: Any) -> tuple[AsyncQueueWorker, Recorder]:
        """Make a worker that polls often, and the recorder of its events."""
        seen = options.pop("on_event", None) or Recorder()
        defaults = {"polling_interval": 0.01, "stop_timeout": PATIENCE, "handler_mode": "advanced", "claim": self._claim}
        worker = AsyncQueueWorker(engine or self.engine, handler, on_event=seen, **{**defaults, **options})
        self._workers.append(worker)
        return worker, seen

    def leave_workers(self) -> None:
        """Do not stop the workers at the end, nor wait for connections: the database does not answer."""
        self._workers.clear()
        for engine in self._engines:
            engine.sync_engine.dispose(close=False)
        self._engines.clear()

    def run(self, test: Callable[[], Awaitable[Any]], **options: Any) -> Any:
        """Run a test on a loop of its own, with an engine with these options, and return what it returns."""

        async def main() -> Any:
            self.engine = self.create_engine(**options)
            try:
                return await test()
            finally:
                for worker in self._workers:
                    await worker.stop()
                for engine in self._engines:
                    await engine.dispose()
                self._workers.clear()
                self._engines.clear()

        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            return runner.run(main())


async def until(predicate: Callable[[], Any], timeout: float = PATIENCE) -> Any:  # noqa: ASYNC109 - fails by itself
    """Return the predicate's first true value, while the loop goes on."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        assert time.monotonic() < deadline, f"still {value!r} after {timeout} s"
        await asyncio.sleep(0.005)
    return value
