"""How handlers are called on the application's event loop, and what they are given there."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from proletarian_sa.aio.running import AsyncRunningJob, JobInThread
from proletarian_sa.aio.session import AsyncJoinedTransaction, AsyncOwnTransaction
from proletarian_sa.aio.threads import HandlerThreads
from proletarian_sa.errors import JobInterrupted, JobTimeout, LeaseLost, UnknownJobType, is_ctrl_c
from proletarian_sa.forks import end_child, this_process
from proletarian_sa.handlers import result_of
from proletarian_sa.own_loops import on_loop, wait_for
from proletarian_sa.run import call, over_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy.engine import Connection

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.handlers import Found, Handlers
    from proletarian_sa.running import RunningJob
    from proletarian_sa.runtime import Runtime
    from proletarian_sa.session import HandlerTransaction

inside: Final[ContextVar[object]] = ContextVar("proletarian_sa_inside", default=None)
"""The handling to which the handler belongs that runs in this context, or has started what runs in it."""


class Handling:
    """The handlers of one start of a worker: the `Colour` of its runtime.

    Attributes:
        calls: Those of `async def` handlers that have not returned.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handlers: Handlers, worker_id: str) -> None:
        self.loop = loop
        self.calls: set[Call] = set()
        self.threads = HandlerThreads(loop, f"{worker_id} handler")
        self._handlers = handlers

    def job(self, claimed: ClaimedJob, payload: object, open_transaction: Callable[[], HandlerTransaction]) -> RunningJob:
        """Return the job for its handler."""
        try:
            in_thread = not self._handlers.find(claimed.job_type).is_async
        except UnknownJobType:
            in_thread = False  # it will not be called
        if in_thread:
            return JobInThread(claimed, payload, open_transaction)
        return AsyncRunningJob(claimed, payload, open_transaction, self.loop)

    def failed(self, claimed: ClaimedJob, payload: object, open_transaction: Callable[[], HandlerTransaction]) -> RunningJob:
        """Return the job for `failed_job`, which is called on the loop."""
        return AsyncRunningJob(claimed, payload, open_transaction, self.loop)

    def own(self, runtime: Runtime, job: ClaimedJob) -> HandlerTransaction:
        """Return what is behind `job.session`: a transaction of its own."""
        return AsyncOwnTransaction(runtime, job)

    def joined(
        self, runtime: Runtime, job: ClaimedJob, connection: Connection, commit: Callable[[], None]
    ) -> AsyncJoinedTransaction:
        """Return what is behind `job.session`: a savepoint in a transaction of the worker's."""
        return AsyncJoinedTransaction(runtime, job, connection, commit)

    def call(self, runtime: Runtime, claimed: ClaimedJob, running: RunningJob, found: Found) -> BaseException | None:
        """Call the handler, and return what it raised; the loop goes on meanwhile."""
        failure: BaseException | None = wait_for(Call(self, runtime, claimed, running, found).run())
        return failure

    def result_of(self, result: object, name: str) -> object:
        """Return what a function of the application's returned, awaited in this task and its context."""
        if inspect.isawaitable(result) and on_loop():
            return wait_for(_result(result))
        return result_of(result, name)

    def cancel(self) -> None:
        """Cancel the handlers that have not returned: their jobs go back, whatever they return."""
        for one in list(self.calls):
            one.cancel()


async def _result(awaitable: Awaitable[object]) -> object:
    return await awaitable


class Call:
    """One call of a handler, in a task and a context of the job's own."""

    def __init__(self, handling: Handling, runtime: Runtime, claimed: ClaimedJob, running: RunningJob, found: Found) -> None:
        self._handling = handling
        self._runtime = runtime
        self._claimed = claimed
        self._running = running
        self._found = found
        self._task: asyncio.Task[object] | None = None
        self._ours = 0  # cancellations of the task that were ours
        self._is_over_time = False
        self._is_stopped = False

    async def run(self) -> BaseException | None:
        """Return what the handler raised, or why its job goes back.

        Where the worker has cancelled it, that is `JobInterrupted`, whatever it made of the cancellation.
        """
        inside.set(self._handling)
        try:
            if not self._found.is_async:
                return await self._run_in_thread()
            failure = await self._run_here()
            try:
                return self._judge(failure)
            finally:
                del failure  # see run.run()
        finally:
            self._running._over = True

    async def _run_here(self) -> BaseException | None:
        self._task, process = asyncio.current_task(), this_process()
        timeout, timer = self._found.timeout, None
        if timeout is not None:
            timer = self._handling.loop.call_later(timeout, self._expire)
        self._handling.calls.add(self)
        try:
            await self._found.call(self._running)
        except BaseException as error:
            end_child(process, error)
            if is_ctrl_c(error):
                raise
            return error
        finally:
            self._handling.calls.discard(self)
            if timer is not None:
                if timer.when() <= self._handling.loop.time() and not self._is_over_time:
                    self._tell_over_time()  # it has blocked the loop, so that nobody could cancel it
                timer.cancel()
        end_child(process)
        return None

    def _judge(self, failure: BaseException | None) -> BaseException | None:
        if failure is None and not (self._is_stopped or self._is_over_time):
            return None
        task = self._task
        assert task is not None
        for _ in range(self._ours):
            task.uncancel()
        if isinstance(failure, LeaseLost):
            return failure
        if self._is_stopped:
            return _because(JobInterrupted("The worker stops, and has cancelled the handler."), failure)
        if self._is_over_time:
            error = JobTimeout(f"The handler ran for longer than its timeout of {self._found.timeout:g} s.")
            return _because(error, failure)
        if isinstance(failure, asyncio.CancelledError) and task.cancelling():
            return _because(JobInterrupted("The handler's task was cancelled from outside: its event loop is ending."), failure)
        return failure

    def cancel(self) -> None:
        """Cancel the handler because the worker stops."""
        if not self._is_over_time:  # that attempt has failed already
            self._is_stopped = True
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None and self in self._handling.calls:
            self._ours += self._task.cancel()

    def _expire(self) -> None:
        self._tell_over_time()
        self._cancel()

    def _tell_over_time(self) -> None:
        self._is_over_time = True
        over_time(self._runtime, self._claimed, self._running, self._found)

    async def _run_in_thread(self) -> BaseException | None:
        """Call a plain function. It cannot be ended: nobody who cancels this goes on before it has returned."""
        context = contextvars.copy_context()
        ended = self._handling.threads.begin(
            lambda: context.run(_call_in_thread, self._runtime, self._claimed, self._running, self._found)
        )
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError:
                self._running._stop.set()
        return ended.result()


def _call_in_thread(runtime: Runtime, claimed: ClaimedJob, running: RunningJob, found: Found) -> BaseException | None:
    try:
        return call(runtime, claimed, running, found)
    except BaseException as error:  # noqa: BLE001 - becomes the failure of the run
        return error


def _because(error: BaseException, cause: BaseException | None) -> BaseException:
    error.__cause__ = cause
    return error
