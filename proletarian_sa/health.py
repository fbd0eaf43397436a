"""Whether the database answers: what a worker waits for, and since when."""

from __future__ import annotations

import datetime as dt
import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from proletarian_sa import events
from proletarian_sa.log import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

State = Literal["stopped", "running", "stopping", "failed"]

SILENT: Final = 10.0  # seconds without an answer until that is told, and again after twice that, and so on
LOOKS: Final = 5  # at it, in that time
LASTING: Final = dt.timedelta(seconds=5)
"""An error that goes on is worth a word again when the wait after it has grown to this."""
MOST_REASONS: Final = 2
"""What is told of one activity until it works again: after a lost connection, why there is no other."""
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


class Asking:
    """A block that waits for the database; made for each job, and more than once."""

    __slots__ = ("_activity", "_asked", "_token")

    def __init__(self, asked: dict[object, tuple[float, str]], activity: str) -> None:
        self._asked = asked
        self._activity = activity

    def __enter__(self) -> None:
        self._asked[self] = (time.monotonic(), self._activity)
        self._token = _asking.set(self)

    def __exit__(self, *_error: object) -> None:
        _asking.reset(self._token)
        del self._asked[self]


class Vigil:
    """What the threads of a worker ask of the database: since when, and with what success; and what was told of that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._reasons: dict[str, set[str]] = {}  # that were told, by activity, until it works again
        self._heard_until = 0.0  # when the wait ends that was told last, of any activity, on the monotonic clock
        self._asked: dict[object, tuple[float, str]] = {}  # by who asks; each changes its own
        self._failing: dict[str, tuple[float, BaseException]] = {}  # by activity

    def asking(self, activity: str) -> Asking:
        """Take note that this thread, or task, waits for the database, until the block ends."""
        return Asking(self._asked, activity)

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

    def news(self, activity: str, error: BaseException, retry_in: dt.timedelta) -> events.News:
        """Return what a failure is worth to who reads along, and take it for told: however many threads fail, in however many ways.

        A worker that waits says so again no sooner than the wait is over that it has told of last.
        """
        reason, now = brief(error), time.monotonic()
        with self._lock:
            known = self._reasons.setdefault(activity, set())
            if reason not in known and len(known) < MOST_REASONS:
                known.add(reason)
                news: events.News = "new"
            elif retry_in >= LASTING and now >= self._heard_until:
                news = "lasting"
            else:
                return "repeated"
            self._heard_until = max(self._heard_until, now + retry_in.total_seconds())
            return news

    def over(self, activity: str) -> None:
        """Take what was told of an activity for over."""
        if self._reasons:
            with self._lock:
                self._reasons.pop(activity, None)

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
        told: dict[str, tuple[float, float]] = {}  # by activity, whoever asks: since when, and how long it had lasted
        while not over.wait(SILENT / LOOKS):
            look()
            now = time.monotonic()
            asked: dict[str, float] = {}  # since when the oldest question waits
            for since, activity in list(self._asked.values()):
                asked[activity] = min(since, asked.get(activity, since))
            for activity in [one for one in told if now - asked.get(one, now) < SILENT]:
                since, _ = told.pop(activity)
                emit(events.DatabaseAnswered(worker_id=worker_id, activity=activity, seconds=now - since))
            for activity, since in asked.items():
                first, lasted = told.get(activity, (since, 0.0))
                if now - since >= max(SILENT, 2 * lasted):
                    told[activity] = first, now - since
                    emit(events.DatabaseSilent(worker_id=worker_id, activity=activity, seconds=now - since))
