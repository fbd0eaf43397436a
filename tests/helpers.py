"""What many tests need: waiting for facts with a limit, never for time to pass."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds that a test waits for what must happen, on a very busy machine too."""
PAUSE = 0.005
"""Seconds between two looks."""


def wait_until(predicate: Callable[[], T], timeout: float = PATIENCE, pause: float = PAUSE) -> T:
    """Return the predicate's first true value, or fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"still {value!r} after {timeout} seconds")
        time.sleep(pause)


def scaled(count: int) -> int:
    """Return how many there are to be in this run: the environment variable PROLETARIAN_TEST_SCALE, 1 by default, times `count`."""
    return count * int(os.environ.get("PROLETARIAN_TEST_SCALE", "1"))
