"""Time as a parameter: the clock protocol, a clock for tests, and the two conversions of user-given times."""

import math
import threading
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Protocol

from proletarian_sa._shorten import shorten

_MOST_SECONDS = abs(timedelta.min) // timedelta(seconds=1)


class Clock(Protocol):
    """Tell the time in place of the database.

    Without a clock the database's own time is used. With one, every time that the library writes or compares is the
    clock's: for tests, and for replays.
    """

    def now(self) -> datetime:
        """Return the present time, aware UTC."""
        ...


class ManualClock:
    """Stand still until told otherwise: a clock for tests, yours included.

    It may step back, as real clocks do. Safe to read and move from several threads.

    Example:
        >>> clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
        >>> clock.tick(90)
        datetime.datetime(2030, 1, 1, 0, 1, 30, tzinfo=datetime.timezone.utc)

    """

    def __init__(self, start: datetime) -> None:
        """Set the clock.

        Args:
            start: The first time it shows, an aware datetime of any zone.

        Raises:
            TypeError: If start is not a datetime.
            ValueError: If start is naive.

        """
        self._lock = threading.Lock()
        self._now = aware_utc(start, "start")

    def __repr__(self) -> str:
        return f"ManualClock({self.now().isoformat()})"

    def now(self) -> datetime:
        """Return the time it was last moved to, aware UTC."""
        return self._now

    def tick(self, step: float | Decimal | timedelta) -> datetime:
        """Move by a duration, and return the new time.

        Args:
            step: Seconds or a timedelta; negative steps back.

        Returns:
            The new time, aware UTC.

        Raises:
            TypeError: If step is not a duration.
            ValueError: If step is not finite, or leads out of the years 1 to 9999.

        """
        duration = as_timedelta(step, "step")
        with self._lock:
            try:
                self._now += duration
            except OverflowError:
                raise ValueError(
                    f"step={shorten(step)} leads from {self._now.isoformat()} out of the years 1 to 9999. Give a smaller step."
                ) from None
            return self._now

    def set(self, now: datetime) -> None:
        """Move to a time, forwards or back.

        Args:
            now: The new time, an aware datetime of any zone.

        Raises:
            TypeError: If now is not a datetime.
            ValueError: If now is naive.

        """
        moment = aware_utc(now, "now")
        with self._lock:
            self._now = moment


def aware_utc(value: Any, name: str) -> datetime:
    """Check that a value is an aware datetime, and return the same moment in UTC.

    Args:
        value: What the user gave.
        name: The argument's name, for the message.

    Returns:
        The moment, aware UTC, with microseconds.

    Raises:
        TypeError: If value is not a datetime; a date is not.
        ValueError: If value is naive, or its moment in UTC lies outside the years 1 to 9999.

    """
    if not isinstance(value, datetime):
        if isinstance(value, date):
            raise TypeError(
                f"{name}={shorten(value)} is a date, which has no time of day."
                f" Give a datetime: datetime({value.year}, {value.month}, {value.day}, tzinfo=timezone.utc)."
            )
        raise TypeError(
            f"{name}={shorten(value)} is of type {type(value).__name__}, not a datetime."
            f" Give an aware one: datetime.now(timezone.utc) + timedelta(minutes=5)."
        )
    if value.utcoffset() is None:
        raise ValueError(
            f"{name}={shorten(value)} is naive: nobody knows which zone it means."
            f" Give {name}.replace(tzinfo=timezone.utc) if it is UTC, {name}.astimezone() if it is local time."
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(
            f"{name}={shorten(value)} lies outside the years 1 to 9999 in UTC. Give a time at least a day inside them."
        ) from None


def as_timedelta(value: Any, name: str, *, minimum: timedelta | None = None, maximum: timedelta | None = None) -> timedelta:
    """Turn seconds, or a timedelta, into a timedelta within bounds.

    Args:
        value: What the user gave: seconds as int, float or Decimal (rounded to microseconds), or a timedelta.
        name: The argument's name, for the message.
        minimum: The shortest duration allowed; None means any, negative ones included.
        maximum: The longest duration allowed; None means any that a timedelta can hold.

    Returns:
        The duration.

    Raises:
        TypeError: If value is of another type; None, bool and str are.
        ValueError: If value is not finite, or out of bounds.

    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | timedelta):
        raise TypeError(
            f"{name}={shorten(value)} is of type {type(value).__name__}, not a duration."
            f" Give seconds or a timedelta: {name}=1.5 or {name}=timedelta(minutes=5)."
        )
    if isinstance(value, timedelta):
        duration = value
    else:
        if not (value.is_finite() if isinstance(value, Decimal) else isinstance(value, int) or math.isfinite(value)):
            raise ValueError(f"{name}={shorten(value)} is not finite. Give a number of seconds: {name}=60.")
        # Compared before it is converted: int(Decimal("1e999999")) would take all the time and memory there is.
        if not -_MOST_SECONDS <= value <= _MOST_SECONDS:
            raise ValueError(f"{name}={shorten(value)} seconds are more than a timedelta can hold. Give fewer seconds: {name}=60.")
        # Whole seconds apart from the rest: exact for int and Decimal, which float(value) would not be.
        whole = int(value)
        duration = timedelta(seconds=whole, microseconds=round(float(value - whole) * 1_000_000))
    if minimum is not None and duration < minimum:
        raise ValueError(
            f"{name}={shorten(value)} is less than {_seconds(minimum)} seconds. Give {name}={_seconds(minimum)} or more."
        )
    if maximum is not None and duration > maximum:
        raise ValueError(
            f"{name}={shorten(value)} is more than {_seconds(maximum)} seconds ({maximum})."
            f" Give {name}={_seconds(maximum)} or less."
        )
    return duration


def _seconds(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    return str(int(seconds)) if seconds.is_integer() else str(seconds)
