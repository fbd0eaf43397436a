"""Threads of a worker with an engine for asyncio: each runs the same blocking code as any, on an event loop of its own."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.util import await_only, greenlet_spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sqlalchemy.engine import Engine
    from sqlalchemy.pool import Pool

APART: Final = "proletarian_sa_apart"  # execution option of an engine that has a pool for each thread of ours
GOODBYE: Final = 1.0  # seconds that closing the connections of a thread may take: the server may be gone without a word


_threads: Final[set[threading.Thread]] = set()


def _wait_for_threads() -> None:
    """Let those end that are about to: a thread that is inside a greenlet when the interpreter ends crashes the process."""
    deadline = time.monotonic() + GOODBYE
    for thread in _threads.copy():
        thread.join(max(deadline - time.monotonic(), 0.0))


atexit.register(_wait_for_threads)


class PoolForEachThread(OptionEngine):
    """An engine for asyncio, used from several event loops: in each thread of ours it has a pool of its own.

    A connection of such a driver belongs to the loop that has opened it. Elsewhere the pool is the application's.

    Args:
        engine: The application's, as `AsyncEngine.sync_engine`.
    """

    def __init__(self, engine: Engine) -> None:
        self._here = threading.local()
        self._running: dict[threading.Thread, tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = {}
        super().__init__(engine, {APART: self})

    @property
    def pool(self) -> Pool:
        """That of this thread."""
        own: Pool | None = getattr(self._here, "pool", None)
        return self._proxied.pool if own is None else own

    @pool.setter
    def pool(self, pool: Pool) -> None:
        if getattr(self._here, "pool", None) is None:
            self._proxied.pool = pool
        else:
            self._here.pool = pool

    def run(self, target: Callable[[], object]) -> None:
        """Run a function on an event loop and with a pool of this thread's own, both gone when it returns."""
        thread = threading.current_thread()
        _threads.add(thread)
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner, contextlib.suppress(asyncio.CancelledError):
                runner.run(self._run(target))
        finally:
            _threads.discard(thread)

    async def _run(self, target: Callable[[], object]) -> None:
        thread, task = threading.current_thread(), asyncio.current_task()
        assert task is not None
        self._running[thread] = asyncio.get_running_loop(), task
        self._here.pool = self._proxied.pool.recreate()
        try:
            await greenlet_spawn(target)
        finally:
            del self._running[thread]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE):
                    await greenlet_spawn(self._here.pool.dispose)

    def close_own_pool(self) -> None:
        """Close what waits in this thread's own pool, if it has one."""
        own: Pool | None = getattr(self._here, "pool", None)
        if own is not None:
            own.dispose()
            self._here.pool = own.recreate()

    def cancel(self, thread: threading.Thread) -> None:
        """Interrupt what a thread waits for, if the database is to answer it."""
        found = self._running.get(thread)
        if found is not None:
            loop, task = found
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)


def make_thread(engine: Engine, target: Callable[[], object], name: str) -> threading.Thread:
    """Return a thread, not started, in which `target` can use the engine, whatever its driver.

    Daemons, so that a process that forgets to stop its worker can end; workers are stopped at exit.
    """
    apart: PoolForEachThread | None = engine.get_execution_options().get(APART)
    return threading.Thread(target=target if apart is None else partial(apart.run, target), name=name, daemon=True)


def close_own_pool(engine: Engine) -> None:
    """Close the connections of this thread's own pool; where it has none, leave the application's alone."""
    apart: PoolForEachThread | None = engine.get_execution_options().get(APART)
    if apart is not None:
        apart.close_own_pool()


def on_loop() -> bool:
    """Return whether this code runs under an event loop, which must not be held up, and can wait for what is awaited."""
    greenlet = sys.modules.get("greenlet")
    return greenlet is not None and getattr(greenlet.getcurrent(), "__sqlalchemy_greenlet_provider__", False)


def sleep(seconds: float) -> None:
    """Sleep, and let an event loop go on meanwhile."""
    if on_loop():
        wait_for(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


def wait_for(awaited: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine, `on_loop`."""
    return await_only(awaited)
