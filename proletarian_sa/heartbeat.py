"""Prolong the leases of the jobs in hand, in a thread of its own, and tell who has lost one."""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from proletarian_sa import events
from proletarian_sa.backoff import backoff
from proletarian_sa.own_connection import OwnConnection
from proletarian_sa.run import about
from proletarian_sa.trouble import Trouble

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.running import RunningJob
    from proletarian_sa.runtime import MakeThread, Runtime

BEATS_PER_LEASE: Final = 3
PROLONGING: Final = "prolonging leases"
AGAIN: Final = 0.1  # seconds until the next beat when a row was locked


class InHand:
    """A claimed job in hand.

    Attributes:
        valid_until: Until when the lease surely holds, on the monotonic clock: counted from when its claim or last heartbeat
            was sent.
        running: What its handler sees, from its start until it is to be recorded.
        finishing: Its outcome is being recorded: a row that is gone is no loss.
        lost: The lease is somebody else's, or lapsed.
    """

    __slots__ = ("claimed", "finishing", "lost", "running", "valid_until")

    def __init__(self, claimed: ClaimedJob, valid_until: float) -> None:
        self.claimed = claimed
        self.valid_until = valid_until
        self.running: RunningJob | None = None
        self.finishing = False
        self.lost = False

    def is_finishing(self) -> bool:
        """Return whether a row that is gone may be our own doing."""
        running = self.running  # which another thread may take away
        return self.finishing or (running is not None and running._finishing)

    def ask_to_stop(self) -> None:
        """Ask the handler to stop, if it is being called."""
        running = self.running
        if running is not None:
            running._stop.set()


class Heartbeats:
    """The jobs in hand and the thread that keeps them.

    Args:
        runtime: The worker's.
        keep_connection: False gives the connection back after each beat, for pools that are too small.
        thread: Makes the thread, where it belongs to a worker.
    """

    def __init__(self, runtime: Runtime, *, keep_connection: bool = True, thread: MakeThread | None = None) -> None:
        self._runtime = runtime
        self._make_thread = thread or runtime.thread
        self._lease = runtime.lease.total_seconds()
        self._jobs: dict[InHand, None] = {}  # a set in order
        self._lock = threading.Lock()  # guards _jobs
        self._beating = threading.Lock()  # one beat at a time
        self._own = OwnConnection(runtime.engine, keep=keep_connection, in_line=False)  # leases do not wait, and a beat is brief
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to beat, three times a lease."""
        self._stop.clear()
        thread = self._make_thread(self._run, "heartbeat")
        thread.start()
        self._thread = thread  # not before: one that could not be started cannot be joined

    def stop(self, timeout: float | None = None) -> None:
        """End the thread. What is still in hand lapses."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def add(self, claimed: list[ClaimedJob], sent_at: float) -> list[InHand]:
        """Take claimed jobs in hand; `sent_at`: when their claim was sent, on the monotonic clock."""
        jobs = [InHand(job, sent_at + self._lease) for job in claimed]
        with self._lock:
            self._jobs.update(dict.fromkeys(jobs))
        return jobs

    def remove(self, *jobs: InHand) -> None:
        """Let go of jobs: they are finished, put back, or left to lapse."""
        with self._lock:
            for in_hand in jobs:
                self._jobs.pop(in_hand, None)

    def in_hand(self) -> list[InHand]:
        """Return the jobs in hand."""
        with self._lock:
            return list(self._jobs)

    def overdue(self) -> bool:
        """Return whether a lease may have lapsed: after an outage, or when the process stood still."""
        now = time.monotonic()
        with self._lock:
            return any(in_hand.valid_until <= now for in_hand in self._jobs)

    def lose(self, in_hand: InHand) -> None:
        """Let go of a job that is somebody else's now, and ask its handler to stop."""
        self.remove(in_hand)
        in_hand.lost = True
        in_hand.ask_to_stop()
        self._runtime.emit(events.JobLeaseLost(**about(self._runtime, in_hand.claimed), handler_finished=False))

    def beat(self, own: OwnConnection | None = None) -> bool:
        """Prolong all leases in hand, and ask the handlers of lost ones to stop.

        Args:
            own: The connection to use, in another thread than the one that beats.

        Returns:
            Whether all could be prolonged: a row that somebody has locked could not.

        **Transaction:** its own, committed.
        """
        with self._beating:
            jobs = self.in_hand()
            if not jobs:
                (own or self._own).close()
                return True
            sent_at = time.monotonic()
            with (own or self._own).transaction() as connection:
                kept, locked = self._runtime.statements.heartbeat(
                    connection, [one.claimed for one in jobs], lease=self._runtime.lease
                )
                archived = self._archived(connection, jobs, kept | locked)
            for one in jobs:
                if (one.claimed.job_id, one.claimed.token) in kept:
                    one.valid_until = sent_at + self._lease
                elif one in archived or one.is_finishing() or not self._still_in_hand(one):
                    continue
                elif (one.claimed.job_id, one.claimed.token) not in locked:
                    self.lose(one)
                elif one.valid_until <= time.monotonic():
                    one.ask_to_stop()  # lapsed, and somebody has locked it: most likely a held claim, which writes nothing
            return not any((one.claimed.job_id, one.claimed.token) in locked and not one.is_finishing() for one in jobs)

    def _archived(self, connection: Connection, jobs: list[InHand], found: set[tuple[Any, str]]) -> set[InHand]:
        """Return which jobs whose rows are gone were archived by their own claim: a process of handlers does that by itself."""
        gone = [one for one in jobs if (one.claimed.job_id, one.claimed.token) not in found]
        asked = [one for one in gone if not one.is_finishing() and self._still_in_hand(one)]
        return {one for one in asked if self._runtime.statements.archived_as(connection, one.claimed) is not None}

    def _still_in_hand(self, in_hand: InHand) -> bool:
        """Return whether the job was not finished by ourselves meanwhile."""
        with self._lock:
            return in_hand in self._jobs

    def _run(self) -> None:
        trouble = Trouble(self._runtime.emit, self._runtime.worker_id, PROLONGING, self._runtime.vigil)
        interval = self._lease / BEATS_PER_LEASE
        pause = interval
        while not self._stop.wait(pause):
            try:
                with self._runtime.vigil.asking(PROLONGING):
                    complete = self.beat()
            except Exception as error:  # noqa: BLE001 - becomes an event; whatever it is, the next beat may succeed
                pause = trouble.met(error, lambda failures: min(backoff(failures), dt.timedelta(seconds=interval)))
            else:
                trouble.over()
                pause = interval if complete else min(interval, AGAIN)
        self._own.close()
