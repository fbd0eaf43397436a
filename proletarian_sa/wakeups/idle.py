"""How a worker waits that has found too few jobs: until its next poll, or until it is woken."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final, Self

from proletarian_sa.wakeups import listener, stations
from proletarian_sa.wakeups.announce import topic_of

if TYPE_CHECKING:
    import threading

    from proletarian_sa.events import Event
    from proletarian_sa.own_connection import OwnConnection
    from proletarian_sa.runtime import Runtime

LISTENING_INTERVAL: Final = 5.0
"""Seconds between polls of a worker that hears of new jobs, while none is due before: as a safety net.

Jobs are late by no more than this whose enqueueing nothing tells of: by a program that does not notify, in a transaction that was
prepared, or in one that was open for so long that its scheduled job was due.
"""


class Idle:
    """One worker's waiting, in the company of others in this process that look for the same jobs.

    A worker that found nothing waits for a wake-up, or for its polling interval since anybody at the station last looked. While it
    hears notifications it knows of every job that is due soon: it waits until the next one that it saw when it last looked, at the
    most for `LISTENING_INTERVAL`. What is put back for a retry is told by a notification, too, by whoever puts it back.
    """

    def __init__(self, runtime: Runtime, polling_interval: float) -> None:
        self._runtime = runtime
        self._interval = polling_interval
        self._station: stations.Station | None = None
        self._listener: listener.Listener | None = None
        self._woken = 0  # wake-ups when it last decided how long to wait

    def __enter__(self) -> Self:
        self._station = stations.join(self._runtime)
        if self._runtime.tables.notify and self._runtime.statements.notifications is not None:
            try:
                self._listener = listener.attach(self)
            except BaseException:
                stations.leave(self._here)
                raise
        return self

    def __exit__(self, *_error: object) -> None:
        if self._listener is not None:
            listener.detach(self._listener, self)
        stations.leave(self._here)

    @property
    def runtime(self) -> Runtime:
        """The worker's."""
        return self._runtime

    @property
    def _here(self) -> stations.Station:
        assert self._station is not None, "not entered"
        return self._station

    def emit(self, event: Event) -> None:
        """Tell this worker's sink what the listener of the process has met."""
        self._runtime.emit(event)

    def topics(self) -> set[str]:
        """Return what notifications say of the worker's queues."""
        return {topic_of(queue) for queue in self._runtime.queues}

    def wake(self) -> None:
        """Let it look at once, and those who wait with it."""
        self._here.wake()

    def hand_on(self) -> None:
        """Let another worker of this process look, if there is one: there may be more jobs, or this one cannot claim now."""
        self._here.hand_on()

    def interrupt(self) -> None:
        """Let those who wait see that they are to stop."""
        if self._station is not None:
            with self._station.changed:
                self._station.changed.notify_all()

    def about_to_claim(self) -> int:
        """Take note of a claim that is now sent, and return the number of wake-ups before it, for `wait`."""
        here = self._here
        with here.changed:
            here.polled_at = time.monotonic()
            here.more = False
            return here.wakes

    def wait(self, stopping: threading.Event, wakes: int, pause: float) -> None:
        """Wait until it is this worker's turn to look, or until it is to stop.

        Args:
            stopping: The worker's own flag.
            wakes: How many wake-ups there had been when it last looked: with one since then, it does not wait.
            pause: For how many seconds nobody must have looked until it does.
        """
        here = self._here
        with here.changed:
            here.polled_at = time.monotonic()
            while not stopping.is_set() and here.wakes == wakes:
                if here.more:
                    here.more = False
                    return
                now = time.monotonic()
                due = here.polled_at + pause
                if now >= due:
                    here.polled_at = now  # our turn: the others wait anew
                    return
                here.changed.wait(due - now)

    def first_wait(self, stopping: threading.Event, longest: float) -> None:
        """Wait before the first claim, so that workers that start together do not poll together."""
        here = self._here
        until = time.monotonic() + random.uniform(0, min(self._interval, longest))
        with here.changed:
            wakes = here.wakes
            while not stopping.is_set() and here.wakes == wakes and (left := until - time.monotonic()) > 0:
                here.changed.wait(left)

    def pause(self, own: OwnConnection) -> float:
        """Return for how many seconds to wait after a claim that found too few jobs.

        **Transaction:** while notifications are heard, one of its own, which reads when the next job is due.
        """
        runtime, jitter = self._runtime, random.uniform(1.0, 1.1)  # never more than one statement an interval
        notifications, shortest = runtime.statements.notifications, self._interval * jitter
        # A clock that a test moves may jump.
        if notifications is None or self._listener is None or not self._listener.hears or runtime.tables.clock is not None:
            return shortest
        woken, self._woken = self._here.wakes != self._woken, self._here.wakes
        if woken:
            return shortest  # jobs are coming: their handlers are about to start, and the next wake-up is near
        with own.transaction() as connection:
            seconds = notifications.until_next(connection, runtime.queues)
        longest = max(self._interval, LISTENING_INTERVAL) * jitter
        return longest if seconds is None else min(max(seconds, shortest), longest)
