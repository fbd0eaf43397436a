"""`@jobs.handler(…, timeout=…)`: a handler that takes too long is asked to stop, and its attempt fails when it returns."""

import datetime as dt

import pytest
import sqlalchemy as sa

from proletarian_sa import JobInterrupted, JobRegistry, JobTimeout, RetryStrategy, events
from tests.claims import process_next_job
from tests.observing import PATIENCE, Recorder, add
from tests.queue_contents import User, archived, queued

pytestmark = pytest.mark.usefixtures("claim")

SHORT = 0.05
LONG_ENOUGH = 1.0
"""For a handler that returns at once, on a busy machine too."""


def names(engine: sa.Engine) -> list[str]:
    """Return what handlers have written."""
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(User.name)))


def returns(job):
    """Return as if nothing were wrong."""
    assert job.wait(PATIENCE)


def raises(job):
    """Fail for a reason of its own."""
    assert job.wait(PATIENCE)
    raise LookupError("something else")


def gives_back(job):
    """Do what a handler does that a stopping worker asks."""
    assert job.wait(PATIENCE)
    raise JobInterrupted


@pytest.mark.parametrize("ending", [returns, raises, gives_back])
def test_the_attempt_fails(app_engine, ending):
    """Whatever the handler does when it is asked to stop, the attempt has failed, and what it wrote is gone."""
    jobs, seen = JobRegistry(), Recorder()

    @jobs.handler("slow", timeout=SHORT, retry=RetryStrategy(retries=1, delays=[0]))
    def slow(payload, job):
        job.session.add(User(name="slow"))
        job.session.flush()
        ending(job)

    job_id = add(app_engine, "slow")
    outcome = process_next_job(app_engine, jobs, on_event=seen)

    assert ("retrying", JobTimeout) == (outcome.status, type(outcome.exception))
    assert "The handler ran for longer than its timeout of 0.05 s." == str(outcome.exception)
    assert isinstance(outcome.exception, TimeoutError)
    assert {returns: type(None), raises: LookupError, gives_back: JobInterrupted}[ending] is type(outcome.exception.__cause__)
    assert [(job_id, SHORT)] == [(event.job_id, event.seconds) for event in seen.of(events.JobOverTime)]
    assert [1] == [row.attempts for row in queued(app_engine)]
    assert [] == names(app_engine)


def test_in_time(app_engine):
    """A handler that returns in time is not asked to stop, and its writes stay."""
    jobs, seen = JobRegistry(), Recorder()

    @jobs.handler("quick", timeout=dt.timedelta(minutes=1))
    def quick(payload, job):
        job.session.add(User(name="quick"))
        assert not job.wait(0.01)

    add(app_engine, "quick")

    assert "succeeded" == process_next_job(app_engine, jobs, on_event=seen).status
    assert ["quick"] == names(app_engine)
    assert [] == seen.of(events.JobOverTime)


def test_each_attempt_has_its_own_time(queue_engine):
    """A retry begins with the whole time, and not with the end of the one before."""
    jobs = JobRegistry()

    @jobs.handler("slow", timeout=LONG_ENOUGH, retry=RetryStrategy(retries=1, delays=[0]))
    def slow(payload, job):
        if job.attempts == 1:
            assert job.wait(PATIENCE)
        assert job.attempts == 1 or not job.stopping

    add(queue_engine, "slow")
    statuses = [process_next_job(queue_engine, jobs).status for _ in range(2)]

    assert ["retrying", "succeeded"] == statuses
    assert [("success", 2)] == [(row.status, row.attempts) for row in archived(queue_engine)]


def test_in_a_worker(queue_engine, work):
    """The worker goes on with other jobs, and archives the slow one as failure with the reason."""
    jobs = JobRegistry()
    jobs.handler("slow", timeout=SHORT)(lambda payload, job: job.wait(PATIENCE))
    jobs.handler("work")(lambda payload: None)
    slow, other = add(queue_engine, "slow"), add(queue_engine, "work")
    worker, seen = work(jobs, handler_mode="default")
    with worker:
        seen.wait_for(events.JobFailed)
        seen.wait_for(events.JobSucceeded)
    rows = {row.job_id: row for row in archived(queue_engine)}

    assert "success" == rows[other].status
    assert ("failure", "proletarian_sa.errors.JobTimeout") == (rows[slow].status, rows[slow].last_error.partition(":")[0])


@pytest.mark.parametrize(
    ("timeout", "message"),
    [
        (0, "timeout=0 is less than 0.001 seconds"),
        (-1, "timeout=-1 is less than 0.001 seconds"),
        (float("nan"), "timeout=nan is not finite"),
        (10**9, "timeout=1000000000 is more than 2592000 seconds"),
        ("30", "timeout='30' is of type str"),
        (True, "timeout=True is of type bool"),
    ],
)
@pytest.mark.parametrize("database_kind", ["sqlite"])
def test_no_time(database_kind, timeout, message):
    """What is no time at all, or no time for a handler, is refused at the registration."""
    with pytest.raises((TypeError, ValueError), match=message):
        JobRegistry().handler("slow", timeout=timeout)
