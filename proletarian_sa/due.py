"""When a job is due: the pure part."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from proletarian_sa.clock import as_timedelta

MAX_DELAY: Final = dt.timedelta(days=366 * 1000)


def check_delay(value: Any, what: str) -> dt.timedelta:
    """Return a delay as a timedelta: seconds or timedelta, at most a thousand years; a negative one means none."""
    return max(as_timedelta(value, what, maximum=MAX_DELAY), dt.timedelta())


def due_time(now: dt.datetime, process_at: dt.datetime | None, process_in: dt.timedelta | None) -> dt.datetime:
    """Return when a job is due: `process_at` before `process_in` before now, and never in the past."""
    if process_at is not None:
        return max(now, process_at)
    return now + (process_in or dt.timedelta())
