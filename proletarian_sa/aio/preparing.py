"""Look at the database in a thread before a worker starts, so that one that does not answer holds nobody up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from proletarian_sa.forks import leave_inherited
from proletarian_sa.own_loops import PoolForEachThread, make_thread
from proletarian_sa.preparing import prepare_in_time
from proletarian_sa.turns import taking_turns

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from proletarian_sa.runtime import Runtime


def sync_engine_of(engine: Any) -> Any:
    """Return the engine inside an AsyncEngine.

    Raises:
        TypeError: It is none.
    """
    inner = getattr(engine, "sync_engine", None)
    if inner is None:
        raise TypeError(
            f"An AsyncQueueWorker needs an AsyncEngine, not {type(engine).__name__}. Give create_async_engine(url), or use a "
            "QueueWorker with an Engine."
        )
    return inner


async def prepare(runtime: Runtime, *, wait_for_tables: bool, stop_asked: threading.Event) -> Runtime | None:
    """Return what runs the worker; None if a stop came while it waited for the tables. Cancelled, it returns at once.

    **Transaction:** as `prepare_in_time`.
    """
    leave_inherited(runtime.engine)
    apart = PoolForEachThread(runtime.engine)
    turns = {} if runtime.statements.row_locks else taking_turns(runtime.engine)
    runtime = replace(runtime, engine=apart.execution_options(**turns))
    loop = asyncio.get_running_loop()
    looked: asyncio.Future[Runtime | None] = loop.create_future()

    def look() -> None:
        try:
            found = prepare_in_time(runtime, wait_for_tables=wait_for_tables, stop_asked=stop_asked)
            _tell(loop, looked, partial(looked.set_result, found))
        except BaseException as error:  # noqa: BLE001 - raised by start
            _tell(loop, looked, partial(looked.set_exception, error))

    thread = make_thread(runtime.engine, look, f"{runtime.worker_id} start")
    thread.start()
    try:
        return await looked
    except asyncio.CancelledError:
        stop_asked.set()
        apart.cancel(thread)
        raise


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], tell: Callable[[], None]) -> None:
    def telling() -> None:
        if not future.done():
            tell()

    if not loop.is_closed():
        loop.call_soon_threadsafe(telling)
