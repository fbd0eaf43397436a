"""Retry strategies: what they accept, and the pure decision they lead to."""

from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proletarian_sa.retry import LONGEST_DELAY, MOST_RETRIES, Retry, RetryStrategy, decide

NOW = timedelta(0)
FOUR = RetryStrategy(retries=4, delays=[1, 5])


@pytest.mark.parametrize(
    ("strategy", "attempts", "decision"),
    [
        (None, 1, None),
        (RetryStrategy(), 1, None),
        (RetryStrategy(retries=1), 1, Retry(NOW, 0)),
        (RetryStrategy(retries=1), 2, None),
        (FOUR, 1, Retry(timedelta(seconds=1), 3)),
        (FOUR, 2, Retry(timedelta(seconds=5), 2)),
        (FOUR, 3, Retry(timedelta(seconds=5), 1)),
        (FOUR, 4, Retry(timedelta(seconds=5), 0)),
        (FOUR, 5, None),
        (FOUR, 6, None),
        (FOUR, 2_000_000_000, None),
        (FOUR, 0, Retry(timedelta(seconds=1), 3)),
        (FOUR, -5, Retry(timedelta(seconds=1), 3)),
        (RetryStrategy(retries=1, delays=[7, 8, 9]), 1, Retry(timedelta(seconds=7), 0)),
        (RetryStrategy(retries=0, delays=[7]), 1, None),
    ],
)
def test_the_decision_by_attempts_begun(strategy, attempts, decision):
    """A job is tried again while retries are left; the n-th delay follows the n-th attempt, and the last repeats."""
    assert decision == decide(strategy, attempts)


@given(
    st.integers(0, MOST_RETRIES),
    st.lists(st.timedeltas(NOW, LONGEST_DELAY), max_size=4),
    st.integers(-(2**31), 2**31 - 1),
)
def test_a_decision_is_always_one_that_can_be_carried_out(retries, delays, attempts):
    """Whatever the attempts column holds: no exception, a delay within bounds, fewer retries left than before."""
    decision = decide(RetryStrategy(retries=retries, delays=delays), attempts)

    assert (decision is None) == (max(attempts, 1) > retries)
    if decision is not None:
        assert NOW <= decision.delay <= LONGEST_DELAY
        assert 0 <= decision.retries_left < retries


@given(st.integers(0, 50), st.lists(st.integers(0, 9), max_size=4))
def test_attempts_end_after_the_retries(retries, delays):
    """A job that always fails runs retries + 1 times, and retries_left counts down to 0."""
    strategy = RetryStrategy(retries=retries, delays=delays)
    left = []
    attempts = 1
    while decision := decide(strategy, attempts):
        left.append(decision.retries_left)
        attempts += 1

    assert list(range(retries - 1, -1, -1)) == left
    assert retries + 1 == attempts


def test_delays_are_kept_as_timedeltas():
    """Delays may be given in seconds of any number type, or as timedeltas, and are kept as a tuple of timedeltas."""
    strategy = RetryStrategy(retries=1, delays=[1, 0.5, Decimal("0.25"), timedelta(days=1), 0])

    assert (
        timedelta(seconds=1),
        timedelta(seconds=0.5),
        timedelta(seconds=0.25),
        timedelta(days=1),
        NOW,
    ) == strategy.delays


def test_strategies_are_values():
    """Strategies are compared and hashed by what they say, and cannot be changed, only replaced."""
    same = RetryStrategy(retries=4, delays=(1.0, timedelta(seconds=5)))

    assert FOUR == same
    assert hash(FOUR) == hash(same)
    assert FOUR != RetryStrategy(retries=4, delays=[1])
    assert RetryStrategy(retries=2, delays=[1, 5]) == replace(FOUR, retries=2)
    with pytest.raises(FrozenInstanceError):
        FOUR.retries = 5


def test_the_bounds_are_allowed():
    """A million retries and 366 days are accepted."""
    strategy = RetryStrategy(retries=1_000_000, delays=[366 * 86_400])

    assert Retry(timedelta(days=366), 999_999) == decide(strategy, 1)


@pytest.mark.parametrize(
    ("retries", "error", "message"),
    [
        (-1, ValueError, "retries=-1 is not between 0 and 1000000. Give a number that is."),
        (1_000_001, ValueError, "retries=1000001 is not between 0 and 1000000"),
        pytest.param(10**5000, ValueError, "retries=<int> is not between 0 and 1000000", id="5000 digits"),
        (True, TypeError, "retries=True is of type bool, not an int. Give a number of attempts after the first one: "),
        (None, TypeError, "retries=None is of type NoneType, not an int"),
        (1.0, TypeError, "retries=1.0 is of type float, not an int"),
        ("4", TypeError, "retries='4' is of type str, not an int"),
        (float("inf"), TypeError, "retries=inf is of type float, not an int"),
    ],
)
def test_retries_are_checked_at_once(retries, error, message):
    """A number of retries that could not be counted is refused, and the message says what to type."""
    with pytest.raises(error) as caught:
        RetryStrategy(retries=retries)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("delays", "error", "message"),
    [
        (5, TypeError, "delays=5 is of type int, not a sequence. Give a list of seconds or timedeltas: delays=[1, 5]."),
        (None, TypeError, "delays=None is of type NoneType, not a sequence"),
        ("15", TypeError, "delays='15' is of type str, not a sequence"),
        (b"15", TypeError, "delays=b'15' is of type bytes, not a sequence"),
        ({1, 5}, TypeError, "is of type set, not a sequence"),
        ([1, -1], ValueError, "delays[1]=-1 is less than 0 seconds. Give delays[1]=0 or more."),
        ([timedelta(-1)], ValueError, "delays[0]=datetime.timedelta(days=-1) is less than 0 seconds"),
        ([float("inf")], ValueError, "delays[0]=inf is not finite. Give a number of seconds: delays[0]=60."),
        ([float("nan")], ValueError, "delays[0]=nan is not finite"),
        ([Decimal("NaN")], ValueError, "delays[0]=Decimal('NaN') is not finite"),
        ([10**15], ValueError, "delays[0]=1000000000000000 seconds are more than a timedelta can hold"),
        ([timedelta.max], ValueError, "is more than 31622400 seconds (366 days, 0:00:00). Give delays[0]=31622400 or"),
        ([366 * 86_400 + 1], ValueError, "delays[0]=31622401 is more than 31622400 seconds"),
        ([None], TypeError, "delays[0]=None is of type NoneType, not a duration. Give seconds or a timedelta: "),
        ([True], TypeError, "delays[0]=True is of type bool, not a duration"),
        (["1"], TypeError, "delays[0]='1' is of type str, not a duration"),
        ([Fraction(1)], TypeError, "is of type Fraction, not a duration"),
    ],
)
def test_delays_are_checked_at_once(delays, error, message):
    """A delay that could not be waited for is refused, and the message names which one and what to type."""
    with pytest.raises(error) as caught:
        RetryStrategy(retries=1, delays=delays)
    assert message in str(caught.value)
