"""A retry strategy that reads the exception: the moment that a server has named is the moment of the next attempt."""

import datetime as dt
from email.utils import format_datetime, parsedate_to_datetime

import pytest

from proletarian_sa import JobRegistry, ManualClock, RetryStrategy, events, process_next_job
from tests.observing import Recorder, add, clocked_tables
from tests.queue_contents import archived, queued

START = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
MOMENT = dt.datetime(2030, 1, 1, 12, 34, 56, tzinfo=dt.UTC)


class TooManyRequests(Exception):  # noqa: N818 - named after the answer that it stands for
    """What a client raises at an answer with a Retry-After header: seconds, or an HTTP date."""

    def __init__(self, retry_after):
        super().__init__(f"429 Too Many Requests, Retry-After: {retry_after}")
        self.retry_after = retry_after


def as_the_server_says(clock):
    """Return a retry function that waits for as long as the server has asked for; other errors are not tried again."""

    def choose(job, exception):
        if not isinstance(exception, TooManyRequests):
            return None
        if exception.retry_after.isdigit():
            delay = float(exception.retry_after)
        else:
            delay = max(0.0, (parsedate_to_datetime(exception.retry_after) - clock.now()).total_seconds())
        return RetryStrategy(retries=3, delays=[delay])

    return choose


def registry(failure, **options):
    """Return handlers of which one fails so."""
    jobs = JobRegistry()

    @jobs.handler("call", **options)
    def call(_payload):
        raise failure

    return jobs


NAMED = {
    "seconds": str(int((MOMENT - START).total_seconds())),
    "HTTP date": format_datetime(MOMENT, usegmt=True),
    "HTTP date of an old server": MOMENT.strftime("%A, %d-%b-%y %H:%M:%S GMT"),
}


@pytest.mark.parametrize("whose", ["handler", "worker", "handler over worker"])
def test_the_next_attempt_is_at_the_servers_moment(queue_engine, whose):
    """Given in seconds or as a date, by the handler's strategy or the worker's: the job is due exactly then, not before."""
    for name, header in NAMED.items():
        clock = ManualClock(START)
        tables = clocked_tables(clock)
        choose = as_the_server_says(clock)
        jobs = registry(TooManyRequests(header), **({} if whose == "worker" else {"retry": choose}))
        workers = {"worker": choose, "handler": None, "handler over worker": RetryStrategy(retries=9, delays=[1])}[whose]
        job_id = add(queue_engine, "call", tables=tables)

        outcome = process_next_job(queue_engine, jobs, tables=tables, retry=workers)

        (row,) = [row for row in queued(queue_engine, tables) if row.job_id == job_id]
        assert (name, "retrying", MOMENT) == (name, outcome.status, row.process_at)
        clock.set(MOMENT - dt.timedelta(microseconds=1))
        assert None is process_next_job(queue_engine, jobs, tables=tables)
        clock.set(MOMENT)
        assert "succeeded" == process_next_job(queue_engine, lambda *_: None, tables=tables).status


def test_each_failure_is_read_anew(queue_engine):
    """A second answer may name another moment; the retries of the strategy that is returned then are what counts."""
    tables = clocked_tables(clock := ManualClock(START))
    choose = as_the_server_says(clock)
    add(queue_engine, "call", tables=tables)
    delays = []
    for header in ("60", "120", "0", "5"):
        outcome = process_next_job(queue_engine, registry(TooManyRequests(header)), tables=tables, retry=choose)
        delays.append(outcome.retry_in)
        clock.tick(outcome.retry_in or 0)

    assert [*(dt.timedelta(seconds=delay) for delay in (60, 120, 0)), None] == delays
    assert ["failure"] == [row.status for row in archived(queue_engine, tables)]


def test_other_exceptions_have_no_moment(queue_engine):
    """`:retry-strategy-fn`: it returns None for what it does not know: no retry, and that is no error of the strategy."""
    seen = Recorder()
    add(queue_engine, "call")

    outcome = process_next_job(
        queue_engine, registry(LookupError("no such user")), retry=as_the_server_says(ManualClock(START)), on_event=seen
    )

    assert "failed" == outcome.status
    assert [] == seen.of(events.RetryStrategyFailed)


def test_a_moment_that_has_passed_is_now(queue_engine):
    """A server whose clock is behind names a moment in the past: the job is due at once."""
    tables = clocked_tables(clock := ManualClock(START))
    jobs = registry(TooManyRequests(format_datetime(START - dt.timedelta(hours=1), usegmt=True)))
    add(queue_engine, "call", tables=tables)

    process_next_job(queue_engine, jobs, tables=tables, retry=as_the_server_says(clock))

    (row,) = queued(queue_engine, tables)
    assert START == row.process_at


UNREADABLE = ["soon", "-60", "1e400", "Mon, 99 Foo 2030 99:99:99 GMT", "99999999999999999999"]


def test_a_header_that_cannot_be_read_costs_the_retries_not_the_job(queue_engine):
    """A strategy that fails on what a server wrote means no retry: the job is archived with its own error, and told."""
    seen = Recorder()
    tables = clocked_tables(clock := ManualClock(START))
    for header in UNREADABLE:
        add(queue_engine, "call", tables=tables)
        jobs = registry(TooManyRequests(header))

        outcome = process_next_job(queue_engine, jobs, tables=tables, retry=as_the_server_says(clock), on_event=seen)

        assert (header, "failed") == (header, outcome.status)
    rows = archived(queue_engine, tables)
    assert ["failure"] * len(UNREADABLE) == [row.status for row in rows]
    assert all("TooManyRequests: 429 Too Many Requests" in row.last_error for row in rows)
    assert len(UNREADABLE) == len(seen.of(events.RetryStrategyFailed))
