"""An `AsyncQueueWorker` in the place of a `QueueWorker`, for tests that know only threads; its handlers are coroutines.

A test of the fixture `work` takes part by `pytest.mark.async_workers`: see `tests.async_workers`.
"""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from proletarian_sa import AsyncQueueWorker, AsyncRunningJob, JobRegistry

THREADS = 32
"""How many handlers of a worker can wait at the same time."""


class WorkerOnLoop:
    """Has the methods of a `QueueWorker`, and runs an `AsyncQueueWorker` on an event loop in a thread of its own.

    Args:
        engine: One for threads, whose URL, size of the pool and listeners are used.
        driver: The driver for asyncio, as a URL names it.
        handler: A registry, or a function of the job, which is called by a coroutine that waits for it.
        plain: The function is called by the worker itself.
        options: Those of a `QueueWorker`.
    """

    def __init__(self, engine: sa.Engine, driver: str, handler: Any, *, plain: bool = False, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(THREADS)
        size = {"pool_size": engine.pool.size()} if isinstance(engine.pool, sa.QueuePool) else {}
        self._engine = create_async_engine(engine.url.set(drivername=driver), **size)
        self._engine.sync_engine.dispatch._update(engine.dispatch, only_propagate=False)  # what the test listens to
        self._engine.sync_engine._has_events = engine._has_events
        options["concurrency"] = options.pop("worker_threads", 1)
        plain = plain or isinstance(handler, JobRegistry)
        self._worker = AsyncQueueWorker(self._engine, handler if plain else self._on_loop(handler), **options)
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def _on_loop(self, handler: Any) -> Any:
        async def handle(job: AsyncRunningJob) -> None:
            await self._loop.run_in_executor(self._pool, handler, JobOutside(job, self._loop))

        return handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def start(self) -> None:
        """Start, and return."""
        self._wait(self._worker.start())

    def stop(self, *timeout: float) -> Any:
        """Stop, and return the jobs that still run."""
        return self._wait(self._worker.stop(*timeout))

    def join(self, *timeout: float) -> Any:
        """Wait until it has stopped."""
        return self._wait(self._worker.join(*timeout))

    def close(self) -> None:
        """Stop, and end the loop."""
        self.stop()
        self._wait(self._engine.dispose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._pool.shutdown()


class JobOutside:
    """The job of an `async def` handler, for a function in a thread."""

    def __init__(self, job: AsyncRunningJob, loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def wait(self, seconds: float) -> bool:
        """Wait until the handler is asked to stop."""
        return asyncio.run_coroutine_threadsafe(self._job.wait(seconds), self._loop).result()

    @functools.cached_property
    def session(self) -> Any:
        """What has the methods of a Session, each of which is called on the loop."""
        return SessionOutside(self._job, self._loop)


class SessionOutside:
    """The session of an `async def` handler, for a function in a thread."""

    def __init__(self, job: AsyncRunningJob, loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._loop = loop

    def run_sync(self, function: Callable[[Any], Any]) -> Any:
        """Call a function of the session on the loop, and return what it returns."""
        return asyncio.run_coroutine_threadsafe(self._job.session.run_sync(function), self._loop).result()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: self.run_sync(lambda session: getattr(session, name)(*arguments, **options))
