"""What the threads of a worker have in common, whatever they do between start and stop."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import exc

from proletarian_sa import events
from proletarian_sa.backoff import backoff
from proletarian_sa.clock import as_timedelta
from proletarian_sa.errors import is_ctrl_c
from proletarian_sa.health import Health, State
from proletarian_sa.reentrant import ReentrantEvent
from proletarian_sa.runtime import pool_capacity
from proletarian_sa.trouble import CLAIMING
from proletarian_sa.wakeups.idle import Idle

if TYPE_CHECKING:
    from collections.abc import Callable

    from proletarian_sa.running import RunningJob
    from proletarian_sa.runtime import Runtime

MOST_REFUSALS = 3  # jobs in a row whose outcomes the database refuses to store, until the worker stops
MOST_RACES = 3  # in a row that a claim may lose against those of other nodes of a cluster, until it waits
LOOK = 0.5  # seconds between two looks of those who wait: whether a signal has come, or a loop has been closed
LONGEST_STAGGER = 1.0  # seconds before the first poll, so that workers that start together do not poll together


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a worker's threads behave.

    Attributes:
        threads: How many handlers run at the same time.
        polling_interval: Seconds between polls of an empty queue.
        on_polling_error: Asked whether an error that waiting may not mend stops the worker; None: it does.
        on_shutdown: Called once all handlers have returned.
        factory: What each process of handlers loads; None: handlers run in threads.
        load: Loads it there.
        batch_size: How many held jobs share a transaction at the most.
    """

    threads: int
    polling_interval: float
    on_polling_error: Callable[[BaseException], object] | None = None
    on_shutdown: Callable[[], object] | None = None
    factory: str | None = None
    load: Callable[[str], Runtime] | None = None
    batch_size: int = 1


class Lifecycle:
    """One start of a worker, and the stop that ends it.

    Attributes:
        stopped: Set once all threads have ended.
        error: What has ended the worker, if an error has.
    """

    def __init__(self, runtime: Runtime, habits: Habits) -> None:
        self._runtime = runtime
        self._habits = habits
        self._threads = habits.threads
        self._polling_interval = habits.polling_interval
        self._pid = os.getpid()
        connections, capacity = self._connections(), pool_capacity(runtime.engine)
        self._keep = capacity is None or capacity >= connections
        if not self._keep and capacity is not None:
            runtime.emit(events.PoolTooSmall(worker_id=runtime.worker_id, needed=connections, available=capacity))
        self._untold = 0  # failures of the claim in a row that are nothing to tell
        self._stopping = ReentrantEvent()
        self._asking = threading.RLock()  # one of those who ask at the same time goes on; a signal handler may be among them
        self._idle = Idle(runtime, habits.polling_interval)
        self._vigil = self._thread(self._keep_vigil, "vigil")
        self._over = threading.Event()  # it is time for that to end
        self.stopped = ReentrantEvent()
        self.error: BaseException | None = None

    def _connections(self) -> int:
        """Return how many connections of the application's pool it may need at the same time."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the threads."""
        self._vigil.start()
        try:
            self._thread(self._supervise, "supervisor").start()
        except BaseException:
            self._over.set()
            raise

    def announce(self) -> None:
        """Tell that the worker has started."""
        self._runtime.emit(
            events.WorkerStarted(worker_id=self._runtime.worker_id, queues=self._runtime.queues, threads=self._threads)
        )

    def wait(self, timeout: float | None) -> bool:
        """Return whether it has stopped, at the latest after so many seconds.

        Not in one wait: Python does not interrupt that for a signal that the system has given to another thread of the process, on
        Windows for none, and the next signal may be there to end the process at once.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.stopped.wait(LOOK if deadline is None else min(LOOK, max(0.0, deadline - time.monotonic()))):
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return True

    def is_alive(self) -> bool:
        """Return whether the threads have not all ended; False in a forked child."""
        return not self.stopped.is_set() and self._pid == os.getpid()

    def is_own_thread(self) -> bool:
        """Return whether the caller runs in one of the threads."""
        return getattr(threading.current_thread(), "proletarian_sa_run", None) is self

    def check_not_stopping(self) -> None:
        """Raise RuntimeError if it has been asked to stop and has not stopped yet."""
        if self._stopping.is_set() and not self.is_own_thread():
            raise RuntimeError(
                f"The worker is still stopping: {len(self._running())} of its handlers have not returned. Wait for them with"
                " join(), then start it again."
            )

    def ask_to_stop(self) -> None:
        """Take no more jobs and ask running handlers to stop; does not wait."""
        with self._asking:
            if self._stopping.is_set():
                return
            self._stopping.set()
        self._idle.interrupt()
        self._wake()
        running = self._running()
        self._runtime.emit(events.WorkerStopping(worker_id=self._runtime.worker_id, running=len(running)))
        for job in running:
            job._stop.set()

    def report_running(self) -> list[RunningJob]:
        """Tell that the time to stop is over, and return the jobs whose handlers have not returned."""
        running = self._running()
        self._runtime.emit(events.WorkerStopped(worker_id=self._runtime.worker_id, running=len(running)))
        return running

    def _wake(self) -> None:
        """Wake threads that wait for something else than the stop."""

    def _running(self) -> list[RunningJob]:
        raise NotImplementedError

    def _supervise(self) -> None:
        """Start the other threads, wait for the stop, and end them; then `_end`."""
        raise NotImplementedError

    def _keep_vigil(self) -> None:
        self._runtime.vigil.keep(self._runtime.emit, self._runtime.worker_id, self._over)

    def health(self) -> Health:
        """Return what the threads are doing."""
        state: State = "running"
        if self.error is not None:
            state = "failed"
        elif not self.is_alive():
            state = "stopped"
        elif self._stopping.is_set():
            state = "stopping"
        seconds, reason = self._runtime.vigil.stall() if self.is_alive() else (0.0, "")
        return Health(state=state, running=len(self._running()), stalled_for=seconds, reason=reason)

    def _end(self) -> None:
        self._over.set()
        self._vigil.join()
        self._runtime.emit(events.WorkerStopped(worker_id=self._runtime.worker_id, running=0))
        try:
            self._shut_down()
        except BaseException as error:  # noqa: BLE001 - becomes an event
            self._runtime.emit(events.CallbackFailed(worker_id=self._runtime.worker_id, callback="on_shutdown", exception=error))
        finally:
            self.stopped.set()

    def _shut_down(self) -> None:
        if self._habits.on_shutdown is not None:
            self._habits.on_shutdown()

    def _thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = self._runtime.thread(target, name)
        thread.proletarian_sa_run = self  # type: ignore[attr-defined]
        return thread

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._runtime.emit(events.WorkerFailed(worker_id=self._runtime.worker_id, exception=error))

    def _judge(self, refusals: int) -> None:
        """Stop when the outcomes of too many jobs in a row could not be recorded: to go on would only repeat their effects."""
        if refusals >= MOST_REFUSALS and self.error is None:
            self._fail(RuntimeError(f"The outcomes of {refusals} jobs in a row could not be recorded; see the log."))
            self.ask_to_stop()

    def _recovered(self, failures: int) -> None:
        self._runtime.vigil.works(CLAIMING)
        self._runtime.vigil.over(CLAIMING)
        if failures > max(1, self._untold):
            self._runtime.emit(events.Recovered(worker_id=self._runtime.worker_id, activity=CLAIMING, failures=failures))

    def _wait_out(self, error: Exception, failures: int) -> float:
        """Return how long to wait in seconds after an error of a claim, or raise it if it is the worker's end."""
        self._runtime.vigil.failed(CLAIMING, error)
        statements = self._runtime.statements
        advice = statements.advice(error)
        if advice is not None:
            error.add_note(advice)
        if not statements.is_transient(error) and not statements.is_missing_table(error):
            if self._is_fatal(error):
                raise error
            retry_in = backoff(failures)
            self._runtime.emit(
                events.PollingErrorTolerated(
                    worker_id=self._runtime.worker_id, exception=error, retry_in=retry_in, consecutive=failures
                )
            )
            return retry_in.total_seconds()
        idled = failures == 1 and isinstance(error, exc.DBAPIError) and error.connection_invalidated
        # A connection that went stale while idle is replaced at once, and quietly; likewise some races are lost on a cluster.
        if failures == 1:
            self._untold = 0
        at_once = idled or (statements.is_lost_race(error) and self._untold == failures - 1 < MOST_RACES)
        self._untold += at_once
        delay = 0.0 if at_once else backoff(failures - self._untold).total_seconds()
        consecutive, retry_in = failures - self._untold, as_timedelta(delay, "delay")
        self._runtime.emit(
            events.TransientErrorMet(
                worker_id=self._runtime.worker_id,
                activity=CLAIMING,
                exception=error,
                retry_in=retry_in,
                consecutive=consecutive,
                news=self._runtime.vigil.news(CLAIMING, error, retry_in) if consecutive else "repeated",
            )
        )
        return delay

    def _is_fatal(self, error: Exception) -> bool:
        """Return whether the application wants the worker to stop for this."""
        ask = self._habits.on_polling_error
        if ask is None:
            return True
        try:
            return bool(ask(error))
        except BaseException as failure:
            if is_ctrl_c(failure):
                raise
            emit, worker_id = self._runtime.emit, self._runtime.worker_id
            emit(events.CallbackFailed(worker_id=worker_id, callback="on_polling_error", exception=failure))
            return True
