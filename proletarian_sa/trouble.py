"""Failures in a row of something that is tried for ever: told as they come, and when they are over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proletarian_sa import events

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from proletarian_sa.health import Vigil

CLAIMING: Final = "claiming jobs"
RECORDING: Final = "recording outcomes"
"""What several parts of a worker call one activity."""


class Trouble:
    """What one activity of a worker has met since it last succeeded."""

    def __init__(self, emit: Callable[[events.Event], None], worker_id: str, activity: str, vigil: Vigil) -> None:
        self._emit = emit
        self._worker_id = worker_id
        self._vigil = vigil
        self._activity = activity
        self._failures = 0

    def met(self, error: BaseException, delay_after: Callable[[int], dt.timedelta]) -> float:
        """Tell of one failure more, and return how many seconds to wait, as `delay_after` says for so many in a row."""
        self._failures += 1
        self._vigil.failed(self._activity, error)
        delay = delay_after(self._failures)
        self._emit(
            events.TransientErrorMet(
                worker_id=self._worker_id,
                activity=self._activity,
                exception=error,
                retry_in=delay,
                consecutive=self._failures,
            )
        )
        return delay.total_seconds()

    def over(self) -> None:
        """Tell that it works again, if it has not."""
        if self._failures:
            self._emit(events.Recovered(worker_id=self._worker_id, activity=self._activity, failures=self._failures))
        self._failures = 0
        self._vigil.works(self._activity)
