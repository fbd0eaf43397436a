"""The worker for asyncio as the application sees it: options, start, stop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final, Never, Self

from proletarian_sa.aio.preparing import prepare, sync_engine_of
from proletarian_sa.at_exit import call_at_exit, forget
from proletarian_sa.handlers import check_callback
from proletarian_sa.lifecycle import Habits
from proletarian_sa.log import log_event
from proletarian_sa.models import DEFAULT_QUEUE, JobTables, default_tables
from proletarian_sa.runtime import DEFAULT_MAX_CRASHES, Claim, FailedJob, Runtime, build_runtime
from proletarian_sa.signals import StopAtSignals
from proletarian_sa.worker_base import SHORTEST_INTERVAL, WorkerBase, check_count, check_flags, seconds_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Awaitable, Callable, Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

    from proletarian_sa import events
    from proletarian_sa.aio.on_loop import OnLoop
    from proletarian_sa.handlers import HandlerMode, Retry
    from proletarian_sa.running import RunningJob

MOST_AT_ONCE: Final = 10_000
THREADED: Final = {
    "worker_threads": "Handlers are tasks on the event loop: concurrency={value} says how many run at the same time.",
    "batch_size": (
        "Jobs that share a transaction run one after the other, and handlers here overlap. Leave it out: leased jobs are claimed "
        "and recorded several at a time by themselves. Short held jobs: QueueWorker(engine, …, claim='held', batch_size={value})."
    ),
    "executor": (
        "Handlers run on the event loop, plain functions in threads. For processes: QueueWorker(engine, …, executor='process')."
    ),
    "factory": "It is for processes of handlers: QueueWorker(engine, …, executor='process', factory={value}).",
}
"""Options of a `QueueWorker` that this one has not, and what to type instead."""


class AsyncQueueWorker(WorkerBase):
    """Run the jobs of a queue as tasks on an event loop, many at the same time, until it is told to stop.

        worker = AsyncQueueWorker(async_engine, jobs, queue="mail")
        await worker.run()            # until stop(), a cancellation or a fatal error; or:
        async with worker: ...        # start, and stop at the end

    Handlers that are `async def` run on the loop in which the worker is started, each in a task and with context variables of its
    own; plain functions run in threads. Claims, outcomes and heartbeats are the business of the same threads as a `QueueWorker`'s:
    a handler that blocks the loop loses no job, and `LoopBlocked` tells of it.

    Cancelled handlers: when the worker is stopped or its `run` is cancelled, `job.stopping` is set. One that has not returned when
    most of `stop_timeout` is over is cancelled. Its job goes back to the queue with the attempt given back, whatever the
    handler makes of the cancellation: it is not archived, as success or as failure. One that swallows it and goes on keeps its job,
    as long as the loop runs. A handler whose `timeout` is over is cancelled, too: that attempt has failed. A `CancelledError` that
    the handler raises itself, without a cancellation of its task, is a failed attempt like any other error.

    Args:
        engine: The application's AsyncEngine. Leased, up to three connections of our own are made beside its pool, one for each
            thread that needs one, and each handler that uses `job.session` takes one out of it; held, each running job does.
        handler: A `JobRegistry`, or a function of `(job_type, payload)`; `async def`, or plain.
        queue: Which queue, or several in strict order; see `QueueWorker`, as for all options that are not explained here.
        concurrency: How many handlers run at the same time; 100 by default.
        polling_interval: How long to wait when no job is due, seconds or timedelta; 0.1 s by default, and up to a tenth more.
        tables: Which pair of tables; the same as for `enqueue`.
        claim: `leased`, the default, or `held`.
        lease: How long a job is ours without a sign of life, seconds or timedelta; 60 s by default. Prolonged while it is in hand.
        retry: The strategy for job types without one of their own, or a function `(job, exception) -> RetryStrategy | None`, which
            may be `async def`.
        handler_mode: How to call a plain function: `default`, `(job_type, payload)`; `advanced`, `(job)`.
        session_factory: Makes the AsyncSession behind `job.session`: an `async_sessionmaker`.
        max_crashes: How many runs of a job may be lost with their worker before it is archived as failure; 5 by default.
        failed_job: Called on the loop with `(job, exception)` when a job has failed for good, in the transaction that archives it;
            `async def` or plain.
        held_warning: After how long a held job is warned about, seconds or timedelta; 60 s by default.
        on_polling_error: Called with an error of a claim that waiting may not mend; if it returns something true, the worker stops.
            A plain function that waits for nothing: leased, it is called in a thread; held, on the loop.
        on_shutdown: Called on the loop without arguments after a stop, once all handlers have returned; `async def` or plain.
        stop_timeout: How long `stop` waits, seconds or timedelta; 10 s by default. Handlers have all of it but a tenth, at the most
            a second, which is for those that are cancelled then.
        wait_for_tables: Whether `start` waits for tables that are missing or of an older version.
        install_signal_handlers: Stop at SIGTERM, SIGINT and SIGBREAK; needs `start` in the main thread. False by default.
        worker_id: A name for logs, threads and `claimed_by`; `proletarian[queue]` by default. Need not be unique.
        on_event: Is given every event, in whichever thread it happens, the loop's included; standard logging by default.

    Raises:
        TypeError: An option has the wrong type, or is one that a `QueueWorker` alone has; the message says what to type instead.
        ValueError: An option has a value out of bounds.
        DatabaseNotSupported: The engine's dialect is none of the supported ones.

    **Transaction:** nothing before `start`.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        handler: Any,
        *,
        queue: str | Sequence[str] = DEFAULT_QUEUE,
        concurrency: int = 100,
        polling_interval: dt.timedelta | float = 0.1,
        tables: JobTables = default_tables,
        claim: Claim = "leased",
        lease: dt.timedelta | float = 60.0,
        retry: Retry = None,
        handler_mode: HandlerMode = "default",
        session_factory: Callable[[], AsyncSession] | None = None,
        max_crashes: int = DEFAULT_MAX_CRASHES,
        failed_job: FailedJob | None = None,
        held_warning: dt.timedelta | float = 60.0,
        on_polling_error: Callable[[BaseException], object] | None = None,
        on_shutdown: Callable[[], Awaitable[object] | object] | None = None,
        stop_timeout: dt.timedelta | float = 10.0,
        wait_for_tables: bool = False,
        install_signal_handlers: bool = False,
        worker_id: str | None = None,
        on_event: events.Sink = log_event,
        **others: Never,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name not in ("self", "others")}
        _refuse(others)
        check_count(concurrency, "concurrency", MOST_AT_ONCE)
        check_flags(install_signal_handlers=install_signal_handlers, wait_for_tables=wait_for_tables)
        check_callback(on_polling_error, "on_polling_error", "error")
        check_callback(on_shutdown, "on_shutdown", is_async=True)
        self._habits = Habits(
            threads=concurrency,
            polling_interval=seconds_of(polling_interval, "polling_interval", SHORTEST_INTERVAL),
            on_polling_error=on_polling_error,
            on_shutdown=on_shutdown,
        )
        self._stop_timeout = seconds_of(stop_timeout, "stop_timeout")
        self._runtime = build_runtime(
            sync_engine_of(engine),
            handler,
            queue=queue,
            tables=tables,
            claim=claim,
            lease=lease,
            retry=retry,
            handler_mode=handler_mode,
            session_factory=session_factory,  # type: ignore[arg-type]
            max_crashes=max_crashes,
            failed_job=failed_job,
            held_warning=held_warning,
            worker_id=worker_id,
            on_event=on_event,
            is_async=True,
        )
        self._signals = StopAtSignals(self._stop_from_thread, self._runtime.worker_id, enabled=install_signal_handlers)
        self._crew: OnLoop | None = None
        self._wait_for_tables = wait_for_tables
        self._stop_asked = threading.Event()  # since the last start began
        self._starting: asyncio.Future[None] | None = None

    def with_options(self, **options: Any) -> AsyncQueueWorker:
        """Return a worker, not started, that differs in the given options.

        Raises:
            TypeError: There is no such option.

        **Transaction:** nothing.
        """
        return AsyncQueueWorker(**{**self._given, **options})

    async def join(self, timeout: dt.timedelta | float | None = None) -> bool:  # noqa: ASYNC109 - what is over is told, not raised
        """Wait until the worker has stopped; return whether it has.

        Args:
            timeout: At most this long, seconds or timedelta; without it, until then.

        **Transaction:** nothing.
        """
        seconds = None if timeout is None else seconds_of(timeout, "timeout")
        return self._crew is None or not self._crew.is_alive() or await self._here(self._crew).ended_within(seconds)

    async def start(self) -> None:
        """Start, and return. Does nothing if it is running; may be started again after it has stopped, in another loop, too.

        A `stop` that is called meanwhile is obeyed as soon as it has started, or at once while it waits for the tables. Cancelled,
        it returns at once, whatever the database does, and nothing is started.

        Raises:
            TablesMissing: The tables are not there, and not to be waited for; the message says what to type.
            TablesForeign: A table of that name is not ours.
            RightsMissing: The engine's user may not do what a worker does; the message says what to type.
            DatabaseNotSupported: The server is too old, or the SQLite database is in memory.
            SQLAlchemyError: The database cannot be reached.
            RuntimeError: It is still stopping: handlers have not returned. Or the worker is to install signal handlers, and this is
                not the main thread.

        **Transaction:** reads the catalogue; the worker's own from then on.
        """
        while self._starting is not None:  # by another task
            await asyncio.wait([self._starting])
        if self._crew is not None and self._crew.is_alive():
            self._crew.check_not_stopping()
            return
        starting = self._starting = asyncio.get_running_loop().create_future()
        try:
            await self._start()
        finally:
            self._starting = None
            starting.set_result(None)

    async def _start(self) -> None:
        self._stop_asked.clear()
        self._signals.check()
        prepared = await prepare(self._runtime, wait_for_tables=self._wait_for_tables, stop_asked=self._stop_asked)
        if prepared is None:
            return
        crew = _crew(prepared, self._habits)
        self._signals.install()
        call_at_exit(self._stop_at_exit)
        try:
            crew.start()
            self._crew = crew
            if self._stop_asked.is_set():
                crew.ask_to_stop()
            self._signals.begin()
            crew.announce()
        except BaseException:
            forget(self._stop_at_exit)
            self._signals.remove()
            crew.ask_to_stop()
            raise

    async def stop(self, timeout: dt.timedelta | float | None = None) -> list[RunningJob]:  # noqa: ASYNC109 - handlers have most of it
        """Take no more jobs, ask running handlers to stop, wait for them, and cancel them when most of the time is over.

        Jobs that were taken and not begun are put back at once. A handler that returns in time is recorded as usual; one that
        raises `JobInterrupted`, or that is cancelled, gives its job back. Does nothing if it is not running. Cancelled, it cancels
        the handlers at once. Called by a handler, it does not wait.

        Args:
            timeout: How long to wait, seconds or timedelta; `stop_timeout` by default. It returns by then, whatever the database
                does.

        Returns:
            The jobs whose handlers have not returned. They stay owned: recorded when they return, or run again elsewhere after
            the lease if the process ends first.

        Raises:
            RuntimeError: This is not the loop in which it was started.

        **Transaction:** the worker's own.
        """
        with self._signals.stopping(lambda: self.is_running):
            self._stop_asked.set()
            forget(self._stop_at_exit)
            crew = self._crew
            if crew is None or not crew.is_alive():
                return []
            seconds = self._stop_timeout if timeout is None else seconds_of(timeout, "timeout")
            if timeout is None and self._signals.hurried:
                seconds = 0.0
            if self._here(crew).is_own_task():
                crew.ask_to_stop()
                return crew.report_running()
            return await crew.stop_within(seconds)

    async def run(self) -> None:
        """Start, and return when the worker has stopped: by `stop` from elsewhere, or cancelled, after a `stop` of its own.

        With `install_signal_handlers`, in the main thread, also by the first signal, within `stop_timeout`.

        Raises:
            CancelledError: It was cancelled. A second cancellation ends the wait for handlers.
            Exception: What `start` raises, and the error that ended the worker, if one did.

        **Transaction:** the worker's own.
        """
        with self._signals.waiting_in_run():
            try:
                await self.start()
                if self._crew is not None and not self._stop_asked.is_set():
                    await self._crew.over()
                elif self._crew is not None:
                    await self._crew.ended_within(self._stop_timeout)
            except asyncio.CancelledError:
                await self.stop()
                raise
            if self.error is not None:
                await self.stop()
                raise self.error

    def _here(self, crew: OnLoop) -> OnLoop:
        if not crew.belongs_here():
            raise RuntimeError(
                "This worker was started in another event loop. Await its methods there: "
                "asyncio.run_coroutine_threadsafe(worker.stop(), loop)."
            )
        return crew

    def _stop_from_thread(self) -> None:
        """Stop at a signal."""
        crew = self._crew
        if crew is not None and crew.is_alive():
            try:
                crew.wait_from_thread(self.stop)
            finally:
                crew.give_up()

    def _stop_at_exit(self) -> None:
        """Put back what can be put back when the interpreter ends and nobody has stopped the worker: its loop runs no more."""
        forget(self._stop_at_exit)
        crew = self._crew
        if crew is not None and crew.is_alive():
            crew.ask_to_stop()
            crew.wait(self._stop_timeout)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()


def _refuse(others: dict[str, Any]) -> None:
    for name, value in others.items():
        instead = THREADED.get(name, "").format(value=repr(value))
        raise TypeError(f"An AsyncQueueWorker has no option {name}={value!r}. {instead}".rstrip())


def _crew(runtime: Runtime, habits: Habits) -> OnLoop:
    from proletarian_sa.aio.crew import AsyncCrew  # noqa: PLC0415 - it needs greenlet, and whoever is here has that
    from proletarian_sa.aio.held_crew import AsyncHeldCrew  # noqa: PLC0415 - likewise

    return AsyncHeldCrew(runtime, habits) if runtime.claim == "held" else AsyncCrew(runtime, habits)
