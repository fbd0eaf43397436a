"""How often and how late a failed job is tried again: the strategy, and the pure decision it leads to."""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Protocol

from proletarian_sa._shorten import shorten
from proletarian_sa.clock import as_timedelta

MOST_RETRIES = 1_000_000
"""The highest number of retries, so that the attempts column (32 bits) cannot overflow."""

LONGEST_DELAY = timedelta(days=366)
"""The longest delay before a retry, so that no due time leaves the range of a datetime column."""

_NO_DELAY = timedelta(0)
_LARGEST_NUMBER = sys.float_info.max


class Backoff(Protocol):
    """Compute the waiting time before a retry.

    `ExponentialBackoff` is one; an object of your own with this method is another.
    """

    def delay(self, attempt: int, random: float) -> float | Decimal | timedelta:
        """Return how long to wait after a failed attempt, in seconds or as a timedelta, from 0 to 366 days.

        If it raises, or returns anything else, the job is not tried again and an event says so.

        Args:
            attempt: Which attempt has failed: 1 for the first one.
            random: A random number, at least 0 and less than 1, for jitter.

        """
        ...


@dataclass(frozen=True, init=False, slots=True)
class ExponentialBackoff:
    """Wait longer each time: `first`, then `factor` times as long after each failure, up to `cap`.

    Jitter takes a random part off each delay, so that jobs that failed together do not all come back together:
    with ``jitter=0.1`` a delay of 10 s becomes 9 to 10 s.

    Immutable, comparable and hashable. No number of attempts makes it overflow.

    Attributes:
        first: The delay after the first failed attempt.
        factor: How many times longer each delay is than the one before.
        cap: The longest delay.
        jitter: The largest part of a delay that is taken off, 0 to 1.

    Example:
        >>> backoff = ExponentialBackoff(first=1, factor=2, cap=60, jitter=0)
        >>> [backoff.delay(attempt, 0.5).total_seconds() for attempt in (1, 2, 3, 2000)]
        [1.0, 2.0, 4.0, 60.0]

    """

    first: timedelta
    factor: float
    cap: timedelta
    jitter: float

    def __init__(
        self,
        *,
        first: float | Decimal | timedelta = 1,
        factor: float = 2,
        cap: float | Decimal | timedelta = 3600,
        jitter: float = 0.1,
    ) -> None:
        """Check and keep the numbers.

        Args:
            first: The delay after the first failed attempt, seconds or a timedelta, from 0 to the cap. Default 1 s.
            factor: How many times longer each delay is than the one before, at least 1. Default 2.
            cap: The longest delay, seconds or a timedelta, at most 366 days. Default an hour.
            jitter: The largest part of a delay that is taken off at random, 0 (none) to 1. Default 0.1.

        Raises:
            TypeError: If one of them is not a number, or not a duration.
            ValueError: If one of them is out of bounds, infinite or NaN, or first is more than cap.

        """
        longest = as_timedelta(cap, "cap", minimum=_NO_DELAY, maximum=LONGEST_DELAY)
        shortest = as_timedelta(first, "first", minimum=_NO_DELAY, maximum=LONGEST_DELAY)
        if shortest > longest:
            raise ValueError(f"first={shorten(first)} is more than cap={shorten(cap)}. Give a cap of at least the first delay.")
        object.__setattr__(self, "first", shortest)
        object.__setattr__(self, "factor", _checked_number(factor, "factor", 1, None))
        object.__setattr__(self, "cap", longest)
        object.__setattr__(self, "jitter", _checked_number(jitter, "jitter", 0, 1))

    def delay(self, attempt: int, random: float) -> timedelta:
        """Return how long to wait after a failed attempt.

        Args:
            attempt: Which attempt has failed: 1 for the first one.
            random: A random number, at least 0 and less than 1.

        Returns:
            The delay, from 0 to `cap`.

        """
        cap = self.cap.total_seconds()
        try:
            seconds = min(self.first.total_seconds() * self.factor ** (attempt - 1), cap)
        except OverflowError:
            seconds = cap if self.first else 0.0
        return timedelta(seconds=seconds * (1 - self.jitter * random))


@dataclass(frozen=True, init=False, slots=True)
class RetryStrategy:
    """Say how many times a failed job is tried again, and how long to wait before each time.

    ``RetryStrategy(retries=4, delays=[1, 5])`` allows up to five attempts: the second comes 1 s after the first
    failed, the third 5 s after the second, and so on: the last delay repeats. Without delays a retry is due at once.
    ``RetryStrategy(retries=10, backoff=ExponentialBackoff(first=1, cap=3600))`` computes the delays instead.
    A delay counts from the failure.

    Immutable; comparable and hashable, if its backoff is. Whatever it accepts, a worker can carry out: nothing
    overflows later.

    Attributes:
        retries: Attempts after the first one.
        delays: Waiting times before the second attempt, the third and so on.
        backoff: What computes the waiting times instead, or None.

    """

    retries: int
    delays: tuple[timedelta, ...]
    backoff: Backoff | None

    def __init__(
        self,
        *,
        retries: int = 0,
        delays: Sequence[float | Decimal | timedelta] = (),
        backoff: Backoff | None = None,
    ) -> None:
        """Check and keep the numbers.

        Args:
            retries: Attempts after the first one, 0 to 1,000,000. Default 0: a failed job is not tried again.
            delays: Waiting times in seconds or as timedeltas, each from 0 to 366 days. Default none: no waiting.
            backoff: Computes the waiting times instead of `delays`: an `ExponentialBackoff`, or a `Backoff` of your own.

        Raises:
            TypeError: If retries is not an int, delays is not a sequence, a delay is not a duration, backoff has no
                method `delay`, or both delays and backoff are given.
            ValueError: If one of them is out of bounds, infinite or NaN.

        """
        object.__setattr__(self, "retries", _checked_retries(retries))
        object.__setattr__(self, "delays", _checked_delays(delays))
        object.__setattr__(self, "backoff", _checked_backoff(backoff, self.delays))


@dataclass(frozen=True, slots=True)
class Retry:
    """Say that a job is to be tried again.

    Attributes:
        delay: How long after the failure.
        retries_left: How many retries remain after this one.

    """

    delay: timedelta
    retries_left: int


def decide(strategy: RetryStrategy | None, attempts: int, random: float = 0.0) -> Retry | None:
    """Decide whether a job that has just failed is tried again.

    Pure, if the strategy's backoff is: reads no clock and no database.

    Args:
        strategy: The job's strategy; None means no retry.
        attempts: Attempts begun so far, the failed one included: 1 after the first run.
        random: A random number, at least 0 and less than 1, for the backoff's jitter; 0 by default: no jitter.

    Returns:
        The retry, or None when the job has failed for good.

    Raises:
        TypeError: If a backoff of the user's own returns no duration.
        ValueError: If it returns one that is negative, infinite, NaN or longer than 366 days.
        BaseException: What it raises itself.

    """
    if strategy is None:
        return None
    begun = max(attempts, 1)
    left = strategy.retries + 1 - begun
    if left <= 0:
        return None
    return Retry(delay=_delay(strategy, begun, random), retries_left=left - 1)


def _delay(strategy: RetryStrategy, begun: int, random: float) -> timedelta:
    if strategy.backoff is not None:
        delay = strategy.backoff.delay(begun, random)
        name = f"{type(strategy.backoff).__name__}.delay()"
        return as_timedelta(delay, name, minimum=_NO_DELAY, maximum=LONGEST_DELAY)
    delays = strategy.delays
    return delays[min(begun, len(delays)) - 1] if delays else _NO_DELAY


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


def _checked_backoff(backoff: Any, delays: tuple[timedelta, ...]) -> Any:
    if backoff is None:
        return None
    if inspect.isclass(backoff) or not callable(getattr(backoff, "delay", None)):
        raise TypeError(
            f"backoff={shorten(backoff)} is no object with a method delay(attempt, random)."
            " Give one: backoff=ExponentialBackoff(first=1, cap=3600)."
        )
    if delays:
        raise TypeError("Both delays and backoff are given, and only one can say how long to wait. Leave one of them out.")
    return backoff


def _checked_number(value: Any, name: str, minimum: int, maximum: int | None) -> float:
    allowed = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={shorten(value)} is of type {type(value).__name__}, not a number. Give one that is {allowed}.")
    # Compared before it is converted: float(10**400) would raise.
    if not minimum <= value <= (_LARGEST_NUMBER if maximum is None else maximum):
        raise ValueError(f"{name}={shorten(value)} is not {allowed}, and finite. Give a number that is: {name}={minimum}.")
    return float(value)
