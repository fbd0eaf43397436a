"""The manual clock, and the conversions of times and durations that users give."""

import threading
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proletarian_sa.clock import ManualClock, as_timedelta, aware_utc
from tests.helpers import PATIENCE

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


class Nowhere(tzinfo):
    def utcoffset(self, _when):
        return None


def test_the_manual_clock_stands_still():
    """A manual clock shows the same time, in UTC, until it is moved."""
    clock = ManualClock(datetime(2030, 1, 31, 13, tzinfo=ZoneInfo("Europe/Oslo")))

    assert NOON == clock.now()
    assert UTC is clock.now().tzinfo
    assert "ManualClock(2030-01-31T12:00:00+00:00)" == repr(clock)


def test_the_manual_clock_ticks_in_seconds_and_timedeltas():
    """A tick moves the clock by seconds or a timedelta and returns the new time; negative ones step back."""
    clock = ManualClock(NOON)

    assert NOON + timedelta(seconds=1.5) == clock.tick(1.5)
    assert NOON + timedelta(seconds=61.5) == clock.tick(timedelta(minutes=1))
    assert NOON - timedelta(hours=1) == clock.tick(-3661.5)
    assert NOON - timedelta(hours=1) == clock.now()


def test_the_manual_clock_can_be_set_forwards_and_back():
    """A manual clock can be set to any aware time, earlier ones included."""
    clock = ManualClock(NOON)
    clock.set(datetime(2040, 1, 1, tzinfo=timezone(timedelta(hours=1))))
    assert datetime(2039, 12, 31, 23, tzinfo=UTC) == clock.now()

    clock.set(NOON)
    assert NOON == clock.now()


def test_the_manual_clock_loses_no_tick_of_another_thread():
    """Ticks from several threads at the same time all count."""
    clock = ManualClock(NOON)
    start = threading.Barrier(4)

    def tick():
        start.wait(PATIENCE)
        for _ in range(1000):
            clock.tick(1)

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert NOON + timedelta(seconds=4000) == clock.now()


@pytest.mark.parametrize("step", [timedelta.max, timedelta.min, 10**12, -(10**12)])
def test_the_manual_clock_stays_within_the_years_of_a_datetime(step):
    """A tick out of the years 1 to 9999 is refused, and the clock stays where it was."""
    clock = ManualClock(NOON)

    with pytest.raises(ValueError, match=r"step=.* leads from 2030-01-31T12:00:00\+00:00 out of the years 1 to 9999"):
        clock.tick(step)
    assert NOON == clock.now()


@pytest.mark.parametrize(
    "action",
    [
        ManualClock,
        ManualClock(NOON).set,
    ],
)
def test_the_manual_clock_refuses_naive_times(action):
    """A manual clock is set to aware times only."""
    with pytest.raises(ValueError, match="is naive: nobody knows which zone it means"):
        action(datetime(2030, 1, 1))  # noqa: DTZ001 - the point of the test


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.timezones()))  # noqa: DTZ001 - as Hypothesis wants
def test_aware_times_are_the_same_moment_in_utc(value):
    """Any aware datetime becomes the same moment in UTC, with its microseconds."""
    moment = aware_utc(value, "process_at")

    assert UTC is moment.tzinfo
    assert value.astimezone(UTC) == moment
    assert 0 == moment.fold


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (
            datetime(2030, 1, 31, 12),  # noqa: DTZ001
            ValueError,
            (
                "process_at=datetime.datetime(2030, 1, 31, 12, 0) is naive: nobody knows which zone it means."
                " Give process_at.replace(tzinfo=timezone.utc) if it is UTC,"
                " process_at.astimezone() if it is local time."
            ),
        ),
        (datetime(2030, 1, 31, tzinfo=Nowhere()), ValueError, "is naive"),
        (
            date(2030, 1, 31),
            TypeError,
            (
                "process_at=datetime.date(2030, 1, 31) is a date, which has no time of day."
                " Give a datetime: datetime(2030, 1, 31, tzinfo=timezone.utc)."
            ),
        ),
        (
            "2030-01-31",
            TypeError,
            (
                "process_at='2030-01-31' is of type str, not a datetime."
                " Give an aware one: datetime.now(timezone.utc) + timedelta(minutes=5)."
            ),
        ),
        (1_900_000_000, TypeError, "is of type int, not a datetime"),
        (None, TypeError, "process_at=None is of type NoneType, not a datetime"),
        (timedelta(1), TypeError, "is of type timedelta, not a datetime"),
        (time(12), TypeError, "is of type time, not a datetime"),
        (
            datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2))),
            ValueError,
            "lies outside the years 1 to 9999 in UTC",
        ),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))), ValueError, "lies outside the years 1 to 9999 in UTC"),
    ],
)
def test_what_is_no_aware_time_is_refused(value, error, message):
    """Naive datetimes: what is not an aware one is refused; the message holds the argument, its value, and what to type."""
    with pytest.raises(error) as caught:
        aware_utc(value, "process_at")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "duration"),
    [
        (0, timedelta(0)),
        (60, timedelta(minutes=1)),
        (1.5, timedelta(milliseconds=1500)),
        (-1.5, timedelta(milliseconds=-1500)),
        (0.1, timedelta(milliseconds=100)),
        (1e-9, timedelta(0)),
        (Decimal("0.000001"), timedelta(microseconds=1)),
        (Decimal("-86400.000001"), timedelta(days=-1, microseconds=-1)),
        (timedelta(days=3), timedelta(days=3)),
        (timedelta.max, timedelta.max),
        (timedelta.min, timedelta.min),
        (999_999_999 * 86_400, timedelta(days=999_999_999)),
        (-999_999_999 * 86_400, timedelta.min),
    ],
)
def test_durations_are_seconds_or_timedeltas(value, duration):
    """Seconds of any number type become a timedelta, to the microsecond."""
    assert duration == as_timedelta(value, "lease")


@given(st.timedeltas())
def test_decimal_seconds_are_exact(duration):
    """The seconds of a timedelta, written as a Decimal, give the same timedelta."""
    microseconds = duration // timedelta(microseconds=1)
    seconds = Decimal(microseconds).scaleb(-6)
    if abs(seconds) <= 999_999_999 * 86_400:
        assert duration == as_timedelta(seconds, "lease")


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (None, TypeError, "lease=None is of type NoneType, not a duration. Give seconds or a timedelta: lease=1.5 or "),
        (True, TypeError, "lease=True is of type bool, not a duration"),
        ("60", TypeError, "lease='60' is of type str, not a duration"),
        (NOON, TypeError, "is of type datetime, not a duration"),
        (float("nan"), ValueError, "lease=nan is not finite. Give a number of seconds: lease=60."),
        (float("-inf"), ValueError, "lease=-inf is not finite"),
        (Decimal("sNaN"), ValueError, "lease=Decimal('sNaN') is not finite"),
        (Decimal("Infinity"), ValueError, "lease=Decimal('Infinity') is not finite"),
        (Decimal("1e999999"), ValueError, "lease=Decimal('1E+999999') seconds are more than a timedelta can hold."),
        (1e300, ValueError, "lease=1e+300 seconds are more than a timedelta can hold. Give fewer seconds: lease=60."),
        (-(10**18), ValueError, "lease=-1000000000000000000 seconds are more than a timedelta can hold"),
        pytest.param(10**5000, ValueError, "lease=<int> seconds are more than a timedelta can hold", id="5000 digits"),
        (0.5, ValueError, "lease=0.5 is less than 1.5 seconds. Give lease=1.5 or more."),
        (61, ValueError, "lease=61 is more than 60 seconds (0:01:00). Give lease=60 or less."),
    ],
)
def test_what_is_no_duration_within_bounds_is_refused(value, error, message):
    """What is not a finite duration within bounds is refused; the message holds the argument and what to type."""
    with pytest.raises(error) as caught:
        as_timedelta(value, "lease", minimum=timedelta(seconds=1.5), maximum=timedelta(minutes=1))
    assert message in str(caught.value)


def test_the_bounds_themselves_are_allowed():
    """A duration may equal its minimum or its maximum."""
    bounds = {"minimum": timedelta(seconds=1), "maximum": timedelta(seconds=2)}

    assert timedelta(seconds=1) == as_timedelta(1, "lease", **bounds)
    assert timedelta(seconds=2) == as_timedelta(2.0, "lease", **bounds)
