"""The job as a handler of an `AsyncQueueWorker` sees it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NoReturn

from proletarian_sa.clock import as_timedelta
from proletarian_sa.errors import SessionNotYours
from proletarian_sa.running import RunningJob, StopFlag

if TYPE_CHECKING:
    import asyncio
    import datetime as dt
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncSession

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.session import HandlerTransaction


class LoopFlag(StopFlag):
    """An event that is set in any thread, and awaited on one loop."""

    _waiting: frozenset[asyncio.Future[bool]] = frozenset()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def set(self) -> None:
        """Wake all who wait, now and later."""
        super().set()
        if self._waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)

    async def wait_here(self, timeout: float) -> bool:  # noqa: ASYNC109 - what is over is told, not raised
        """Wait until it is set; return whether it is."""
        woken: asyncio.Future[bool] = self._loop.create_future()
        self._waiting |= {woken}
        timer = None if self.is_set() else self._loop.call_later(timeout, _answer, woken, False)
        try:
            return True if timer is None else await woken  # looked at after it waits, as `set` looks for it after it is set
        finally:
            self._waiting -= {woken}
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        for woken in self._waiting:
            _answer(woken, True)


def _answer(woken: asyncio.Future[bool], answer: bool) -> None:
    if not woken.done():
        woken.set_result(answer)


class AsyncRunningJob(RunningJob):
    """A job that is being run by an `async def` handler: what `RunningJob` is, with a session and a wait for asyncio."""

    _transaction: Any = None

    def __init__(
        self,
        claimed: ClaimedJob,
        payload: Any,
        open_transaction: Callable[[], HandlerTransaction],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(claimed, payload, open_transaction)
        self._stop: LoopFlag = LoopFlag(loop)

    @property
    def session(self) -> AsyncSession:  # type: ignore[override]
        """An AsyncSession whose writes are committed together with the job's completion, or not at all.

        Its transaction is opened at the first use, on a connection of its own; held, in the claim's transaction. Do not commit,
        roll back or close it: return to commit, raise to roll back; `begin_nested()` is yours. On SQLite it takes the write lock
        when it is opened: write late and briefly.

        Raises:
            SessionNotYours: The handler has returned, or this is a child that it has forked.

        **Transaction:** nothing; its first use begins one, with a savepoint, which on SQLite writes the job's row, and raises
        `LeaseLost` if the job no longer belongs to this worker.
        """
        session: AsyncSession = self._begun_transaction().async_session  # type: ignore[attr-defined]
        return session

    async def wait(self, seconds: float | dt.timedelta) -> bool:  # type: ignore[override]
        """Wait, and return True as soon as the handler is asked to stop, False after the time.

        Args:
            seconds: At most this long: seconds or a timedelta.
        """
        return await self._stop.wait_here(as_timedelta(seconds, "seconds").total_seconds())


class JobInThread(RunningJob):
    """A job that is being run by a plain function, in a thread, beside handlers that are coroutines."""

    @property
    def session(self) -> NoReturn:
        """Refuse.

        Raises:
            SessionNotYours: The worker's engine is one for asyncio, which a thread cannot use.

        **Transaction:** nothing.
        """
        raise SessionNotYours(
            f"The handler of {self.job_type!r} is a plain function, which runs in a thread, where an engine for asyncio cannot be "
            "used. Make it `async def` and await what it does with job.session, or give it an engine of its own."
        )
