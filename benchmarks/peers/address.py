"""The URL of a database as programs without SQLAlchemy know it, and waiting until a table says that all is done."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.measure import Stopwatch


def plain(url: str) -> str:
    """Return a libpq URL."""
    return url.replace("postgresql+psycopg://", "postgresql://")


def file_of(url: str) -> str:
    """Return the path of an SQLite database."""
    return url.removeprefix("sqlite:///")


async def all_handled(watch: Stopwatch, pause: float = 0.002) -> None:
    """Wait until all handlers were called."""
    while not watch.done.is_set():  # noqa: ASYNC110 - the stopwatch is for threads
        await asyncio.sleep(pause)


async def wait_until(is_so: Callable[[], Awaitable[bool]], pause: float = 0.002) -> float:
    """Wait until something is so, and return when that was seen, of time.perf_counter."""
    while not await is_so():  # noqa: ASYNC110 - the database is asked
        await asyncio.sleep(pause)
    return time.perf_counter()
