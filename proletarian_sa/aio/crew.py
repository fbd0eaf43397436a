"""A worker with leased claims whose handlers are tasks on the application's event loop; its threads are those of any crew."""

from __future__ import annotations

import asyncio
import queue as queues
import sys
import time
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.util import greenlet_spawn

from proletarian_sa import events
from proletarian_sa.aio.handling import Call
from proletarian_sa.aio.on_loop import OnLoop
from proletarian_sa.aio.running import JobInThread
from proletarian_sa.crew import Crew
from proletarian_sa.errors import is_ctrl_c
from proletarian_sa.lifecycle import LOOK
from proletarian_sa.run import Decision, about, conclude, find
from proletarian_sa.step import start_in_hand

if TYPE_CHECKING:
    from proletarian_sa.handlers import Found
    from proletarian_sa.heartbeat import InHand
    from proletarian_sa.lifecycle import Habits
    from proletarian_sa.own_connection import OwnConnection
    from proletarian_sa.running import RunningJob
    from proletarian_sa.runtime import Runtime

EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
"""What lets a task run to its first real wait where it is made: a handler that waits for nothing never goes through the loop."""
AFTER_CANCELLATION: Final = 0.2  # seconds until another job is begun: a loop that ends cancels all tasks that it has


class AsyncCrew(OnLoop, Crew):
    """The threads and the tasks of a worker with leased claims, between one start and the stop that ends them."""

    def __init__(self, runtime: Runtime, habits: Habits) -> None:
        super().__init__(runtime, habits)
        self._in_flight = 0  # tasks; what follows is the loop's own
        self._is_roused = False  # the loop is about to look into the inbox
        self._is_beginning = False

    # In the threads

    def _start_handlers(self) -> None:
        """Nothing is to be started: tasks are begun as jobs come."""

    def _end_handlers(self) -> None:
        with self._room:
            while self._active and not self._loop.is_closed():
                self._room.wait(LOOK)
            for in_hand in list(self._active.values()):
                if self._never_returns(in_hand):
                    self._leave(in_hand, Decision(claimed=in_hand.claimed, verdict="release"))

    @staticmethod
    def _never_returns(in_hand: InHand) -> bool:
        """Return whether the handler of a job that a closed loop has left behind does nothing more, and has written nothing."""
        running = in_hand.running
        return running is None or (running._transaction is None and not isinstance(running, JobInThread))

    def _beat(self, own: OwnConnection) -> None:
        self._heartbeats.beat(own)

    def _take(self, taken: list[InHand]) -> list[InHand]:
        going_on = super()._take(taken)
        if not self._is_roused and not self._inbox.empty():
            self._is_roused = True
            try:
                self._loop.call_soon_threadsafe(self._look)
            except RuntimeError as error:
                raise RuntimeError("The event loop of the worker has ended. Stop the worker before.") from error
        return going_on

    def _leave(self, in_hand: InHand, decision: Decision | None, took: float | None = None) -> None:
        super()._leave(in_hand, decision, took)
        if self._stopping.is_set():
            self._wake()

    # On the loop

    def _look(self) -> None:
        self._is_roused = False  # before looking: what comes now rouses it anew
        self._begin_some()

    def _begin_some(self) -> None:
        """Begin jobs until there are none, or as many run as may; no more than that at once: others want the loop, too."""
        if self._is_beginning:
            return
        self._is_beginning = True
        try:
            for _ in range(self._threads):
                if self._in_flight >= self._threads:
                    return
                in_hand = self._inbox.get_nowait()
                if in_hand is not None:
                    self._begin(in_hand)
        except queues.Empty:
            return
        finally:
            self._is_beginning = False
        self._loop.call_soon(self._begin_some)

    def _begin(self, in_hand: InHand) -> None:
        began = self._moved = time.monotonic()
        try:
            ready = self._ready(in_hand)
        except BaseException as error:
            self._give_up(in_hand, error)
            if is_ctrl_c(error):
                raise
            return
        if isinstance(ready, Decision) and not self._is_recorded_here(ready):
            self._leave(in_hand, ready, took=time.monotonic() - began)
            return
        self._in_flight += 1
        task = asyncio.Task(self._carry(in_hand, ready, began), loop=self._loop, context=Context(), **EAGER)
        if not task.done():
            self._tasks.add(task)

    def _ready(self, in_hand: InHand) -> Decision | tuple[RunningJob, Found]:
        """Return what is to be called, or the decision where nothing is."""
        if self._stopping.is_set():
            return Decision(claimed=in_hand.claimed, verdict="release")
        started = start_in_hand(self._runtime, in_hand, self._stopping)
        if isinstance(started, Decision):
            return started
        found = find(self._runtime, in_hand.claimed, started)
        return found if isinstance(found, Decision) else (started, found)

    async def _carry(self, in_hand: InHand, ready: Decision | tuple[RunningJob, Found], began: float) -> None:
        """Run one job, in a task of its own, and let go of it."""
        task = asyncio.current_task()
        assert task is not None
        try:
            decision = ready if isinstance(ready, Decision) else await self._run(in_hand, *ready)
            here = self._is_recorded_here(decision)
            if here:
                await greenlet_spawn(self._record_here, in_hand, decision)
            self._leave(in_hand, None if here else decision, took=time.monotonic() - began)
            del decision  # it holds the exception, and that the handler's variables
        except BaseException as error:
            self._give_up(in_hand, error)
            if is_ctrl_c(error):
                raise
        finally:
            self._tasks.discard(task)
            self._in_flight -= 1
            if task.cancelling():
                self._loop.call_later(AFTER_CANCELLATION, self._begin_some)
            else:
                self._begin_some()

    async def _run(self, in_hand: InHand, running: RunningJob, found: Found) -> Decision:
        failure = await Call(self._handling, self._runtime, in_hand.claimed, running, found).run()
        if failure is None and running._transaction is None:
            return Decision(claimed=in_hand.claimed, verdict="success")
        try:
            return await greenlet_spawn(conclude, self._runtime, in_hand.claimed, running, found, failure)
        finally:
            del failure  # see run.run()

    def _give_up(self, in_hand: InHand, error: BaseException) -> None:
        """Let go of a job after a mistake of our own, which lapses, or an interruption, after which it goes back."""
        with self._guard:
            if self._active.get(in_hand.claimed.job_id) is not in_hand:
                return
        if is_ctrl_c(error):
            self._leave(in_hand, Decision(claimed=in_hand.claimed, verdict="release", exception=error))
            return
        self._heartbeats.remove(in_hand)
        self._leave(in_hand, None)
        self._runtime.emit(events.OutcomeNotRecorded(**about(self._runtime, in_hand.claimed), exception=error))
