"""Threads for handlers that are plain functions."""

from __future__ import annotations

import contextlib
import queue as queues
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

Result = TypeVar("Result")
Work = tuple["Callable[[], object]", "asyncio.Future[object]"]


class HandlerThreads:
    """As many as are busy at the same time, used again; daemons, so that a handler that never returns keeps no process alive.

    Args:
        loop: Where work is given to them.
        name: What their names begin with.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._work: queues.SimpleQueue[Work | None] = queues.SimpleQueue()
        self._idle = 0
        self._count = 0

    def begin(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Call a function that raises nothing, and return what becomes its result."""
        result: asyncio.Future[Result] = self._loop.create_future()
        if self._idle:
            self._idle -= 1
        else:
            threading.Thread(target=self._run, name=f"{self._name} {self._count + 1}", daemon=True).start()
            self._count += 1
        self._work.put((function, result))  # type: ignore[arg-type]
        return result

    def close(self) -> None:
        """End them, each when its function has returned."""
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            function, result = work
            value = function()
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._is_over, result, value)
            del work, function, result, value

    def _is_over(self, result: asyncio.Future[object], value: object) -> None:
        self._idle += 1
        if not result.done():
            result.set_result(value)
