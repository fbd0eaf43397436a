"""From which due time on a claim looks for jobs: not through all that was run since the database last cleaned up."""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proletarian_sa.claimed import ClaimedJob

EARLIEST: Final = dt.datetime(1000, 1, 1, tzinfo=dt.UTC)
"""Before any job is due; MySQL knows no earlier time."""


class Floor:
    """Where one worker's claims of one queue begin. May be used by several threads at the same time.

    Rows of finished jobs stay in the index until the database has cleaned up, which a transaction elsewhere may hold up for
    hours; a claim that looks for the oldest job steps over all of them. Most claims therefore begin where the worker's last ones
    have found jobs: at the earliest due time among these, not the latest, because a job that is put back while a claim looks for
    it may be taken with a due time ahead of many others. `ENOUGH` jobs tell that as well as `LAST` claims, and each is stepped
    over. What becomes due behind it (late commits, lapsed leases, jobs that a rolled-back claim had locked, clocks that were set)
    is found by the next full claim: there is one whenever `RATIO` times as long as the last one took has passed. So they cost a
    twentieth of the time at most, where none takes more than half a second, and find late jobs after twenty times the duration of
    a claim, or after `LONGEST`, if that is less: a claim that took long may have waited for a locked table.
    """

    RATIO: Final = 20
    LONGEST: Final = 10.0  # seconds
    LAST: Final = 8  # claims
    ENOUGH: Final = 500  # jobs of the last claims

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last: tuple[tuple[dt.datetime, int], ...] = ()  # of claims: the earliest due time, how many jobs
        self._lock = threading.Lock()  # of writing; tuples are read as they are
        self._next_full = 0.0

    def since(self) -> dt.datetime:
        """Return from which due time on the next claim is to look; `EARLIEST` is a full one."""
        last = self._last
        return EARLIEST if not last or self.full_in() <= 0.0 else min(due for due, _ in last)

    def full_in(self) -> float:
        """Return in how many seconds the next full claim is allowed, 0.0 if it is."""
        return max(0.0, self._next_full - self._monotonic())

    def claimed(self, since: dt.datetime, began: float, jobs: Sequence[ClaimedJob]) -> None:
        """Take note of a claim that looked from `since` on, began then by the monotonic clock, and took these, the oldest first."""
        if since == EARLIEST:
            now = self._monotonic()
            self._next_full = now + min(self.RATIO * (now - began), self.LONGEST)
        if jobs:
            with self._lock:
                last = (*self._last, (jobs[0].process_at, len(jobs)))[-self.LAST :]
                while sum(count for _, count in last[1:]) >= self.ENOUGH:
                    last = last[1:]
                self._last = last
