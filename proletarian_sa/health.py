"""Whether the database answers: what a worker waits for, and since when."""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from proletarian_sa import events
from proletarian_sa.log import brief

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

State = Literal["stopped", "running", "stopping", "failed"]

SILENT: Final = 10.0  # seconds without an answer until that is told, and again after twice that, and so on
LOOKS: Final = 5  # at it, in that time
_asking: Final[ContextVar[object]] = ContextVar("proletarian_sa_asking", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a worker is doing, for a health check.

    Attributes:
        state: `running`, `stopping`, `stopped` (not started, too), or `failed`: an error ended it, see `QueueWorker.error`.
        running: How many handlers are running.
        stalled_for: For how many seconds something has been asked of the database without success: no answer, as over a connection
            that is dead without anybody knowing, or errors. The longest, if there are several; 0.0 while all is well. An ordinary
            statement that is on its way counts, with its milliseconds.
        reason: What has no answer, or the last error; empty while all is well.
    """

    state: State
    running: int
    stalled_for: float
    reason: str


class Vigil:
    """What the threads of a worker ask of the database: since when, and with what success."""

    def __init__(self) -> None:
        self._asked: dict[object, tuple[float, str]] = {}  # by who asks; each changes its own
        self._failing: dict[str, tuple[float, BaseException]] = {}  # by activity

    @contextmanager
    def asking(self, activity: str) -> Iterator[None]:
        """Take note that this thread, or task, waits for the database, until the block ends."""
        who = object()
        self._asked[who] = (time.monotonic(), activity)
        token = _asking.set(who)
        try:
            yield
        finally:
            _asking.reset(token)
            del self._asked[who]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do not count this block, in which the application's own code runs; what was waited for counts anew after it."""
        who = _asking.get()
        asked = self._asked.pop(who, None)
        try:
            yield
        finally:
            if asked is not None:
                self._asked[who] = (time.monotonic(), asked[1])

    def failed(self, activity: str, error: BaseException) -> None:
        """Take note of an error."""
        since = self._failing.get(activity, (time.monotonic(),))[0]
        self._failing[activity] = (since, error)

    def works(self, activity: str) -> None:
        """Take note of a success."""
        if self._failing:
            self._failing.pop(activity, None)

    def stall(self) -> tuple[float, str]:
        """Return for how long what waits longest has been waiting, and what it is."""
        now = time.monotonic()
        stalls = [(now - since, f"{activity}: no answer") for since, activity in list(self._asked.values())]
        stalls += [(now - since, f"{activity}: {brief(error)}") for activity, (since, error) in list(self._failing.items())]
        return max(stalls, default=(0.0, ""))

    def keep(
        self,
        emit: Callable[[events.Event], None],
        worker_id: str,
        over: threading.Event,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Tell of questions that have no answer, and of their end, until it is over; `look`: at something else, too."""
        told: dict[tuple[object, float, str], float] = {}  # with how long it had been waiting
        while not over.wait(SILENT / LOOKS):
            look()
            now = time.monotonic()
            asked = {(who, *what) for who, what in list(self._asked.items())}
            for answered in told.keys() - asked:
                del told[answered]
                _, since, activity = answered
                emit(events.DatabaseAnswered(worker_id=worker_id, activity=activity, seconds=now - since))
            for question in asked:
                _, since, activity = question
                if now - since >= max(SILENT, 2 * told.get(question, 0.0)):
                    told[question] = now - since
                    emit(events.DatabaseSilent(worker_id=worker_id, activity=activity, seconds=now - since))
