"""Backoffs: delays that are computed, ours and the user's own, in place of a list."""

import datetime as dt
import math
import random
from dataclasses import FrozenInstanceError, replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proletarian_sa import Backoff, ExponentialBackoff, JobRegistry, ManualClock, RetryStrategy, process_next_job
from proletarian_sa.retry import LONGEST_DELAY, Retry, decide
from tests.observing import Recorder, add, change, clocked_tables
from tests.queue_contents import archived, queued

NOW = dt.timedelta(0)
START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def failing(_job_type, _payload):
    """Be a handler that fails."""
    raise ValueError("failed")


def seconds(backoff, attempts, luck=0.0):
    """Return the delays after these attempts."""
    return [backoff.delay(attempt, luck).total_seconds() for attempt in attempts]


class Own:
    """A backoff of the user's own: answers with the same each time, or raises it."""

    def __init__(self, answer):
        self.answer = answer
        self.given = []

    def delay(self, attempt, random):
        self.given.append((attempt, random))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


# Pure


def test_delays_grow_by_the_factor_up_to_the_cap():
    """The n-th delay is first * factor ** (n - 1), until the cap, which then repeats."""
    backoff = ExponentialBackoff(first=1.5, factor=3, cap=dt.timedelta(seconds=50), jitter=0)

    assert [1.5, 4.5, 13.5, 40.5, 50, 50] == seconds(backoff, range(1, 7))
    assert [50, 50, 50] == seconds(backoff, [2000, 1_000_001, 2**31 - 1])


def test_jitter_takes_off_a_random_part():
    """No delay is longer than without jitter, nor shorter by more than that part; the cap stays the cap."""
    backoff = ExponentialBackoff(first=100, factor=1, cap=100, jitter=0.25)

    assert [100, 87.5, 75] == [backoff.delay(1, luck).total_seconds() for luck in (0.0, 0.5, 1.0)]


def test_the_defaults():
    """A second, doubling up to an hour, less up to a tenth."""
    assert ExponentialBackoff(first=1, factor=2, cap=3600, jitter=0.1) == ExponentialBackoff()
    assert [1, 2, 4, 2048, 3600] == seconds(ExponentialBackoff(), [1, 2, 3, 12, 13])


durations = st.timedeltas(NOW, LONGEST_DELAY)


@given(st.tuples(durations, durations).map(sorted), st.floats(1, 1.7e308), st.floats(0, 1), st.integers(1, 2**31), st.floats(0, 1))
def test_no_attempt_overflows(bounds, factor, jitter, attempt, luck):
    """Whatever is accepted, and however high the attempt: a delay between the first, less jitter, and the cap."""
    first, cap = bounds
    delay = ExponentialBackoff(first=first, factor=factor, cap=cap, jitter=jitter).delay(attempt, luck)

    assert first * (1 - jitter) - dt.timedelta(microseconds=2) <= delay <= cap


def test_no_first_delay_means_none_at_all():
    """Nothing grows from nothing, however often it is multiplied."""
    assert [0, 0, 0] == seconds(ExponentialBackoff(first=0, cap=60), [1, 2000, 2**31])


def test_backoffs_are_values():
    """They are compared and hashed by what they say, and so are the strategies that hold them; they cannot be changed."""
    same = ExponentialBackoff(first=dt.timedelta(seconds=1), factor=2.0, cap=Decimal(3600), jitter=0.1)
    strategy = RetryStrategy(retries=3, backoff=same)

    assert ExponentialBackoff() == same
    assert hash(ExponentialBackoff()) == hash(same)
    assert ExponentialBackoff(jitter=0) == replace(same, jitter=0)
    assert RetryStrategy(retries=3, backoff=ExponentialBackoff()) == strategy
    assert hash(RetryStrategy(retries=3, backoff=ExponentialBackoff())) == hash(strategy)
    assert RetryStrategy(retries=4, backoff=same) == replace(strategy, retries=4)
    assert RetryStrategy(retries=3) != strategy
    with pytest.raises(FrozenInstanceError):
        same.jitter = 1


def test_the_decision_takes_its_delay_from_the_backoff():
    """It is asked with the failed attempt's number and the random number; retries are counted as ever."""
    backoff = Own(1.5)
    strategy = RetryStrategy(retries=3, backoff=backoff)

    assert Retry(dt.timedelta(seconds=1.5), 2) == decide(strategy, 1, 0.25)
    assert Retry(dt.timedelta(seconds=1.5), 0) == decide(strategy, 3, 0.75)
    assert Retry(dt.timedelta(seconds=1.5), 2) == decide(strategy, -7)
    assert None is decide(strategy, 4, 0.5)
    assert None is decide(strategy, 2**31 - 1, 0.5)
    assert [(1, 0.25), (3, 0.75), (1, 0.0)] == backoff.given


WRONG = [
    ({"first": -1}, ValueError, "first=-1 is less than 0 seconds. Give first=0 or more."),
    ({"first": math.inf}, ValueError, "first=inf is not finite. Give a number of seconds: first=60."),
    ({"first": math.nan}, ValueError, "first=nan is not finite"),
    ({"first": None}, TypeError, "first=None is of type NoneType, not a duration. Give seconds or a timedelta: "),
    ({"first": 10**18}, ValueError, "first=1000000000000000000 seconds are more than a timedelta can hold"),
    ({"first": 7200}, ValueError, "first=7200 is more than cap=3600. Give a cap of at least the first delay."),
    ({"cap": -1}, ValueError, "cap=-1 is less than 0 seconds"),
    ({"cap": dt.timedelta.max}, ValueError, "is more than 31622400 seconds (366 days, 0:00:00). Give cap=31622400 or less."),
    ({"cap": 367 * 86_400}, ValueError, "cap=31708800 is more than 31622400 seconds"),
    ({"cap": Decimal("NaN")}, ValueError, "cap=Decimal('NaN') is not finite"),
    ({"cap": "60"}, TypeError, "cap='60' is of type str, not a duration"),
    ({"factor": 0.5}, ValueError, "factor=0.5 is not at least 1, and finite. Give a number that is: factor=1."),
    ({"factor": -2}, ValueError, "factor=-2 is not at least 1"),
    ({"factor": math.inf}, ValueError, "factor=inf is not at least 1, and finite"),
    ({"factor": math.nan}, ValueError, "factor=nan is not at least 1, and finite"),
    ({"factor": 10**400}, ValueError, "is not at least 1, and finite"),
    ({"factor": True}, TypeError, "factor=True is of type bool, not a number. Give one that is at least 1."),
    ({"factor": "2"}, TypeError, "factor='2' is of type str, not a number"),
    ({"factor": Fraction(2)}, TypeError, "is of type Fraction, not a number"),
    ({"factor": None}, TypeError, "factor=None is of type NoneType, not a number"),
    ({"jitter": -0.1}, ValueError, "jitter=-0.1 is not between 0 and 1, and finite. Give a number that is: jitter=0."),
    ({"jitter": 1.1}, ValueError, "jitter=1.1 is not between 0 and 1"),
    ({"jitter": math.nan}, ValueError, "jitter=nan is not between 0 and 1"),
    ({"jitter": None}, TypeError, "jitter=None is of type NoneType, not a number. Give one that is between 0 and 1."),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_numbers_are_checked_at_once(options, error, message):
    """A number from which no delay could be computed is refused, and the message names it and says what to type."""
    with pytest.raises(error) as caught:
        ExponentialBackoff(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize("backoff", [5, [1, 5], "exponential", lambda attempt: 1, ExponentialBackoff, Own])
def test_what_is_no_backoff_is_refused(backoff):
    """A number, a list, a function, a class that was not called: the message says what to type."""
    with pytest.raises(TypeError) as caught:
        RetryStrategy(retries=1, backoff=backoff)
    assert "is no object with a method delay(attempt, random). Give one: backoff=ExponentialBackoff(" in str(caught.value)


def test_delays_and_a_backoff_exclude_each_other():
    """Both given, nobody could know which one counts."""
    with pytest.raises(TypeError, match=r"^Both delays and backoff are given, and only one can say how long to wait\. Leave one"):
        RetryStrategy(retries=1, delays=[1], backoff=ExponentialBackoff())


# On the databases


def test_a_backoff_is_carried_out(queue_engine):
    """Each retry is due exactly the computed delay after its failure: doubling, then the cap, then the archive."""
    tables = clocked_tables(clock := ManualClock(START))
    strategy = RetryStrategy(retries=4, backoff=ExponentialBackoff(first=10, factor=2, cap=30, jitter=0))
    add(queue_engine, tables=tables)
    delays = []
    while (outcome := process_next_job(queue_engine, failing, tables=tables, retry=strategy)).status == "retrying":
        (row,) = queued(queue_engine, tables)
        delays.append((row.process_at - clock.now()).total_seconds())
        clock.tick(outcome.retry_in)

    (row,) = archived(queue_engine, tables)
    assert [10, 20, 30, 30] == delays
    assert ("failed", "failure", 5) == (outcome.status, row.status, row.attempts)


def test_each_failure_has_a_random_number_of_its_own(queue_engine):
    """Jobs that fail together do not come back together; the handler's own backoff stands above the worker's."""
    own, workers = Own(60), Own(60)
    jobs = JobRegistry()
    jobs.handler("own", retry=RetryStrategy(retries=1, backoff=own))(lambda payload: 1 / 0)
    jobs.handler("other")(lambda payload: 1 / 0)
    for job_type in ("own", "own", "own", "other"):
        add(queue_engine, job_type)
        process_next_job(queue_engine, jobs, retry=RetryStrategy(retries=1, backoff=workers))

    assert [3, 1] == [len(own.given), len(workers.given)]
    assert 4 == len({luck for _, luck in own.given + workers.given})
    assert all(attempt == 1 and 0 <= luck < 1 for attempt, luck in own.given + workers.given)


def test_a_computed_backoff_at_a_high_attempt(queue_engine):
    """At attempt 2000, and a million, the cap is the delay, and the job waits for it as for any other."""
    strategy = RetryStrategy(retries=10**6, backoff=ExponentialBackoff(first=1, factor=10, cap=3600, jitter=0))
    for attempt in (2000, 10**6):
        change(queue_engine, job_id := add(queue_engine), attempts=attempt - 1)

        outcome = process_next_job(queue_engine, failing, retry=strategy)

        (row,) = [row for row in queued(queue_engine) if row.job_id == job_id]
        assert ("retrying", dt.timedelta(hours=1), attempt) == (outcome.status, outcome.retry_in, row.attempts)
        assert None is row.claimed_by


def test_attempts_at_the_end_of_their_column(queue_engine):
    """However many attempts a row claims to have had, its next failure is its last, and is archived."""
    strategy = RetryStrategy(retries=10**6, backoff=ExponentialBackoff())
    for attempts in (2_000_000_000, 2**31 - 1):
        change(queue_engine, job_id := add(queue_engine), attempts=attempts)

        outcome = process_next_job(queue_engine, failing, retry=strategy)

        (row,) = [row for row in archived(queue_engine) if row.job_id == job_id]
        assert [] == queued(queue_engine)
        assert ("failed", "failure", min(attempts + 1, 2**31 - 1)) == (outcome.status, row.status, row.attempts)


ABSURD = {
    "raises": KeyError("bug in the backoff"),
    "exits": SystemExit(1),
    "negative": -1,
    "huge": 10**18,
    "infinite": math.inf,
    "nan": math.nan,
    "decimal nan": Decimal("NaN"),
    "decimal infinite": Decimal("Infinity"),
    "longest": dt.timedelta.max,
    "a year and two days": 367 * 86_400,
    "text": "60",
    "none": None,
    "true": True,
    "list": [1],
}


def test_a_backoff_that_fails_means_no_retry(queue_engine):
    """Absurd delays of the user's own backoff cost the retries, not the job: archived, with an event that names the place."""
    for name, answer in ABSURD.items():
        backoff, seen = Own(answer), Recorder()
        job_id = add(queue_engine)

        outcome = process_next_job(queue_engine, failing, retry=RetryStrategy(retries=5, backoff=backoff), on_event=seen)

        (row,) = [row for row in archived(queue_engine) if row.job_id == job_id]
        assert (name, "failed", "failure", 1) == (name, outcome.status, row.status, row.attempts)
        assert "ValueError: failed" in row.last_error
        assert ["JobsClaimed", "JobStarted", "RetryStrategyFailed", "JobAttemptFailed", "JobFailed"] == seen.names()
        error = seen.events[2].exception
        assert (answer is error) if isinstance(answer, BaseException) else ("Own.delay()=" in str(error)), error
    assert [] == queued(queue_engine)


GOOD = [(0, 0), (0.5, 0.5), (Decimal("0.25"), 0.25), (dt.timedelta(minutes=1), 60), (LONGEST_DELAY, 366 * 86_400)]


def test_a_backoff_may_answer_in_any_kind_of_number(queue_engine):
    """Seconds of any number type, and timedeltas; the longest of 366 days included."""
    tables = clocked_tables(clock := ManualClock(START))
    for answer, expected in GOOD:
        job_id = add(queue_engine, tables=tables, process_at=START - dt.timedelta(days=1))

        process_next_job(queue_engine, failing, tables=tables, retry=RetryStrategy(retries=1, backoff=Own(answer)))

        (row,) = [row for row in queued(queue_engine, tables) if row.job_id == job_id]
        assert expected == (row.process_at - clock.now()).total_seconds()
        change(queue_engine, job_id, tables, process_at=START + dt.timedelta(days=900))


def test_a_backoff_is_a_protocol():
    """A class of the user's own needs no base of ours, only the method."""
    backoff: Backoff = Own(1)

    assert RetryStrategy(retries=1, backoff=backoff).backoff is backoff
    assert dt.timedelta(seconds=1) == decide(RetryStrategy(retries=1, backoff=backoff), 1, random.random()).delay
