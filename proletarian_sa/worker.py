"""The worker as the application sees it: options, start, stop."""

from __future__ import annotations

import atexit
import datetime as dt
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from proletarian_sa.clock import as_timedelta
from proletarian_sa.crew import Crew
from proletarian_sa.install import check_tables
from proletarian_sa.log import log_event
from proletarian_sa.models import DEFAULT_QUEUE, JobTables, default_tables
from proletarian_sa.own_connection import past_stale
from proletarian_sa.runtime import DEFAULT_MAX_CRASHES, Runtime, build_runtime, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Engine
    from sqlalchemy.orm import Session

    from proletarian_sa import events
    from proletarian_sa.handlers import HandlerMode, Retry
    from proletarian_sa.running import RunningJob

MOST_THREADS: Final = 1000
SHORTEST_INTERVAL: Final = 0.01  # seconds between polls


class QueueWorker:
    """Run the jobs of a queue in threads, until it is told to stop.

        worker = QueueWorker(engine, jobs, queue="mail", worker_threads=4)
        worker.run()            # until stop() or a fatal error; or:
        with worker: ...        # start, and stop at the end

    Nothing is connected before `start`. Jobs are taken oldest first; what is promised, per database, stands in the README.

    Args:
        engine: The application's engine; connections of our own are taken from its pool: up to three, and one for each handler
            that uses `job.session`.
        handler: A `JobRegistry`, or a function of `(job_type, payload)`.
        queue: Which queue; `default` by default.
        worker_threads: How many handlers run at the same time; 1 by default.
        polling_interval: How long to wait when no job is due, seconds or timedelta; 0.1 s by default, with a tenth of jitter.
        tables: Which pair of tables; the same as for `enqueue`.
        lease: How long a job is ours without a sign of life, seconds or timedelta; 60 s by default. It is prolonged three times as
            often while the job is in hand, so a job may run for hours; a job whose worker died runs again after this time.
        retry: The strategy for job types without one of their own, or a function `(job, exception) -> RetryStrategy | None`; by
            default a job that fails is not tried again.
        handler_mode: How to call a plain function: `default`, `(job_type, payload)`; `advanced`, `(job)`.
        session_factory: Makes the Session behind `job.session`, for one's own subclass or binds.
        max_crashes: How many runs of a job may be lost with their worker before it is archived as failure; 5 by default.
        stop_timeout: How long `stop` waits for running handlers, seconds or timedelta; 10 s by default.
        worker_id: A name for logs, threads and `claimed_by`; `proletarian[queue]` by default. Need not be unique.
        on_event: Is given every event; standard logging by default.

    Raises:
        TypeError: An option has the wrong type.
        ValueError: An option has a value out of bounds.
        DatabaseNotSupported: The engine's dialect is none of the supported ones.

    **Transaction:** nothing before `start`.
    """

    def __init__(
        self,
        engine: Engine,
        handler: Any,
        *,
        queue: str = DEFAULT_QUEUE,
        worker_threads: int = 1,
        polling_interval: dt.timedelta | float = 0.1,
        tables: JobTables = default_tables,
        lease: dt.timedelta | float = 60.0,
        retry: Retry = None,
        handler_mode: HandlerMode = "default",
        session_factory: Callable[[], Session] | None = None,
        max_crashes: int = DEFAULT_MAX_CRASHES,
        stop_timeout: dt.timedelta | float = 10.0,
        worker_id: str | None = None,
        on_event: events.Sink = log_event,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name != "self"}
        if isinstance(worker_threads, bool) or not isinstance(worker_threads, int):
            raise TypeError(f"worker_threads must be an int, not {worker_threads!r}.")
        if not 1 <= worker_threads <= MOST_THREADS:
            raise ValueError(f"worker_threads must be 1 to {MOST_THREADS}, not {worker_threads}.")
        self._threads = worker_threads
        self._polling_interval = _seconds(polling_interval, "polling_interval", SHORTEST_INTERVAL)
        self._stop_timeout = _seconds(stop_timeout, "stop_timeout")
        self._runtime = build_runtime(
            engine,
            handler,
            queue=queue,
            tables=tables,
            lease=lease,
            retry=retry,
            handler_mode=handler_mode,
            session_factory=session_factory,
            max_crashes=max_crashes,
            worker_id=worker_id,
            on_event=on_event,
        )
        self._crew: Crew | None = None
        self._starting = threading.RLock()  # a sink may call start() or stop()

    def with_options(self, **options: Any) -> QueueWorker:
        """Return a worker, not started, that differs in the given options.

        Raises:
            TypeError: There is no such option.

        **Transaction:** nothing.
        """
        return QueueWorker(**{**self._given, **options})

    @property
    def is_running(self) -> bool:
        """Whether it has been started and not yet stopped. False in a forked child, which has none of its threads."""
        return self._crew is not None and self._crew.is_alive()

    @property
    def error(self) -> BaseException | None:
        """The error that ended the worker, if one did."""
        return None if self._crew is None else self._crew.error

    def join(self, timeout: dt.timedelta | float | None = None) -> bool:
        """Wait until the worker has stopped; return whether it has.

        Args:
            timeout: At most this long, seconds or timedelta; without it, until then.

        **Transaction:** nothing.
        """
        return self._crew is None or self._crew.stopped.wait(None if timeout is None else _seconds(timeout, "timeout"))

    def start(self) -> None:
        """Start the threads, and return. Does nothing if it is running; may be started again after it has stopped.

        Raises:
            TablesMissing: The tables are not there; the message says what to type.
            TablesForeign: A table of that name is not ours.
            DatabaseNotSupported: The server is too old, or the SQLite database is in memory.
            SQLAlchemyError: The database cannot be reached.

        **Transaction:** reads the catalogue; the worker's own from then on.
        """
        with self._starting:
            if self.is_running:
                return
            runtime = past_stale(self._prepare, self._runtime.engine.dialect)
            crew = Crew(runtime, self._threads, self._polling_interval)
            crew.start()
            self._crew = crew
            crew.announce()
            atexit.register(self.stop)

    def _prepare(self) -> Runtime:
        runtime = prepare(self._runtime)
        check_tables(runtime.engine, tables=runtime.tables)
        return runtime

    def stop(self, timeout: dt.timedelta | float | None = None) -> list[RunningJob]:
        """Take no more jobs, ask running handlers to stop, and wait for them.

        Jobs that were taken and not begun are put back at once. A handler that returns in time is recorded as usual; one
        that raises `JobInterrupted` gives its job back. Does nothing if it is not running.

        Args:
            timeout: How long to wait, seconds or timedelta; `stop_timeout` by default.

        Returns:
            The jobs whose handlers have not returned. They stay owned: recorded when they return, or run again elsewhere after
            the lease if the process ends first.

        **Transaction:** the worker's own.
        """
        crew = self._crew
        if crew is None or not crew.is_alive():
            return []
        atexit.unregister(self.stop)
        crew.ask_to_stop()
        seconds = self._stop_timeout if timeout is None else _seconds(timeout, "timeout")
        if crew.is_own_thread():
            seconds = 0.0  # a handler or a sink that stops its own worker must not wait for itself
        if crew.stopped.wait(seconds):
            return []
        return crew.report_running()

    def run(self) -> None:
        """Start, and return when the worker has stopped: by `stop` from elsewhere, or by Ctrl-C, which stops it gracefully.

        Raises:
            Exception: What `start` raises, and the error that ended the worker, if one did.

        **Transaction:** the worker's own.
        """
        self.start()
        try:
            while not self.join(0.5) and self.error is None:  # a wait without end could not be interrupted on Windows
                continue
        except KeyboardInterrupt:
            self.stop()
            raise
        if self.error is not None:
            self.stop()
            raise self.error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def _seconds(value: Any, name: str, minimum: float = 0.0) -> float:
    return as_timedelta(value, name, minimum=dt.timedelta(seconds=minimum)).total_seconds()
