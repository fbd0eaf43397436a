"""Failures in a row of something that is tried for ever: told as they come, and when they are over."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final

from proletarian_sa import events

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from proletarian_sa.health import Vigil

CLAIMING: Final = "claiming jobs"
RECORDING: Final = "recording outcomes"
"""What several parts of a worker call one activity."""


class Trouble:
    """What one activity of a worker has met since it last succeeded, in all threads that share it."""

    def __init__(self, emit: Callable[[events.Event], None], worker_id: str, activity: str, vigil: Vigil) -> None:
        self._emit = emit
        self._worker_id = worker_id
        self._vigil = vigil
        self._activity = activity
        self._lock = threading.Lock()  # guards what follows
        self._failures = 0
        self._waiting: weakref.WeakSet[object] = weakref.WeakSet()  # what has failed; who forgets one gives it up

    def met(
        self,
        error: BaseException,
        delay_after: Callable[[int], dt.timedelta],
        *,
        waiting: Iterable[object] = (),
        stalls: bool = True,
    ) -> float:
        """Tell of one failure more, and return how many seconds to wait, as `delay_after` says for so many in a row.

        Args:
            error: What happened.
            delay_after: Its argument is the number of failures in a row.
            waiting: What has failed, if not all of the activity waits for the same: it is not over before each of them is.
            stalls: Whether it is the database that does not serve us.
        """
        with self._lock:
            self._failures += 1
            failures = self._failures
            self._waiting.update(waiting)
        if stalls:
            self._vigil.failed(self._activity, error)
        delay = delay_after(failures)
        self._emit(
            events.TransientErrorMet(
                worker_id=self._worker_id,
                activity=self._activity,
                exception=error,
                retry_in=delay,
                consecutive=failures,
                news=self._vigil.news(self._activity, error, delay),
            )
        )
        return delay.total_seconds()

    def give_up(self, what: object) -> None:
        """Forget what has failed and is not tried again: others that fail say so themselves."""
        self._vigil.works(self._activity)
        with self._lock:
            self._waiting.discard(what)

    def over(self, done: Iterable[object] = ()) -> None:
        """Tell that it works again, if it has not and nothing waits any more but what is `done`."""
        self._vigil.works(self._activity)
        if not self._failures:
            return
        with self._lock:
            self._waiting.difference_update(done)
            failures = self._failures
            if self._waiting or not failures:
                return
            self._failures = 0
        self._vigil.over(self._activity)
        self._emit(events.Recovered(worker_id=self._worker_id, activity=self._activity, failures=failures))
