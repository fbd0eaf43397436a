"""A worker with held claims whose handlers are tasks on the application's event loop, each in the transaction of its claim."""

from __future__ import annotations

import asyncio
import contextlib
import queue as queues
import threading
from contextvars import Context
from typing import TYPE_CHECKING

from sqlalchemy.util import greenlet_spawn

from proletarian_sa.aio.on_loop import OnLoop
from proletarian_sa.aio.running import LoopFlag
from proletarian_sa.held import HeldClaims
from proletarian_sa.held_crew import HeldCrew
from proletarian_sa.lifecycle import LONGEST_STAGGER, LOOK
from proletarian_sa.own_loops import GOODBYE

if TYPE_CHECKING:
    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.lifecycle import Habits
    from proletarian_sa.runtime import Runtime

Pause = tuple[int, float]  # see Idle.wait


class AsyncHeldCrew(OnLoop, HeldCrew):
    """The tasks of a worker with held claims, between one start and the stop that ends them, and the thread that waits for jobs.

    Each task has claims of its own, on a connection of the application's pool.
    """

    def __init__(self, runtime: Runtime, habits: Habits) -> None:
        super().__init__(runtime, habits)
        self._pauses: queues.SimpleQueue[Pause | None] = queues.SimpleQueue()
        self._ended = threading.Event()  # all tasks have
        self._left = self._threads  # tasks; what follows is the loop's own
        self._turn = asyncio.Lock()  # who has it polls
        self._paused: asyncio.Future[None] | None = None  # whoever polls
        self._told_to_stop = LoopFlag(self._loop)

    def _connections(self) -> int:
        return self._threads

    # In the threads

    def _wake(self) -> None:
        self._told_to_stop.set()
        self._pauses.put(None)
        self._soon(self._go_on)

    def _supervise(self) -> None:
        begun = False
        try:
            self._watch.start()
            with self._idle:
                self._idle.first_wait(self._stopping, LONGEST_STAGGER)
                self._loop.call_soon_threadsafe(self._begin)
                begun = True
                while (pause := self._pauses.get()) is not None:
                    self._idle.wait(self._stopping, *pause)
                    self._soon(self._go_on)
                self._wait_for_tasks()
        except BaseException as error:  # noqa: BLE001 - kept for run(), and an event
            self._fail(error)
        finally:
            self.ask_to_stop()
        if begun:
            self._wait_for_tasks()
        self._watch.stop()
        self._end()

    def _wait_for_tasks(self) -> None:
        while not self._ended.wait(LOOK) and not self._loop.is_closed():
            continue

    # On the loop

    def _begin(self) -> None:
        for _ in range(self._threads):
            task = self._loop.create_task(self._work_here(), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._is_over)

    def _is_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._left -= 1
        if not self._left:
            self._ended.set()

    async def _work_here(self) -> None:
        """Take jobs and run them, one after the other, until the stop."""
        claims = HeldClaims(self._runtime, self._watch, keep_connection=self._keep, floors=self._floors)
        busy = False
        try:
            while not self._stopping.is_set():
                claimed = await (self._claim_here(claims) if busy and not self._failures else self._poll_here(claims))
                busy = claimed is not None
                if claimed is not None:
                    await self._run(claims, claimed)
                    self._judge(claims.refusals)
                del claimed
        except asyncio.CancelledError:  # the time to stop is over, or the loop ends
            self.ask_to_stop()
        except BaseException as error:  # noqa: BLE001 - kept for run(), and an event
            self._fail(error)
            self.ask_to_stop()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE):
                    await greenlet_spawn(claims.close)

    async def _poll_here(self, claims: HeldClaims) -> ClaimedJob | None:
        """Wait for a job, while no other task does."""
        async with self._turn:
            while not self._stopping.is_set():
                if self._waiting is not None and not self._failures:
                    await self._pause(*self._waiting)
                claimed = None if self._stopping.is_set() else await self._claim_here(claims)
                if claimed is not None:
                    return claimed
        return None

    async def _pause(self, wakes: int, seconds: float) -> None:
        """Let the thread wait, as `Idle.wait` says, or until the stop."""
        self._paused = self._loop.create_future()
        self._pauses.put((wakes, seconds))
        if not self._stopping.is_set():
            await self._paused

    def _go_on(self) -> None:
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)

    async def _claim_here(self, claims: HeldClaims) -> ClaimedJob | None:
        """Take a job, if there is one; wait after an error."""
        try:
            return next(iter(await greenlet_spawn(self._try, claims)), None)
        except Exception as error:  # noqa: BLE001 - judged there: waited out, or the worker's end
            await self._told_to_stop.wait_here(self._failed(error))
            return None

    async def _run(self, claims: HeldClaims, claimed: ClaimedJob) -> None:
        """Run a job and record what became of it, in a task and a context of its own."""
        running = self._loop.create_task(greenlet_spawn(claims.run, claimed, self._stopping), context=Context())
        self._tasks.add(running)  # type: ignore[arg-type]
        cancelled: asyncio.CancelledError | None = None
        try:
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError as error:
                    cancelled = error
                    running.cancel()
        finally:
            self._tasks.discard(running)
        if cancelled is not None:
            raise cancelled
        running.result()
