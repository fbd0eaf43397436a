"""The threads of a worker: one that claims, some that run handlers, one that records outcomes, one that keeps leases."""

from __future__ import annotations

import queue as queues
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from proletarian_sa import events
from proletarian_sa.finish import Recorder, Recording
from proletarian_sa.floor import Floor
from proletarian_sa.heartbeat import Heartbeats, InHand
from proletarian_sa.lifecycle import LONGEST_STAGGER, Habits, Lifecycle
from proletarian_sa.own_connection import OwnConnection
from proletarian_sa.pace import Pace
from proletarian_sa.processes import HandlerProcess, start_all
from proletarian_sa.run import Decision, about
from proletarian_sa.spread import Spread
from proletarian_sa.step import claim_leased, record, run_in_hand
from proletarian_sa.trouble import CLAIMING

if TYPE_CHECKING:
    from proletarian_sa.running import RunningJob
    from proletarian_sa.runtime import Runtime

CLAIMER_FINISHER_HEARTBEAT: Final = 3  # connections
IDLE_FINISHER: Final = 5.0  # seconds until it gives its connection back
ALONE: Final = 1.0  # seconds during which nothing is claimed beside a job that may have killed its worker
NOBODY: Final = -1
HOARDED: Final = 1.0  # seconds without a handler taking a job until those taken ahead are put back


class Crew(Lifecycle):
    """The threads of a worker with leased claims, between one start and the stop that ends them."""

    def __init__(self, runtime: Runtime, habits: Habits) -> None:
        super().__init__(runtime, habits)
        self._heartbeats = Heartbeats(runtime, keep_connection=self._keep, thread=self._thread)
        self._inbox: queues.SimpleQueue[InHand | None] = queues.SimpleQueue()
        self._outbox: queues.SimpleQueue[tuple[InHand, Recording] | None] = queues.SimpleQueue()
        self._guard = threading.RLock()  # of what follows
        self._room = threading.Condition(self._guard)
        self._wanted_at = NOBODY  # at how many jobs in hand the claimer wants to be woken, if it waits for room
        self._active: dict[Any, InHand] = {}  # claimed, and the handler has not returned
        self._held_back: dict[Any, InHand] = {}  # claimed again while an earlier run of ours has not returned
        self._unrecorded = 0  # outcomes on their way into the database
        self._suspects: dict[Any, float] = {}  # jobs with crashes, until they are recorded: when they were taken
        self._most_ahead = runtime.statements.most_ahead
        self._pace = Pace(self._threads, self._most_ahead)
        self._spread = Spread()  # of the claims
        self._floors = {queue: Floor() for queue in runtime.queues}
        self._moved = time.monotonic()  # when a handler last took a job
        self._processes: list[HandlerProcess] = []
        if habits.factory is not None and habits.load is not None:
            self._processes = [HandlerProcess(runtime, habits.load, habits.factory) for _ in range(self._threads)]
        self._handler_threads: list[threading.Thread] = []  # that run handlers
        self._refused_here = 0  # outcomes in a row that were refused to the handlers' threads

    def start(self) -> None:
        """Start the threads, and before them the processes of the handlers, if there are to be any."""
        start_all(self._processes)
        try:
            self._heartbeats.start()
            super().start()
        except BaseException:
            self._heartbeats.stop()
            for process in self._processes:
                process.kill()
            raise

    def _connections(self) -> int:
        return CLAIMER_FINISHER_HEARTBEAT + self._threads

    def _wake(self) -> None:
        with self._room:
            self._room.notify_all()

    def _running(self) -> list[RunningJob]:
        with self._room:
            return [in_hand.running for in_hand in self._active.values() if in_hand.running is not None]

    def _supervise(self) -> None:
        """Start the others, and end them in the order in which jobs pass through them."""
        finisher = self._thread(self._finish, "finisher")
        finishes = False
        try:
            finisher.start()
            finishes = True
            self._start_handlers()
            with self._idle:
                self._claim()
        except BaseException as error:  # noqa: BLE001 - kept for run(), and an event
            self._fail(error)
        finally:
            self.ask_to_stop()
        try:
            self._put_back_taken()
            self._end_handlers()
            if finishes:
                self._outbox.put(None)
                finisher.join()
        finally:
            self._heartbeats.stop()
            self._end()

    def _start_handlers(self) -> None:
        for number, process in enumerate(self._processes or [None] * self._threads):
            thread = self._thread(partial(self._handle, process), f"handler {number + 1}")
            thread.start()
            self._handler_threads.append(thread)

    def _end_handlers(self) -> None:
        """Wait until no handler runs any more."""
        for _ in self._handler_threads:
            self._inbox.put(None)
        for thread in self._handler_threads:
            thread.join()

    # Claim

    def _claim(self) -> None:
        statements = self._runtime.statements
        own = OwnConnection(
            self._runtime.engine,
            keep=self._keep,
            settle=partial(statements.make_ready, lasting=self._keep),
            restore=statements.restore,
        )
        failures = 0
        try:
            self._idle.first_wait(self._stopping, LONGEST_STAGGER)
            while not self._stopping.is_set():
                limit = self._wait_for_room()
                if limit == 0:
                    continue
                wakes = self._idle.about_to_claim()
                try:
                    with self._runtime.vigil.asking(CLAIMING):
                        full = self._claim_once(own, limit, after_failure=failures > 0)
                        pause = None if full else self._idle.pause(own)
                except Exception as error:  # noqa: BLE001 - judged there: waited out, or the worker's end
                    failures += 1
                    self._idle.hand_on()
                    if self._runtime.statements.is_lost_race(error):
                        self._spread.lost()
                    self._stopping.wait(self._wait_out(error, failures))
                    continue
                self._recovered(failures)
                failures = 0
                if pause is None:
                    self._idle.hand_on()
                else:
                    self._idle.wait(self._stopping, wakes, pause)
        finally:
            own.close()

    def _wait_for_room(self) -> int:
        """Return how many jobs to claim now: 0 when stopping."""
        with self._room:
            self._put_back_hoarded()
            while not self._stopping.is_set() and (
                len(self._active) > self._refill_level() or self._unrecorded >= self._most_ahead or self._is_beside_a_suspect()
            ):
                self._wanted_at = self._refill_level()
                self._room.wait(HOARDED)
                self._put_back_hoarded()
            self._wanted_at = NOBODY
            return 0 if self._stopping.is_set() else max(1, self._threads + self._pace.ahead - len(self._active))

    def _is_beside_a_suspect(self) -> bool:
        """Return whether a job that may have killed its worker has just been taken: the next would go with it, counted as crashed.

        Of two suspects in hand at the same time the innocent one would be charged with every crash of the other.
        """
        return any(time.monotonic() - taken < ALONE for taken in self._suspects.values())

    def _refill_level(self) -> int:
        """Return at how many jobs in hand to claim again: before the handlers run dry, not for each single one.

        With a quarter of those ahead to come: the next ones take longer to come than half of them take to run where all are brief.
        """
        return self._threads - 1 + self._pace.ahead * 3 // 4

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
                    in_hand = self._inbox.get_nowait()
                except queues.Empty:
                    break
                if in_hand is not None:
                    any_taken = True
                    self._leave(in_hand, Decision(claimed=in_hand.claimed, verdict="release"))
            if self._stopping.is_set():
                for in_hand in self._held_back.values():
                    self._hand_over(in_hand, Decision(claimed=in_hand.claimed, verdict="release"))
                self._held_back.clear()
        return any_taken

    def _claim_once(self, own: OwnConnection, limit: int, *, after_failure: bool) -> bool:
        """Claim jobs and hand them on; return whether there may be more."""
        if after_failure or self._heartbeats.overdue():
            self._beat(own)  # before a job of ours that seems to have lapsed is taken for somebody else's
        sent_at = time.monotonic()
        claimed = claim_leased(self._runtime, own, limit=limit, spread=self._spread, floors=self._floors)
        more = len(claimed) == limit or (bool(claimed) and self._spread.times > 1)
        self._spread.won()
        for earlier in self._take(self._heartbeats.add(claimed, sent_at)):
            self._heartbeats.lose(earlier)
        # A job with crashes has been claimed alone, whatever was asked for.
        return more or any(job.crashes for job in claimed)

    def _beat(self, own: OwnConnection) -> None:  # noqa: ARG002 - where a connection belongs to its thread, this is the claimer's
        self._heartbeats.beat()

    def _take(self, taken: list[InHand]) -> list[InHand]:
        """Hand claimed jobs to the handlers, or hold those back of which an earlier run of ours goes on, and return these runs.

        Their leases lapsed although the process lives: the database's clock was set, or the machine slept.
        """
        going_on = []
        with self._guard:
            if self._inbox.empty():
                self._moved = time.monotonic()  # until now there was nothing to take
            for in_hand in taken:
                job_id = in_hand.claimed.job_id
                earlier = self._active.setdefault(job_id, in_hand)
                if earlier is not in_hand:
                    self._held_back[job_id] = in_hand
                    going_on.append(earlier)
                    continue
                self._inbox.put(in_hand)
                if in_hand.claimed.crashes:
                    self._suspects[job_id] = time.monotonic()
        return going_on

    # Handle

    def _handle(self, process: HandlerProcess | None) -> None:
        try:
            self._handle_all(process)
        finally:
            if process is not None:
                process.close()

    def _handle_all(self, process: HandlerProcess | None) -> None:
        while (in_hand := self._inbox.get()) is not None:
            began = self._moved = time.monotonic()
            try:
                decision = self._run_one(in_hand, process)
            except BaseException as error:  # noqa: BLE001 - our own mistake: the job lapses, the thread lives on
                self._heartbeats.remove(in_hand)
                self._leave(in_hand, None)
                self._runtime.emit(events.OutcomeNotRecorded(**about(self._runtime, in_hand.claimed), exception=error))
            else:
                here = self._runtime.failed_job is not None and self._is_recorded_here(decision)
                if here:
                    self._record_here(in_hand, decision)
                self._leave(in_hand, None if here else decision, took=time.monotonic() - began)
                del decision  # it holds the exception, and that the handler's variables
            del in_hand

    def _run_one(self, in_hand: InHand, process: HandlerProcess | None) -> Decision:
        if self._stopping.is_set():
            return Decision(claimed=in_hand.claimed, verdict="release")
        return run_in_hand(self._runtime, in_hand, self._stopping, None if process is None else process.run)

    def _is_recorded_here(self, decision: Decision) -> bool:
        return self._runtime.failed_job is not None and decision.verdict in ("failure", "undeliverable")

    def _record_here(self, in_hand: InHand, decision: Decision) -> None:
        """Record a failure in the handler's thread: a `failed_job` that takes its time holds up no other outcome."""
        in_hand.finishing = True
        recorder = Recorder(self._runtime, keep_connection=False)
        try:
            record(self._runtime, recorder, in_hand, decision)
        except BaseException as error:  # noqa: BLE001 - our own mistake: the job lapses, the thread lives on
            self._runtime.emit(events.OutcomeNotRecorded(**about(self._runtime, in_hand.claimed), exception=error))
        finally:
            recorder.close()
            self._heartbeats.remove(in_hand)
        self._refused_here = self._refused_here + recorder.refusals if recorder.refusals else 0
        self._judge(self._refused_here)

    def _leave(self, in_hand: InHand, decision: Decision | None, took: float | None = None) -> None:
        """Let go of a job whose handler has returned, or was not called; an earlier claim of it makes room for a later one."""
        job_id = in_hand.claimed.job_id
        with self._guard:
            del self._active[job_id]
            if took is not None:
                self._pace.ran(took)
            if decision is None:
                self._suspects.pop(job_id, None)
            else:
                self._hand_over(in_hand, decision)
            if self._held_back:
                self._bring_forward(job_id)
            if len(self._active) <= self._wanted_at:
                self._room.notify()

    def _bring_forward(self, job_id: Any) -> None:
        later = self._held_back.pop(job_id, None)
        if later is not None:
            self._active[job_id] = later
            self._inbox.put(later)

    def _hand_over(self, in_hand: InHand, decision: Decision) -> None:
        """Give a decision to the finisher, and nothing that it does not need: what lives on costs the garbage collector's time."""
        in_hand.finishing = True
        in_hand.running = None
        self._unrecorded += 1
        self._outbox.put((in_hand, Recording(decision)))

    # Finish

    def _finish(self) -> None:
        recorder = Recorder(self._runtime, keep_connection=self._keep)
        waiting: list[tuple[InHand, Recording]] = []
        ended = False
        while waiting or not ended:
            batch = self._next_batch(recorder, waiting)
            if None in batch:
                ended = True
            fresh = [one for one in batch if one is not None]
            del batch  # its exceptions would stay alive while there is nothing to do
            if not waiting:
                waiting = self._record(recorder, fresh)
                del fresh
                continue
            waiting += fresh
            del fresh
            now = time.monotonic()
            # In an outage all wait for the next try; otherwise only those whose rows are locked.
            if recorder.outage and any(recording.not_before > now for _, recording in waiting):
                continue
            due = [one for one in waiting if one[1].not_before <= now]
            waiting = [one for one in waiting if one[1].not_before > now]
            waiting += self._record(recorder, due)
            del due
        recorder.close()

    def _next_batch(self, recorder: Recorder, waiting: list[tuple[InHand, Recording]]) -> list[tuple[InHand, Recording] | None]:
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
        while len(batch) < self._most_ahead and not self._outbox.empty():
            batch.append(self._outbox.get_nowait())
        return batch

    def _record(self, recorder: Recorder, finished: list[tuple[InHand, Recording]]) -> list[tuple[InHand, Recording]]:
        """Record outcomes and let go of their jobs; return those to be tried again."""
        if not finished:
            return []
        try:
            left = {id(recording) for recording in recorder.record([recording for _, recording in finished])}
        except BaseException as error:  # noqa: BLE001 - our own mistake: the jobs lapse, the thread lives on
            left = set()
            for in_hand, _ in finished:
                self._runtime.emit(events.OutcomeNotRecorded(**about(self._runtime, in_hand.claimed), exception=error))
        done = [in_hand for in_hand, recording in finished if id(recording) not in left]
        self._heartbeats.remove(*done)
        with self._room:
            self._unrecorded -= len(done)
            if self._suspects:
                for in_hand in done:
                    self._suspects.pop(in_hand.claimed.job_id, None)
            self._room.notify()
        self._judge(recorder.refusals)
        return [one for one in finished if id(one[1]) in left] if left else []
