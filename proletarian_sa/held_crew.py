"""The threads of a worker with held claims: each takes a job, runs it and finishes it in one transaction of its own."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from proletarian_sa.floor import Floor
from proletarian_sa.held import HeldClaims, HeldWatch
from proletarian_sa.held_batch import BatchClaims
from proletarian_sa.lifecycle import LONGEST_STAGGER, Habits, Lifecycle
from proletarian_sa.trouble import CLAIMING

if TYPE_CHECKING:
    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.running import RunningJob
    from proletarian_sa.runtime import Runtime

WATCH: Final = 1  # connections beside one for each thread


class HeldCrew(Lifecycle):
    """The threads of a worker with held claims, between one start and the stop that ends them."""

    def __init__(self, runtime: Runtime, habits: Habits) -> None:
        super().__init__(runtime, habits)
        self._floors = {queue: Floor() for queue in runtime.queues}  # of all threads together
        self._watch = HeldWatch(runtime, keep_connection=self._keep, thread=self._thread)
        self._polling = threading.Lock()  # who has it polls; the others wait until there may be more jobs than one
        self._failures = 0  # of the claim, in a row
        self._waiting: tuple[int, float] | None = None  # how, if the last claim has found no job: see `Idle.wait`

    def _connections(self) -> int:
        return WATCH + self._threads

    def _running(self) -> list[RunningJob]:
        return self._watch.running()

    def _supervise(self) -> None:
        workers = [self._thread(self._work, f"handler {number + 1}") for number in range(self._threads)]
        started: list[threading.Thread] = []
        try:
            self._watch.start()
            with self._idle:
                self._idle.first_wait(self._stopping, LONGEST_STAGGER)
                for thread in workers:
                    thread.start()
                    started.append(thread)
                self._stopping.wait()
        except BaseException as error:  # noqa: BLE001 - kept for run(), and an event
            self._fail(error)
        finally:
            self.ask_to_stop()
        for thread in started:
            thread.join()
        self._watch.stop()
        self._end()

    def _work(self) -> None:
        size = self._habits.batch_size
        make = HeldClaims if size == 1 else partial(BatchClaims, size=size)
        claims = make(self._runtime, self._watch, keep_connection=self._keep, floors=self._floors)
        busy = False
        try:
            while not self._stopping.is_set():
                claimed = self._claim(claims) if busy and not self._failures else self._poll(claims)
                busy = bool(claimed)
                if claimed:
                    claims.run_all(claimed, self._stopping)
                    self._judge(claims.refusals)
                del claimed
        except BaseException as error:  # noqa: BLE001 - kept for run(), and an event
            self._fail(error)
            self.ask_to_stop()
        finally:
            claims.close()

    def _poll(self, claims: HeldClaims) -> list[ClaimedJob]:
        """Wait for jobs, while no other thread does."""
        claims.own.rollback()  # a transaction that has begun with the end of the last one
        with self._polling:
            while not self._stopping.is_set():
                waiting = self._waiting  # which a busy thread may take away
                if waiting is not None and not self._failures:
                    self._idle.wait(self._stopping, *waiting)
                claimed = [] if self._stopping.is_set() else self._claim(claims)
                if claimed:
                    return claimed
        return []

    def _claim(self, claims: HeldClaims) -> list[ClaimedJob]:
        """Take a job, or some, if there is any; wait after an error."""
        try:
            return self._try(claims)
        except Exception as error:  # noqa: BLE001 - judged there: waited out, or the worker's end
            self._stopping.wait(self._failed(error))
            return []

    def _failed(self, error: Exception) -> float:
        """Return how long to wait in seconds after an error of a claim, or raise it if it is the worker's end."""
        failures = self._failures = self._failures + 1  # another thread may succeed meanwhile
        self._idle.hand_on()
        return self._wait_out(error, failures)

    def _try(self, claims: HeldClaims) -> list[ClaimedJob]:
        with self._runtime.vigil.asking(CLAIMING):
            wakes = self._idle.about_to_claim()
            claimed = claims.claim_some(claims.limit())
            pause = 0.0 if claimed else self._idle.pause(claims.own)
        self._recovered(self._failures)
        self._failures = 0
        self._waiting = None if claimed else (wakes, pause)
        if claimed:
            self._idle.hand_on()
        return claimed
