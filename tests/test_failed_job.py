"""`failed_job`: told once that a job has failed for good, in the transaction that archives it, and never in its way."""

import threading

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from proletarian_sa import (
    JobRegistry,
    PayloadError,
    QueueWorker,
    RetryStrategy,
    RunningJob,
    SessionNotYours,
    UnknownJobType,
    WorkerLost,
    default_tables,
    enqueue,
    events,
)
from tests.claims import chosen, process_next_job
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, add, change, claim, lapse
from tests.queue_contents import User, archived, left, queued
from tests.test_job_session_lost import Rival

pytestmark = pytest.mark.usefixtures("claim")


def fail(_job):
    """Be a handler that fails."""
    raise LookupError("gone")


def names(engine):
    """Return what was committed by callbacks."""
    with Session(engine) as session:
        return sorted(session.scalars(sa.select(User.name).where(User.name.not_like("rival%"))))


def run(engine, callback, handler=fail, **options):
    """Enqueue a job, run it, and return its outcome and events."""
    seen = Recorder()
    add(engine, payload={"to": "somebody"})
    defaults = {"handler_mode": "advanced", "on_event": seen, "failed_job": callback}
    return process_next_job(engine, handler, **{**defaults, **options}), seen


def assert_archived_all_the_same(engine, seen, exception, written=()):
    """Assert that the job is archived as failure once, with that error of its callback told, and nothing but `written` remains."""
    assert ([], [("failure", 1)]) == left(engine)
    assert list(written) == names(engine)
    (told,) = seen.of(events.FailedJobCallbackFailed)
    assert isinstance(told.exception, exception)
    assert 1 == len(seen.of(events.JobFailed))
    assert 0 == engine.pool.checkedout()


def test_called_once_with_the_job_and_what_it_failed_of(app_engine):
    """`:failed-job-fn`: called once, after the last attempt, when the job is in the archive already, seen from inside."""
    calls = []

    def callback(job, exception):
        row = job.session.execute(sa.text(f"SELECT status FROM {archive(app_engine)}")).one()
        calls.append((job, exception, row.status))
        job.session.add(User(id=1, name="told"))

    retry = RetryStrategy(retries=1)
    outcome, _ = run(app_engine, callback, retry=retry)
    assert ("retrying", []) == (outcome.status, calls)
    (before,) = queued(app_engine)
    outcome = process_next_job(app_engine, fail, handler_mode="advanced", retry=retry, failed_job=callback)

    ((job, exception, status),) = calls
    assert ("failed", "failure") == (outcome.status, status)
    assert isinstance(job, RunningJob)
    assert (before.job_id, "work", {"to": "somebody"}, 2) == (job.job_id, job.job_type, job.payload, job.attempts)
    assert isinstance(exception, LookupError)
    assert ["told"] == names(app_engine)
    assert ([], [("failure", 2)]) == left(app_engine)


def archive(engine):
    """Return the archive's name as SQL text spells it."""
    return "proletarian.archived_job" if engine.dialect.name == "postgresql" else "archived_job"


def test_not_called_for_anything_else(app_engine):
    """Neither a success nor an interruption nor a retry calls `failed_job`."""
    calls = []
    for handler, retry in ((lambda _job: None, None), (fail, RetryStrategy(retries=1, delays=[60]))):
        run(app_engine, lambda *arguments: calls.append(arguments), handler, retry=retry)

    assert [] == calls


def test_what_it_writes_is_committed_with_the_archive(app_engine):
    """Both are visible at the same moment: rows, and jobs that it enqueues."""
    add(app_engine)
    during = []

    def callback(job, _exception):
        enqueue(job.session, "apologise", {"for": str(job.job_id)})
        job.session.add(User(id=1, name="told"))
        job.session.flush()
        if app_engine.dialect.name != "sqlite":
            during.append((names(app_engine), len(archived(app_engine)), len(queued(app_engine))))

    process_next_job(app_engine, fail, handler_mode="advanced", failed_job=callback)

    assert all(seen == ([], 0, 1) for seen in during)
    assert (["told"], ["failure"]) == (names(app_engine), [row.status for row in archived(app_engine)])
    assert ["apologise"] == [row.job_type for row in queued(app_engine)]


def just_raises(_job, _exception):
    """Raise without having written."""
    raise LookupError


def raises_what_is_no_exception(_job, _exception):
    """Raise a BaseException."""
    raise SystemExit


def raises_after_writes(job, _exception):
    """Write, flush, and raise."""
    job.session.add(User(id=1, name="half"))
    job.session.flush()
    raise LookupError


def is_refused(job, _exception):
    """Write what the database refuses when it is flushed at the end."""
    job.session.add_all([User(id=1, name="half"), User(id=2, name=None)])


def commits(job, _exception):
    """Try to end the transaction."""
    job.session.add(User(id=1, name="half"))
    job.session.commit()


def ends_it_by_force(job, _exception):
    """End the transaction behind the session's back."""
    job.session.add(User(id=1, name="half"))
    job.session.flush()
    job.session.connection().connection.dbapi_connection.rollback()
    raise LookupError


async def _body():
    """Never run."""


CALLBACKS = {
    lambda _job, _exception: _body(): TypeError,  # work that nobody would do
    just_raises: LookupError,
    raises_what_is_no_exception: SystemExit,
    raises_after_writes: LookupError,
    is_refused: exc.DBAPIError,
    commits: SessionNotYours,
    ends_it_by_force: Exception,
}


def test_a_callback_that_fails(app_engine):
    """`:failed-job-fn` that throws: the job is archived as failure once, what it wrote is undone, and an event tells."""
    for callback, exception in CALLBACKS.items():
        outcome, seen = run(app_engine, callback)

        assert (callback, "failed") == (callback, outcome.status)
        assert_archived_all_the_same(app_engine, seen, exception)
        assert "JobFailed" == seen.names()[-2]
        with app_engine.begin() as connection:
            connection.execute(sa.delete(default_tables.archived_job))


def test_an_integrity_error_that_it_swallows(app_engine):
    """A refused statement that the callback swallows: PostgreSQL spoils its savepoint and an event tells; else it goes on."""

    def callback(job, _exception):
        job.session.execute(sa.insert(User).values(id=1, name="told"))
        with pytest.raises(exc.IntegrityError):
            job.session.execute(sa.insert(User).values(id=1, name="twice"))

    outcome, seen = run(app_engine, callback)

    assert "failed" == outcome.status
    if seen.of(events.FailedJobCallbackFailed):
        assert_archived_all_the_same(app_engine, seen, exc.DBAPIError)
    else:
        assert (["told"], ([], [("failure", 1)])) == (names(app_engine), left(app_engine))


def test_a_deadlock_in_it(database, app_engine):
    """A deadlock that costs the transaction: the job is archived once, in another one if need be, and the error told."""
    database.require("row_locks")
    rival = Rival(app_engine)
    calls = []

    def callback(job, _exception):
        calls.append(job)
        job.session.execute(sa.insert(User).values(id=3, name="before"))
        rival.collide(job.session)

    outcome, seen = run(app_engine, callback)
    rival.thread.join(PATIENCE)

    assert ("failed", 1) == (outcome.status, len(calls))
    assert_archived_all_the_same(app_engine, seen, exc.DBAPIError)


def test_undecodable_payloads_unknown_types_and_crashes(app_engine):
    """It is called for jobs that never ran too: a payload that cannot be read is None, and the exception says why."""
    calls = {}

    def callback(job, exception):
        calls[job.job_type] = (job.payload, type(exception))

    note = "Put back 20 times since 2020-01-01T00:00:00+00:00: "
    change(app_engine, add(app_engine, "undecodable"), payload="{", last_error=note)
    change(app_engine, add(app_engine, "unknown", 7), last_error=note)
    crashed = add(app_engine, "crashed", 7)
    change(app_engine, crashed, claimed_by="dead", crashes=5, attempts=1)
    seen = Recorder()
    outcomes = [process_next_job(app_engine, JobRegistry(), failed_job=callback, on_event=seen).status for _ in range(3)]

    assert ["failed"] * 3 == outcomes
    assert {"undecodable": (None, PayloadError), "unknown": (7, UnknownJobType), "crashed": (None, WorkerLost)} == calls
    assert [] == seen.of(events.FailedJobCallbackFailed)


def test_a_lost_job_calls_nobody(database, app_engine):
    """A run whose job belongs to somebody else now is not told of: the other one will, if it fails."""
    database.require("row_locks")
    if chosen() == "held":
        pytest.skip("no lease")
    calls = []

    def handler(job):
        lapse(app_engine, job.job_id)
        claim(app_engine, "thief")
        raise LookupError

    outcome, _ = run(app_engine, lambda *arguments: calls.append(arguments), handler)

    assert ("lost", []) == (outcome.status, calls)


def test_a_slow_callback_delays_nobody(app_engine, work):
    """While it takes its time, the outcomes of other jobs are recorded."""
    begun, go = threading.Event(), threading.Event()

    def callback(_job, _exception):
        begun.set()
        assert go.wait(PATIENCE)

    def handler(job):
        if job.job_type == "bad":
            raise LookupError

    if app_engine.dialect.name == "sqlite":
        pytest.skip("no row locks")
    worker, seen = work(handler, app_engine, worker_threads=2, failed_job=callback)
    add(app_engine, "bad")
    worker.start()
    assert begun.wait(PATIENCE)
    good = {add(app_engine, "good") for _ in range(5)}
    wait_until(lambda: good == {row.job_id for row in archived(app_engine)}, PATIENCE)
    go.set()
    seen.wait_for(events.JobFailed)

    assert 6 == len(archived(app_engine))


def test_a_stop_during_the_callback(app_engine, work):
    """A stop waits for it: the failure and what it wrote are there when the worker has stopped."""
    begun, go = threading.Event(), threading.Event()

    def callback(job, _exception):
        begun.set()
        assert go.wait(PATIENCE)
        job.session.add(User(id=1, name="told"))

    worker, _ = work(fail, app_engine, failed_job=callback)
    add(app_engine)
    worker.start()
    assert begun.wait(PATIENCE)
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    wait_until(worker._stop_asked.is_set, PATIENCE)
    go.set()
    stopper.join(PATIENCE)

    assert not worker.is_running
    assert (["told"], ([], [("failure", 1)])) == (names(app_engine), left(app_engine))


def test_a_pool_of_one(database, app_engine, work):
    """It needs no connection beside the one that archives."""
    engine = database.create_engine(pool_size=1, max_overflow=0, pool_timeout=PATIENCE)
    worker, seen = work(fail, engine, failed_job=lambda job, _exception: job.session.add(User(id=job.payload, name="told")))
    for number in (1, 2, 3):
        add(app_engine, payload=number)
    worker.start()
    seen.wait_for(events.JobFailed, count=3)
    worker.stop()

    assert ["told"] * 3 == names(app_engine)
    assert [] == seen.of(events.FailedJobCallbackFailed)


def test_the_worker_goes_on_after_callbacks_that_fail(app_engine, work):
    """Failed-job callback raises: however often, the worker does the next job."""
    gate = Gate()
    gate.open.set()
    worker, seen = work(lambda job: fail(job) if job.payload else gate(job), app_engine, failed_job=raises_after_writes)
    for payload in (1, 1, 1, None):
        add(app_engine, payload=payload)
    worker.start()
    seen.wait_for(events.JobSucceeded)

    assert 3 == len(seen.of(events.FailedJobCallbackFailed))
    assert worker.is_running
    assert [] == names(app_engine)


@pytest.mark.parametrize("option", ["failed_job", "on_polling_error", "on_shutdown"])
def test_functions_that_would_never_run_are_refused(option):
    """An `async def` or a generator is refused when the worker is made, as for handlers."""

    async def later(_job, _exception):
        raise AssertionError

    def lazy(_job, _exception):
        yield

    for callback in (later, lazy):
        with pytest.raises(TypeError, match=rf"{option} .* would call it and never run its body"):
            QueueWorker(sa.create_engine("sqlite://"), fail, handler_mode="advanced", **{option: callback})
