"""What a worker's start has to do with the event loop on which its handlers run."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from proletarian_sa import events
from proletarian_sa.aio.handling import Handling, inside
from proletarian_sa.lifecycle import LOOK, Habits, Lifecycle

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from proletarian_sa.running import RunningJob
    from proletarian_sa.runtime import Runtime

BLOCKED: Final = 1.5  # seconds; looked at every two
FOR_THE_CANCELLED: Final = 0.1
LONGEST_GOODBYE: Final = 1.0
"""What part of the time to stop is left for handlers that are cancelled, and how many seconds at the most."""


class OnLoop(Lifecycle):
    """A start of a worker whose handlers run on the loop in which it is made."""

    def __init__(self, runtime: Runtime, habits: Habits) -> None:
        self._loop = asyncio.get_running_loop()
        self._handling = Handling(self._loop, runtime.handlers, runtime.worker_id)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: set[asyncio.Future[None]] = set()  # to the end of the threads, or to what else `over` waits for
        self._is_given_up = False  # the time to stop is over, and nobody is to wait for the threads
        self._asked_at: float | None = None  # when the loop was asked whether it goes on
        self._blocked_for = 0.0  # what has been told of that, seconds
        super().__init__(replace(runtime, colour=self._handling), habits)

    def _connections(self) -> int:
        return 0  # the threads have pools of their own, and who uses job.session waits for his turn

    def belongs_here(self) -> bool:
        """Return whether this is its loop."""
        return asyncio.get_running_loop() is self._loop

    def is_own_task(self) -> bool:
        """Return whether the caller is one of the handlers, or a task that one has started."""
        return inside.get() is self._handling

    def wait_from_thread(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Call a coroutine function on the loop, and wait for it in another thread, for as long as the loop lives."""
        calling = function()
        try:
            ended = asyncio.run_coroutine_threadsafe(calling, self._loop)
        except RuntimeError:
            calling.close()
            raise
        while not ended.done():
            with contextlib.suppress(TimeoutError):
                ended.exception(LOOK)
            if self._loop.is_closed() and not ended.done():
                raise RuntimeError("The event loop of the worker has ended.")
        ended.result()

    # Stop

    async def stop_within(self, seconds: float) -> list[RunningJob]:
        """Stop; cancel what handlers there are when most of the time is over; return the jobs that still run at its end."""
        self.ask_to_stop()
        goodbye = min(seconds * FOR_THE_CANCELLED, LONGEST_GOODBYE)
        try:
            if await self.ended_within(seconds - goodbye):
                return []
        finally:
            self._handling.cancel()
        if await self.ended_within(goodbye):
            return []
        for task in self._tasks:
            task.cancel()  # those whose outcome waits for the database
        return self.report_running()

    async def ended_within(self, seconds: float | None) -> bool:
        """Wait until all has ended; return whether it has."""
        until = None if seconds is None else self._loop.time() + seconds
        while not self.stopped.is_set():
            left = None if until is None else until - self._loop.time()
            if left is not None and left <= 0:
                return False
            await self._news(left)
        return True

    async def over(self) -> None:
        """Wait until all has ended, or an error is about to end it, or a stop has been given up."""
        while not self.stopped.is_set() and self.error is None and not self._is_given_up:
            await self._news(None)

    def give_up(self) -> None:
        """Let nobody wait for what has not ended within the time to stop; from any thread."""
        self._is_given_up = True
        self._soon(self._tell)

    async def _news(self, seconds: float | None) -> None:
        heard = self._loop.create_future()
        self._listening.add(heard)
        try:
            if not self.stopped.is_set():
                await asyncio.wait([heard], timeout=seconds)
        finally:
            self._listening.discard(heard)

    def _tell(self) -> None:
        for heard in self._listening:
            if not heard.done():
                heard.set_result(None)

    def _soon(self, function: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)  # type: ignore[arg-type]

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        self._soon(self._tell)

    def _end(self) -> None:
        self._handling.threads.close()
        super()._end()
        self._soon(self._tell)

    def _shut_down(self) -> None:
        """Call `on_shutdown` on the loop, where the application's coroutines belong."""
        function = self._habits.on_shutdown
        if function is None:
            return

        async def call() -> None:
            result = function()
            if inspect.isawaitable(result):
                await result

        self.wait_from_thread(call)

    # The loop

    def _keep_vigil(self) -> None:
        self._runtime.vigil.keep(self._runtime.emit, self._runtime.worker_id, self._over, self._look_at_loop)

    def _look_at_loop(self) -> None:
        """Tell if the loop has not gone on since the last look."""
        now = time.monotonic()
        asked_at = self._asked_at  # which the loop takes away when it goes on
        if asked_at is None:
            self._asked_at, self._blocked_for = now, 0.0
            self._soon(self._goes_on)
        elif now - asked_at >= max(BLOCKED, 2 * self._blocked_for) and self._loop.is_running():
            self._blocked_for = now - asked_at
            self._runtime.emit(events.LoopBlocked(worker_id=self._runtime.worker_id, seconds=self._blocked_for))

    def _goes_on(self) -> None:
        self._asked_at = None
