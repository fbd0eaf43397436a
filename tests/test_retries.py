"""Failed attempts: when they are tried again, which exceptions count, and what is kept of them."""

import asyncio
import datetime as dt
import math
import threading
from decimal import Decimal

import pytest

from proletarian_sa import Job, JobRegistry, ManualClock, RetryStrategy
from tests.claims import process_next_job
from tests.observing import PATIENCE, Recorder, add, change, clocked_tables
from tests.queue_contents import archived, queued

pytestmark = pytest.mark.usefixtures("claim")

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def raising(exception):
    """Return a handler that raises."""

    def handler(_job_type, _payload):
        raise exception

    return handler


def test_delays_follow_the_attempts_and_the_last_repeats(queue_engine):
    """`:retries`, `:delays`: five attempts for four retries, each due a delay after the failure; then archived with its error."""
    tables = clocked_tables(clock := ManualClock(START))
    strategy = RetryStrategy(retries=4, delays=[1, 5])
    add(queue_engine, tables=tables)
    delays = []
    for attempt in range(1, 6):
        outcome = process_next_job(queue_engine, raising(ValueError(f"failure {attempt}")), tables=tables, retry=strategy)
        assert attempt == outcome.attempts
        if outcome.retry_in is not None:
            (row,) = queued(queue_engine, tables)
            assert clock.now() + outcome.retry_in == row.process_at
            delays.append(outcome.retry_in.total_seconds())
            clock.tick(outcome.retry_in)

    (row,) = archived(queue_engine, tables)
    assert [1, 5, 5, 5] == delays
    assert ("failed", "failure", 5) == (outcome.status, row.status, row.attempts)
    assert "failure 5" in row.last_error
    assert "failure 4" not in row.last_error


def test_a_retry_is_not_due_before_its_time(queue_engine):
    """A microsecond before the delay is over the job is not taken."""
    tables = clocked_tables(clock := ManualClock(START))
    add(queue_engine, tables=tables)
    process_next_job(queue_engine, raising(ValueError), tables=tables, retry=RetryStrategy(retries=1, delays=[7.5]))
    clock.tick(dt.timedelta(seconds=7.5, microseconds=-1))

    assert process_next_job(queue_engine, raising(ValueError), tables=tables) is None
    clock.tick(dt.timedelta(microseconds=1))
    assert 2 == process_next_job(queue_engine, raising(ValueError), tables=tables).attempts


def test_the_delay_counts_from_the_failure(queue_engine):
    """A handler that takes an hour and fails is tried again a delay after it failed, not after it began."""
    tables = clocked_tables(clock := ManualClock(START))
    add(queue_engine, tables=tables)

    def slow(_job_type, _payload):
        clock.tick(3600)
        raise ValueError

    process_next_job(queue_engine, slow, tables=tables, retry=RetryStrategy(retries=1, delays=[60]))

    (row,) = queued(queue_engine, tables)
    assert START + dt.timedelta(seconds=3660) == row.process_at


def test_a_retry_without_delay_is_due_at_once(queue_engine):
    """Without delays the next attempt may follow immediately."""
    add(queue_engine)

    assert "retrying" == process_next_job(queue_engine, raising(ValueError), retry=RetryStrategy(retries=1)).status
    assert "failed" == process_next_job(queue_engine, raising(ValueError), retry=RetryStrategy(retries=1)).status


def test_the_last_error_is_kept_when_a_later_attempt_succeeds(queue_engine):
    """The archive shows what went wrong before it went well."""
    add(queue_engine)
    process_next_job(queue_engine, raising(ValueError("at first")), retry=RetryStrategy(retries=1))

    process_next_job(queue_engine, lambda *_: None)

    (row,) = archived(queue_engine)
    assert ("success", 2) == (row.status, row.attempts)
    assert "ValueError: at first" in row.last_error


def test_the_handlers_strategy_takes_precedence(queue_engine):
    """A job type's own strategy stands above the worker's, also when it allows no retry."""
    jobs = JobRegistry()
    jobs.handler("own", retry=RetryStrategy())(lambda payload: 1 / 0)
    jobs.handler("none")(lambda payload: 1 / 0)
    add(queue_engine, "own")
    add(queue_engine, "none")
    worker = RetryStrategy(retries=3, delays=[60])

    assert "failed" == process_next_job(queue_engine, jobs, retry=worker).status
    assert "retrying" == process_next_job(queue_engine, jobs, retry=worker).status


def test_a_retry_function_is_given_the_job_and_its_exception(queue_engine):
    """`:retry-strategy-fn`: a strategy may be chosen by what went wrong."""
    given = []
    job_id = add(queue_engine, payload=[1])
    failure = ValueError("x")

    def choose(job, exception):
        given.append((job.job_id, job.payload, job.attempts, exception))
        return RetryStrategy(retries=1, delays=[60])

    outcome = process_next_job(queue_engine, raising(failure), retry=choose)

    assert dt.timedelta(minutes=1) == outcome.retry_in
    assert [(job_id, [1], 1, failure)] == given


class Unprintable:
    """Has no repr to show."""

    def __repr__(self):
        raise RuntimeError("no repr")


def choose_and_raise(_job, _exception):
    """Have a bug."""
    raise KeyError("bug in the strategy")


def choose_and_exit(_job, _exception):
    """End the program."""
    raise SystemExit(1)


NONSENSE = {
    "raises": choose_and_raise,
    "exits": choose_and_exit,
    "number": lambda job, exception: 3,
    "true": lambda job, exception: True,
    "unprintable": lambda job, exception: Unprintable(),
    "infinite": lambda job, exception: RetryStrategy(retries=1, delays=[math.inf]),
    "nan": lambda job, exception: RetryStrategy(retries=1, delays=[math.nan]),
    "negative": lambda job, exception: RetryStrategy(retries=1, delays=[-1]),
    "huge": lambda job, exception: RetryStrategy(retries=1, delays=[10**18]),
    "decimal": lambda job, exception: RetryStrategy(retries=1, delays=[Decimal("NaN")]),
    "longest": lambda job, exception: RetryStrategy(retries=1, delays=[dt.timedelta.max]),
    "none": lambda job, exception: RetryStrategy(retries=None),
}


def test_a_retry_function_that_fails_means_no_retry(queue_engine):
    """Absurd delays: a strategy that raises or is nonsense costs the retries, not the job, and is an event of its own."""
    for name, choose in NONSENSE.items():
        seen = Recorder()
        job_id = add(queue_engine)

        outcome = process_next_job(queue_engine, raising(ValueError(name)), retry=choose, on_event=seen)

        (row,) = [row for row in archived(queue_engine) if row.job_id == job_id]
        assert (name, "failed", "failure") == (name, outcome.status, row.status)
        assert f"ValueError: {name}" in row.last_error
        assert ["JobsClaimed", "JobStarted", "RetryStrategyFailed", "JobAttemptFailed", "JobFailed"] == seen.names()


def test_the_longest_delay_and_most_retries_are_carried_out(queue_engine):
    """Absurd delays: what a strategy accepts, every database can store."""
    change(queue_engine, add(queue_engine), attempts=999_998)

    outcome = process_next_job(
        queue_engine, raising(ValueError), retry=RetryStrategy(retries=10**6, delays=[dt.timedelta(days=366)])
    )

    (row,) = queued(queue_engine)
    assert ("retrying", 999_999) == (outcome.status, row.attempts)
    assert dt.timedelta(days=365) < row.process_at - row.enqueued_at < dt.timedelta(days=367)


class OwnBaseException(BaseException):
    """Derives from nothing that `except Exception` catches."""


def recurse(_job_type, _payload):
    """Call itself without end."""
    return recurse(_job_type, _payload)


EXCEPTIONS = {
    "SystemExit(0)": SystemExit(0),
    "SystemExit(3)": SystemExit(3),
    "GeneratorExit": GeneratorExit(),
    "MemoryError": MemoryError(),
    "CancelledError": asyncio.CancelledError(),
    "own": OwnBaseException("own"),
    "BaseExceptionGroup": BaseExceptionGroup("several", [SystemExit(1), ValueError("inner")]),
    "StopIteration": StopIteration(1),
}


def test_any_exception_is_a_failed_attempt(queue_engine):
    """BaseException (Error, Throwable): whatever a handler raises is a failed attempt, and never ends the program around it."""
    for name, exception in EXCEPTIONS.items():
        job_id = add(queue_engine)

        first = process_next_job(queue_engine, raising(exception), retry=RetryStrategy(retries=1))
        second = process_next_job(queue_engine, raising(exception), retry=RetryStrategy(retries=1))

        (row,) = [row for row in archived(queue_engine) if row.job_id == job_id]
        assert (name, "retrying", "failed") == (name, first.status, second.status)
        assert exception is second.exception
        assert ("failure", 2) == (row.status, row.attempts)
        assert type(exception).__name__ in row.last_error


def test_endless_recursion_is_a_failed_attempt(queue_engine):
    """BaseException: so is a handler that recurses until the interpreter stops it."""
    add(queue_engine)

    outcome = process_next_job(queue_engine, recurse)

    (row,) = archived(queue_engine)
    assert isinstance(outcome.exception, RecursionError)
    assert "RecursionError" in row.last_error


def test_ctrl_c_in_the_main_thread_travels_and_puts_the_job_back(queue_engine):
    """BaseException: a program that runs its jobs itself can be interrupted; the job is free at once, the attempt given back."""
    seen = Recorder()
    add(queue_engine)

    with pytest.raises(KeyboardInterrupt):
        process_next_job(queue_engine, raising(KeyboardInterrupt()), retry=RetryStrategy(retries=1), on_event=seen)

    (row,) = queued(queue_engine)
    assert (0, None, None) == (row.attempts, row.claimed_by, row.crashes)
    assert ["JobsClaimed", "JobStarted", "JobReleased"] == seen.names()
    assert "succeeded" == process_next_job(queue_engine, lambda *_: None).status


def test_ctrl_c_takes_back_what_the_handler_wrote(database, queue_engine):
    """BaseException: also when the handler holds the transaction of `job.session`, on a pool of one connection, without waiting."""
    engine = database.create_engine(pool_size=1, max_overflow=0, pool_timeout=1)
    add(engine, "work")

    def write(job):
        job.session.add(Job(job_type="child"))
        job.session.flush()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        process_next_job(engine, write, handler_mode="advanced")

    (row,) = queued(queue_engine)
    assert ("work", 0, None) == (row.job_type, row.attempts, row.claimed_by)


def test_keyboard_interrupt_in_another_thread_is_a_failed_attempt(queue_engine):
    """BaseException: nobody pressed Ctrl-C in a worker thread, so there it is an exception like any other."""
    add(queue_engine)
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(process_next_job(queue_engine, raising(KeyboardInterrupt()))))
    thread.start()
    thread.join(PATIENCE)

    (row,) = archived(queue_engine)
    assert ["failed"] == [outcome.status for outcome in outcomes]
    assert "KeyboardInterrupt" in row.last_error


def test_a_failure_is_recorded_once_between_two_tables(queue_engine):
    """Lost job, non-atomic hand-over: after every outcome a job is in one of the two tables, never in both, never in none."""
    ids = [add(queue_engine, payload=number) for number in range(6)]
    for number in range(6):
        strategy = RetryStrategy(retries=number % 2, delays=[60])
        process_next_job(queue_engine, raising(ValueError) if number < 4 else lambda *_: None, retry=strategy)

    waiting, done = ({row.job_id for row in rows} for rows in (queued(queue_engine), archived(queue_engine)))
    assert 2 == len(waiting)
    assert set(ids) == waiting | done
    assert set() == waiting & done
