"""The worker as the application sees it: options, start, stop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from proletarian_sa.at_exit import call_at_exit, forget
from proletarian_sa.crew import Crew
from proletarian_sa.factory import load
from proletarian_sa.handlers import check_callback
from proletarian_sa.held_crew import HeldCrew
from proletarian_sa.lifecycle import Habits, Lifecycle
from proletarian_sa.log import log_event
from proletarian_sa.models import DEFAULT_QUEUE, JobTables, default_tables
from proletarian_sa.preparing import prepare_in_time
from proletarian_sa.reentrant import ReentrantEvent
from proletarian_sa.runtime import DEFAULT_MAX_CRASHES, Claim, FailedJob, Runtime, build_runtime
from proletarian_sa.signals import StopAtSignals
from proletarian_sa.worker_base import SHORTEST_INTERVAL, WorkerBase, check_count, check_flags, seconds_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Sequence

    from sqlalchemy.engine import Engine
    from sqlalchemy.orm import Session

    from proletarian_sa import events
    from proletarian_sa.handlers import HandlerMode, Retry
    from proletarian_sa.running import RunningJob

MOST_THREADS: Final = 1000
MOST_BATCHED: Final = 1000  # jobs in one transaction


class QueueWorker(WorkerBase):
    """Run the jobs of a queue in threads, until it is told to stop.

        worker = QueueWorker(engine, jobs, queue="mail", worker_threads=4)
        worker.run()            # until stop() or a fatal error; or:
        with worker: ...        # start, and stop at the end

    Nothing is connected before `start`. Jobs are taken oldest first; what is promised, per database, stands in the README.

    Args:
        engine: The application's engine; connections of our own are taken from its pool: up to three, and one for each handler
            that uses `job.session`; held, one for each thread and one more. With `notify` one is taken out of it, to listen.
        handler: A `JobRegistry`, or a function of `(job_type, payload)`.
        queue: Which queue, or several in strict order: jobs of a later one are taken when none of the earlier ones is due, so a
            full queue starves those behind it. `default` by default.
        worker_threads: How many handlers run at the same time; 1 by default.
        polling_interval: How long to wait when no job is due, seconds or timedelta; 0.1 s by default, and up to a tenth more. A
            commit of jobs in this process ends the wait; so does one elsewhere, with `JobTables(notify=True)` on PostgreSQL.
        tables: Which pair of tables; the same as for `enqueue`.
        claim: `leased`, the default: a claim is written into the job's row, and lapses without a sign of life. `held`: one
            transaction from the claim to the finish, kept open while the handler runs; for short, purely transactional jobs, not on
            SQLite. Workers of both kinds may serve one queue.
        batch_size: Held: how many jobs may share one transaction, 1 to 1000; 1 by default. They are claimed together, run one after
            the other, each in a savepoint of its own, and committed together, which saves most of what a short job costs. A crash
            of the worker, a lost connection or a failed COMMIT means that all of them run again: what they did through
            `job.session` was undone, what else they did is repeated. A job that fails is undone and recorded by itself;
            `after_commit` hooks are called after the COMMIT. A batch takes no more jobs than run in a twentieth of a second, and
            begins none after a fifth; until it ends, its jobs are locked and other workers cannot take them.
        lease: How long a job is ours without a sign of life, seconds or timedelta; 60 s by default. It is prolonged three times as
            often while the job is in hand, so a job may run for hours; a job whose worker died runs again after this time. Held:
            for how long an outcome is tried to be recorded after its transaction was lost.
        retry: The strategy for job types without one of their own, or a function `(job, exception) -> RetryStrategy | None`; by
            default a job that fails is not tried again.
        handler_mode: How to call a plain function: `default`, `(job_type, payload)`; `advanced`, `(job)`.
        session_factory: Makes the Session behind `job.session`, for one's own subclass or binds.
        max_crashes: How many runs of a job may be lost with their worker before it is archived as failure; 5 by default.
        failed_job: Called with `(job, exception)` when a job has failed for good, in the transaction that archives it: what it
            writes through `job.session` is committed with that. If it raises, that is undone, and the job stays archived.
        held_warning: After how long a held job is warned about, seconds or timedelta; 60 s by default.
        on_polling_error: Called with an error of a claim that waiting may not mend; if it returns something true, the worker stops,
            else it polls again after a growing pause. By default it stops. Errors that pass are always waited out.
        on_shutdown: Called without arguments after a stop, once all handlers have returned.
        stop_timeout: How long `stop` waits for running handlers, seconds or timedelta; 10 s by default.
        executor: Where handlers run: `thread`, the default, or `process`: each in one of `worker_threads` processes, so that they
            use more than one processor, and one that crashes, eats the memory or exceeds its timeout costs one attempt of its job
            and no more. Leased claims only; each process makes an engine of its own, by `factory`. `failed_job` and `on_event`
            are called in the worker's process.
        factory: With `executor="process"`: `MODULE:NAME` of this worker, or of the function without arguments that returns it. The
            command `proletarian-sa worker` gives its own.
        wait_for_tables: Whether `start` waits for tables that are missing or of an older version, with growing pauses, as where a
            program starts before its migration. False by default: it raises.
        install_signal_handlers: Stop at SIGTERM, SIGINT and SIGBREAK; needs `start` in the main thread. The first signal calls
            `stop`, beside the application's own handler if there is one; without one, `run` returns after that, or the process
            ends by the signal. The second has its usual effect at once. `stop` puts back what was there. False by default.
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
        queue: str | Sequence[str] = DEFAULT_QUEUE,
        worker_threads: int = 1,
        polling_interval: dt.timedelta | float = 0.1,
        tables: JobTables = default_tables,
        claim: Claim = "leased",
        batch_size: int = 1,
        lease: dt.timedelta | float = 60.0,
        retry: Retry = None,
        handler_mode: HandlerMode = "default",
        session_factory: Callable[[], Session] | None = None,
        max_crashes: int = DEFAULT_MAX_CRASHES,
        failed_job: FailedJob | None = None,
        held_warning: dt.timedelta | float = 60.0,
        on_polling_error: Callable[[BaseException], object] | None = None,
        on_shutdown: Callable[[], object] | None = None,
        stop_timeout: dt.timedelta | float = 10.0,
        executor: Literal["thread", "process"] = "thread",
        factory: str | None = None,
        wait_for_tables: bool = False,
        install_signal_handlers: bool = False,
        worker_id: str | None = None,
        on_event: events.Sink = log_event,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name != "self"}
        check_count(worker_threads, "worker_threads", MOST_THREADS)
        check_flags(install_signal_handlers=install_signal_handlers, wait_for_tables=wait_for_tables)
        _check_executor(executor, factory, claim)
        _check_batch_size(batch_size, claim)
        check_callback(on_polling_error, "on_polling_error", "error")
        check_callback(on_shutdown, "on_shutdown")
        self._habits = Habits(
            threads=worker_threads,
            polling_interval=seconds_of(polling_interval, "polling_interval", SHORTEST_INTERVAL),
            on_polling_error=on_polling_error,
            on_shutdown=on_shutdown,
            factory=factory if executor == "process" else None,
            load=load_runtime,
            batch_size=batch_size,
        )
        self._stop_timeout = seconds_of(stop_timeout, "stop_timeout")
        self._runtime = build_runtime(
            engine,
            handler,
            queue=queue,
            tables=tables,
            claim=claim,
            lease=lease,
            retry=retry,
            handler_mode=handler_mode,
            session_factory=session_factory,
            max_crashes=max_crashes,
            failed_job=failed_job,
            held_warning=held_warning,
            worker_id=worker_id,
            on_event=on_event,
        )
        self._signals = StopAtSignals(self.stop, self._runtime.worker_id, enabled=install_signal_handlers)
        self._crew: Lifecycle | None = None
        self._wait_for_tables = wait_for_tables
        self._stop_asked = ReentrantEvent()  # since the last start began
        self._starting = threading.RLock()  # a sink may call start() or stop()

    @property
    def executor(self) -> str:
        """Where its handlers run: `thread` or `process`."""
        return str(self._given["executor"])

    def with_options(self, **options: Any) -> QueueWorker:
        """Return a worker, not started, that differs in the given options.

        Raises:
            TypeError: There is no such option.

        **Transaction:** nothing.
        """
        return QueueWorker(**{**self._given, **options})

    def join(self, timeout: dt.timedelta | float | None = None) -> bool:
        """Wait until the worker has stopped; return whether it has.

        Args:
            timeout: At most this long, seconds or timedelta; without it, until then.

        **Transaction:** nothing.
        """
        return self._crew is None or self._crew.wait(None if timeout is None else seconds_of(timeout, "timeout"))

    def start(self) -> None:
        """Start the threads, and return. Does nothing if it is running; may be started again after it has stopped.

        A `stop` that is called meanwhile, elsewhere, is obeyed as soon as it has started, or at once while it waits for the tables.
        In a forked child of a process that has used the engine, that gets a new pool, as by `engine.dispose(close=False)`.

        Raises:
            TablesMissing: The tables are not there, and not to be waited for; the message says what to type.
            TablesForeign: A table of that name is not ours.
            RightsMissing: The engine's user may not do what a worker does; the message says what to type.
            DatabaseNotSupported: The server is too old, or the SQLite database is in memory.
            SQLAlchemyError: The database cannot be reached.
            ValueError: Handlers are to run in processes, and no `factory` was given.
            HandlerProcessLost: Their processes end at once; what the factory raises in them is raised here.
            RuntimeError: It is still stopping: handlers have not returned. Or the worker is to install signal handlers, and this is
                not the main thread.

        **Transaction:** reads the catalogue; the worker's own from then on.
        """
        with self._starting:
            if self._crew is not None and self._crew.is_alive():
                self._crew.check_not_stopping()
                return
            self._stop_asked.clear()
            self._signals.check()
            self._check_factory()
            runtime = prepare_in_time(self._runtime, wait_for_tables=self._wait_for_tables, stop_asked=self._stop_asked)
            if runtime is None:
                return
            crew = HeldCrew(runtime, self._habits) if runtime.claim == "held" else Crew(runtime, self._habits)
            self._signals.install()
            call_at_exit(self.stop)
            try:
                crew.start()
                self._crew = crew
                if self._stop_asked.is_set():
                    crew.ask_to_stop()
                self._signals.begin()
                crew.announce()
            except BaseException:
                forget(self.stop)
                self._signals.remove()
                crew.ask_to_stop()  # Ctrl-C may have come when its threads had begun already
                raise

    def _check_factory(self) -> None:
        if self.executor == "process" and self._habits.factory is None:
            raise ValueError(
                "With executor='process' each process makes an engine of its own: give factory='myapp:make_worker', the function "
                "that returns this worker, or start it by: proletarian-sa worker myapp:make_worker"
            )

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
        with self._signals.stopping(lambda: self.is_running):
            self._stop_asked.set()
            forget(self.stop)
            crew = self._crew
            if crew is None or not crew.is_alive():
                return []
            crew.ask_to_stop()
            seconds = self._stop_timeout if timeout is None else seconds_of(timeout, "timeout")
            if crew.is_own_thread() or (timeout is None and self._signals.hurried):
                seconds = 0.0  # a handler or a sink that stops its own worker must not wait for itself
            if crew.wait(seconds):
                return []
            return crew.report_running()

    def run(self) -> None:
        """Start, and return when the worker has stopped: by `stop` from elsewhere, or by Ctrl-C, which stops it gracefully.

        With `install_signal_handlers`, in the main thread, also by the first signal, and then without a KeyboardInterrupt.

        Raises:
            Exception: What `start` raises, and the error that ended the worker, if one did.

        **Transaction:** the worker's own.
        """
        with self._signals.waiting_in_run():
            try:
                self.start()
                while not self.join(0.5) and self.error is None and not self._signals.obeyed:
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


def _check_executor(executor: Any, factory: Any, claim: Any) -> None:
    if executor not in ("thread", "process"):
        raise ValueError(f"executor must be 'thread' or 'process', not {executor!r}.")
    if executor == "process" and claim == "held":
        raise ValueError("Held jobs run where their transaction is: executor='process' needs claim='leased'.")
    if factory is not None and not isinstance(factory, str):
        raise TypeError(f"factory must be a string, MODULE:NAME, not {factory!r}: factory='myapp:make_worker'.")


def _check_batch_size(batch_size: Any, claim: Any) -> None:
    check_count(batch_size, "batch_size", MOST_BATCHED)
    if batch_size > 1 and claim == "leased":
        raise ValueError(
            f"batch_size={batch_size} is for held claims: QueueWorker(…, claim='held', batch_size={batch_size}). Leased jobs are "
            "claimed and recorded several at a time by themselves: leave batch_size out."
        )


def load_runtime(factory: str) -> Runtime:
    """Return what a worker knows of the world, in a process of its handlers."""
    worker: QueueWorker = load(factory, QueueWorker, "a QueueWorker")
    return worker._runtime
