"""The threads of a worker: one that claims, some that run handlers, one that records outcomes, one that keeps leases."""

from __future__ import annotations

import os
import queue as queues
import random
import threading
import time
from typing import TYPE_CHECKING, Final

from sqlalchemy import exc

from proletarian_sa import events
from proletarian_sa.backoff import backoff
from proletarian_sa.clock import as_timedelta
from proletarian_sa.finish import Recorder, Recording
from proletarian_sa.heartbeat import Heartbeats, Held
from proletarian_sa.own_connection import OwnConnection
from proletarian_sa.pace import Pace
from proletarian_sa.run import Decision, about
from proletarian_sa.runtime import Runtime, pool_capacity
from proletarian_sa.step import claim, run_held

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

    from proletarian_sa.running import RunningJob

CLAIMER_FINISHER_HEARTBEAT: Final = 3  # connections
LONGEST_STAGGER: Final = 1.0  # seconds before the first poll, so that workers that start together do not poll together
FINISH_BATCH: Final = 500  # outcomes in one transaction; with as many waiting for the database no more jobs are taken
MOST_REFUSALS: Final = 3  # jobs in a row whose outcomes the database refuses to store, until the worker stops
IDLE_FINISHER: Final = 5.0  # seconds until it gives its connection back
HOARDED: Final = 1.0  # seconds without a handler taking a job until those taken ahead are put back


class Crew:
    """The threads between one start and the stop that ends them."""

    def __init__(self, runtime: Runtime, threads: int, polling_interval: float) -> None:
        self._runtime = runtime
        self._threads = threads
        self._polling_interval = polling_interval
        self._pid = os.getpid()
        capacity = pool_capacity(runtime.engine)
        needed = CLAIMER_FINISHER_HEARTBEAT + threads
        self._keep = capacity is None or capacity >= needed
        if not self._keep and capacity is not None:
            runtime.emit(events.PoolTooSmall(worker_id=runtime.worker_id, needed=needed, available=capacity))
        self._heartbeats = Heartbeats(runtime, keep_connection=self._keep)
        self._inbox: queues.SimpleQueue[Held | None] = queues.SimpleQueue()
        self._outbox: queues.Queue[tuple[Held, Recording] | None] = queues.Queue()
        self._room = threading.Condition()  # guards what follows
        self._active: dict[uuid.UUID, Held] = {}  # claimed, and the handler has not returned
        self._held_back: dict[uuid.UUID, Held] = {}  # claimed again while an earlier run of ours has not returned
        self._unrecorded = 0  # outcomes on their way into the database
        self._pace = Pace(threads)
        self._moved = time.monotonic()  # when a handler last took a job
        self._stopping = threading.Event()
        self.stopped = threading.Event()
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start the threads."""
        self._heartbeats.start()
        try:
            self._thread(self._supervise, "supervisor").start()
        except BaseException:
            self._heartbeats.stop()
            raise

    def announce(self) -> None:
        """Tell that the worker has started."""
        self._runtime.emit(
            events.WorkerStarted(worker_id=self._runtime.worker_id, queue=self._runtime.queue, threads=self._threads)
        )

    def is_alive(self) -> bool:
        """Return whether the threads have not all ended; False in a forked child."""
        return not self.stopped.is_set() and self._pid == os.getpid()

    def is_own_thread(self) -> bool:
        """Return whether the caller runs in one of the threads."""
        return getattr(threading.current_thread(), "proletarian_sa_run", None) is self

    def ask_to_stop(self) -> None:
        """Take no more jobs and ask running handlers to stop; does not wait."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        with self._room:
            self._room.notify_all()
        running = self._running()
        self._runtime.emit(events.WorkerStopping(worker_id=self._runtime.worker_id, running=len(running)))
        for job in running:
            job._stop.set()

    def report_running(self) -> list[RunningJob]:
        """Tell that the time to stop is over, and return the jobs whose handlers have not returned."""
        running = self._running()
        self._runtime.emit(events.WorkerStopped(worker_id=self._runtime.worker_id, running=len(running)))
        return running

    def _running(self) -> list[RunningJob]:
        with self._room:
            return [held.running for held in self._active.values() if held.running is not None]

    def _thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        # Daemons, so that a process that forgets to stop its worker can end; stop() is called at exit.
        thread = threading.Thread(target=target, name=f"{self._runtime.worker_id} {name}", daemon=True)
        thread.proletarian_sa_run = self  # type: ignore[attr-defined]
        return thread

    def _supervise(self) -> None:
        """Start the others, and end them in the order in which jobs pass through them."""
        finisher = self._thread(self._finish, "finisher")
        handlers = [self._thread(self._handle, f"handler {number + 1}") for number in range(self._threads)]
        started: list[threading.Thread] = []
        try:
            for thread in (finisher, *handlers):
                thread.start()
                started.append(thread)
            self._claim()
        except BaseException as error:  # noqa: BLE001 - kept for run(), and an event
            self._fail(error)
        finally:
            self.ask_to_stop()
        self._put_back_taken()
        for _ in started[1:]:
            self._inbox.put(None)
        for thread in started[1:]:
            thread.join()
        if started:
            self._outbox.put(None)
            finisher.join()
        self._heartbeats.stop()
        self._runtime.emit(events.WorkerStopped(worker_id=self._runtime.worker_id, running=0))
        self.stopped.set()

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._runtime.emit(events.WorkerFailed(worker_id=self._runtime.worker_id, exception=error))

    # Claim

    def _claim(self) -> None:
        own = OwnConnection(self._runtime.engine, keep=self._keep)
        failures = 0
        try:
            self._stopping.wait(random.uniform(0, min(self._polling_interval, LONGEST_STAGGER)))
            while not self._stopping.is_set():
                limit = self._wait_for_room()
                if limit == 0:
                    continue
                try:
                    full = self._claim_once(own, limit, after_failure=failures > 0)
                except Exception as error:  # noqa: BLE001 - judged there: waited out, or the worker's end
                    failures += 1
                    self._stopping.wait(self._wait_out(error, failures))
                    continue
                if failures > 1:
                    recovered = events.Recovered(worker_id=self._runtime.worker_id, activity="claiming jobs", failures=failures)
                    self._runtime.emit(recovered)
                failures = 0
                if not full:
                    self._stopping.wait(self._polling_interval * random.uniform(0.9, 1.1))
        finally:
            own.close()

    def _wait_for_room(self) -> int:
        """Return how many jobs to claim now: 0 when stopping."""
        with self._room:
            self._put_back_hoarded()
            while not self._stopping.is_set() and (len(self._active) > self._refill_level() or self._unrecorded >= FINISH_BATCH):
                self._room.wait(HOARDED)
                self._put_back_hoarded()
            return 0 if self._stopping.is_set() else max(1, self._threads + self._pace.ahead - len(self._active))

    def _refill_level(self) -> int:
        """Return at how many jobs in hand to claim again: before the handlers run dry, not for each single one."""
        return self._threads - 1 + self._pace.ahead // 2

    def _put_back_hoarded(self) -> None:
        """Put back what was taken ahead when the handlers are busy for longer than expected: others may be idle."""
        if time.monotonic() - self._moved > HOARDED and self._put_back_taken():
            self._pace.ran(HOARDED)  # so that the next claim does not take them again

    def _put_back_taken(self) -> bool:
        """Put back what was taken and not begun; return whether there was anything."""
        any_taken = False
        with self._room:
            while True:
                try:
                    held = self._inbox.get_nowait()
                except queues.Empty:
                    break
                if held is not None:
                    any_taken = True
                    self._leave(held, Decision(claimed=held.claimed, verdict="release"))
            if self._stopping.is_set():
                for held in self._held_back.values():
                    self._hand_over(held, Decision(claimed=held.claimed, verdict="release"))
                self._held_back.clear()
        return any_taken

    def _claim_once(self, own: OwnConnection, limit: int, *, after_failure: bool) -> bool:
        """Claim jobs and hand them on; return whether there may be more."""
        if after_failure or self._heartbeats.overdue():
            self._heartbeats.beat()  # before a job of ours that seems to have lapsed is taken for somebody else's
        sent_at = time.monotonic()
        claimed = claim(self._runtime, own, limit=limit)
        for held in self._heartbeats.add(claimed, sent_at):
            earlier = self._take(held)
            if earlier is not None:
                self._heartbeats.lose(earlier)
        # A job with crashes has been claimed alone, whatever was asked for.
        return len(claimed) == limit or any(job.crashes for job in claimed)

    def _take(self, held: Held) -> Held | None:
        """Hand a claimed job to the handlers, or hold it back while an earlier run of ours goes on, which is returned.

        Its lease lapsed although the process lives: the database's clock was set, or the machine slept.
        """
        job_id = held.claimed.job_id
        with self._room:
            earlier = self._active.get(job_id)
            if earlier is None:
                if self._inbox.empty():
                    self._moved = time.monotonic()  # until now there was nothing to take
                self._active[job_id] = held
                self._inbox.put(held)
            else:
                self._held_back[job_id] = held
        return earlier

    def _wait_out(self, error: Exception, failures: int) -> float:
        """Return how long to wait in seconds after an error, or raise it if waiting does not mend it."""
        statements = self._runtime.statements
        if not statements.is_transient(error) and not statements.is_missing_table(error):
            raise error
        idled = failures == 1 and isinstance(error, exc.DBAPIError) and error.connection_invalidated
        # A connection that went stale while idle is replaced at once, and quietly.
        delay = backoff(failures).total_seconds() if not idled else 0.0
        self._runtime.emit(
            events.TransientErrorMet(
                worker_id=self._runtime.worker_id,
                activity="claiming jobs",
                exception=error,
                retry_in=as_timedelta(delay, "delay"),
                consecutive=failures - 1 if idled else failures,
            )
        )
        return delay

    # Handle

    def _handle(self) -> None:
        while (held := self._inbox.get()) is not None:
            began = self._moved = time.monotonic()
            try:
                decision = self._run_one(held)
            except BaseException as error:  # noqa: BLE001 - our own mistake: the job lapses, the thread lives on
                self._heartbeats.remove(held)
                self._leave(held, None)
                self._runtime.emit(events.OutcomeNotRecorded(**about(self._runtime, held.claimed), exception=error))
            else:
                self._leave(held, decision, took=time.monotonic() - began)
                del decision  # it holds the exception, and that the handler's variables
            del held

    def _run_one(self, held: Held) -> Decision:
        if self._stopping.is_set():
            return Decision(claimed=held.claimed, verdict="release")
        return run_held(self._runtime, held, stopping=self._stopping)

    def _leave(self, held: Held, decision: Decision | None, took: float | None = None) -> None:
        """Let go of a job whose handler has returned, or was not called; an earlier claim of it makes room for a later one."""
        job_id = held.claimed.job_id
        with self._room:
            del self._active[job_id]
            if took is not None:
                self._pace.ran(took)
            if decision is not None:
                self._hand_over(held, decision)
            later = self._held_back.pop(job_id, None)
            if later is not None:
                self._active[job_id] = later
                self._inbox.put(later)
            if len(self._active) <= self._refill_level():
                self._room.notify()

    def _hand_over(self, held: Held, decision: Decision) -> None:
        """Give a decision to the finisher."""
        held.finishing = True
        self._unrecorded += 1
        self._outbox.put((held, Recording(decision)))

    # Finish

    def _finish(self) -> None:
        recorder = Recorder(self._runtime, keep_connection=self._keep)
        waiting: list[tuple[Held, Recording]] = []
        ended = False
        while waiting or not ended:
            batch = self._next_batch(recorder, waiting)
            ended = ended or None in batch
            waiting += [one for one in batch if one is not None]
            del batch  # its exceptions would stay alive while there is nothing to do
            now = time.monotonic()
            # In an outage all wait for the next try; otherwise only those whose rows are locked.
            if recorder.outage and any(recording.not_before > now for _, recording in waiting):
                continue
            due = [one for one in waiting if one[1].not_before <= now]
            waiting = [one for one in waiting if one[1].not_before > now]
            waiting += self._record(recorder, due)
            del due
        recorder.close()

    def _next_batch(self, recorder: Recorder, waiting: list[tuple[Held, Recording]]) -> list[tuple[Held, Recording] | None]:
        """Return what has come, waiting for something to come or for something that waits to be due."""
        pause = IDLE_FINISHER
        if waiting:
            times = [recording.not_before for _, recording in waiting]
            pause = max(0.0, (max(times) if recorder.outage else min(times)) - time.monotonic())
        try:
            batch = [self._outbox.get(timeout=pause) if pause else self._outbox.get_nowait()]
        except queues.Empty:
            if not waiting:
                recorder.close()
            return []
        while len(batch) < FINISH_BATCH and not self._outbox.empty():
            batch.append(self._outbox.get_nowait())
        return batch

    def _record(self, recorder: Recorder, finished: list[tuple[Held, Recording]]) -> list[tuple[Held, Recording]]:
        """Record outcomes and let go of their jobs; return those to be tried again."""
        if not finished:
            return []
        try:
            left = {id(recording) for recording in recorder.record([recording for _, recording in finished])}
        except BaseException as error:  # noqa: BLE001 - our own mistake: the jobs lapse, the thread lives on
            left = set()
            for held, _ in finished:
                self._runtime.emit(events.OutcomeNotRecorded(**about(self._runtime, held.claimed), exception=error))
        for held, recording in finished:
            if id(recording) not in left:
                self._heartbeats.remove(held)
        with self._room:
            self._unrecorded -= len(finished) - len(left)
            self._room.notify()
        if recorder.refusals >= MOST_REFUSALS and self.error is None:
            self._fail(RuntimeError(f"The outcomes of {recorder.refusals} jobs in a row could not be recorded; see the log."))
            self.ask_to_stop()
        return [one for one in finished if id(one[1]) in left]
