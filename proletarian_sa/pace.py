"""How far ahead of its handlers a worker takes jobs."""

from __future__ import annotations

from typing import Final


class Pace:
    """How many jobs to take ahead of the handlers: as many as they run in a twentieth of a second, none while that is unknown.

    Long jobs are thus never hoarded by a worker that cannot run them yet.

    Args:
        threads: How many run at the same time.
        most: So many at the most.
    """

    AHEAD: Final = 0.05  # seconds of work
    MEMORY: Final = 0.05  # weight of the newest duration

    def __init__(self, threads: int, most: int) -> None:
        self._threads = threads
        self._most = most
        self._mean: float | None = None

    def ran(self, seconds: float) -> None:
        """Take note of a job's duration."""
        if self._mean is None or seconds > max(self._mean, self.AHEAD):
            self._mean = seconds
        else:
            self._mean += self.MEMORY * (seconds - self._mean)

    @property
    def ahead(self) -> int:
        """How many jobs to take ahead now."""
        return 0 if self._mean is None else min(int(self._threads * self.AHEAD / max(self._mean, 1e-6)), self._most)
