"""How often and how late a failed job is tried again: the strategy, and the pure decision it leads to."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from proletarian_sa._shorten import shorten
from proletarian_sa.clock import as_timedelta

MOST_RETRIES = 1_000_000
"""The highest number of retries, so that the attempts column (32 bits) cannot overflow."""

LONGEST_DELAY = timedelta(days=366)
"""The longest delay before a retry, so that no due time leaves the range of a datetime column."""

_NO_DELAY = timedelta(0)


@dataclass(frozen=True, init=False, slots=True)
class RetryStrategy:
    """Say how many times a failed job is tried again, and how long to wait before each time.

    ``RetryStrategy(retries=4, delays=[1, 5])`` allows up to five attempts: the second comes 1 s after the first
    failed, the third 5 s after the second, and so on: the last delay repeats. Without delays a retry is due at once.
    A delay counts from the failure.

    Immutable, comparable and hashable. Whatever it accepts, a worker can carry out: nothing overflows later.

    Attributes:
        retries: Attempts after the first one.
        delays: Waiting times before the second attempt, the third and so on.

    """

    retries: int
    delays: tuple[timedelta, ...]

    def __init__(self, *, retries: int = 0, delays: Sequence[float | Decimal | timedelta] = ()) -> None:
        """Check and keep the numbers.

        Args:
            retries: Attempts after the first one, 0 to 1,000,000. Default 0: a failed job is not tried again.
            delays: Waiting times in seconds or as timedeltas, each from 0 to 366 days. Default none: no waiting.

        Raises:
            TypeError: If retries is not an int, delays is not a sequence, or a delay is not a duration.
            ValueError: If one of them is out of bounds, infinite or NaN.

        """
        object.__setattr__(self, "retries", _checked_retries(retries))
        object.__setattr__(self, "delays", _checked_delays(delays))


@dataclass(frozen=True, slots=True)
class Retry:
    """Say that a job is to be tried again.

    Attributes:
        delay: How long after the failure.
        retries_left: How many retries remain after this one.

    """

    delay: timedelta
    retries_left: int


def decide(strategy: RetryStrategy | None, attempts: int) -> Retry | None:
    """Decide whether a job that has just failed is tried again.

    Pure: reads no clock and no database.

    Args:
        strategy: The job's strategy; None means no retry.
        attempts: Attempts begun so far, the failed one included: 1 after the first run.

    Returns:
        The retry, or None when the job has failed for good.

    """
    if strategy is None:
        return None
    begun = max(attempts, 1)
    left = strategy.retries + 1 - begun
    if left <= 0:
        return None
    delays = strategy.delays
    delay = delays[min(begun, len(delays)) - 1] if delays else _NO_DELAY
    return Retry(delay=delay, retries_left=left - 1)


def _checked_retries(retries: Any) -> int:
    if isinstance(retries, bool) or not isinstance(retries, int):
        raise TypeError(
            f"retries={shorten(retries)} is of type {type(retries).__name__}, not an int."
            " Give a number of attempts after the first one: retries=4."
        )
    if not 0 <= retries <= MOST_RETRIES:
        raise ValueError(f"retries={shorten(retries)} is not between 0 and {MOST_RETRIES}. Give a number that is.")
    return int(retries)


def _checked_delays(delays: Any) -> tuple[timedelta, ...]:
    if isinstance(delays, str | bytes) or not isinstance(delays, Sequence):
        raise TypeError(
            f"delays={shorten(delays)} is of type {type(delays).__name__}, not a sequence."
            " Give a list of seconds or timedeltas: delays=[1, 5]."
        )
    return tuple(
        as_timedelta(delay, f"delays[{index}]", minimum=_NO_DELAY, maximum=LONGEST_DELAY) for index, delay in enumerate(delays)
    )
