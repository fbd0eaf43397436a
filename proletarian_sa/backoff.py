"""How long to wait for a database that cannot serve us now."""

from __future__ import annotations

import datetime as dt
import random
from typing import Final

FIRST: Final = 0.1  # seconds
CAP: Final = 30.0  # seconds


def backoff(failures: int, *, cap: float = CAP) -> dt.timedelta:
    """Return the pause after the given number of consecutive failures: doubling from 0.1 s to the cap, less up to half.

    The jitter keeps workers that lost the same database from coming back as one.
    """
    longest = min(FIRST * 2 ** min(failures - 1, 20), cap)
    return dt.timedelta(seconds=longest * random.uniform(0.5, 1.0))
