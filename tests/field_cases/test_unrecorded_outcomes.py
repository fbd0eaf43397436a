"""Faults between the end of a handler and the record of its outcome: the job is in one table, and its effects come once."""

import logging
import uuid

import pytest
import sqlalchemy as sa

from proletarian_sa import RetryStrategy, default_tables, events, process_next_job
from proletarian_sa.log import log_event
from tests.field_cases.refusals import COMMIT, DELETE, INJECTED, INSERT, Refusal, transient_errors
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add, change, lapse
from tests.queue_contents import User, archived, queued

pytestmark = pytest.mark.long

MOST_STATEMENTS = 60
POINTS = {"archive insert": INSERT, "delete": DELETE, "commit": COMMIT}


def effects(engine: sa.Engine) -> list[int]:
    """Return which jobs have left their mark, each as often as it did."""
    with engine.connect() as connection:
        return sorted(connection.scalars(sa.select(User.id)))


def logging_recorder():
    """Return a recorder, and a sink that logs as usual and records."""
    seen = Recorder()
    return seen, lambda event: (log_event(event), seen(event))


def hasten(engine: sa.Engine, job_id: uuid.UUID) -> None:
    """Make a job due that waits for its next attempt; nothing if it is not queued."""
    job = default_tables.job
    with engine.begin() as connection:
        connection.execute(sa.update(job).where(job.c.job_id == job_id).values(process_at=job.c.enqueued_at))


@pytest.mark.parametrize("uses_session", [False, True], ids=["own transaction", "job.session"])
def test_recording_fails_once_for_a_passing_reason(database, app_engine, work, caplog, uses_session):
    """Job done but not recorded: archive insert, delete or COMMIT fail once each, by deadlock, serialization, time-out, connection.

    The recording is tried again, or the job runs again; the log says so with the driver's error, and the worker goes on.
    """
    engine = database.create_engine()
    refusal = Refusal(engine, killer=app_engine)
    faults = [(point, error) for point in POINTS for error in transient_errors(engine)]
    if uses_session:  # a COMMIT that waited in vain for a lock is the verdict of a deferred constraint or trigger: a failed attempt
        faults.remove(("commit", "time-out"))
    seen, sink = logging_recorder()

    def handler(job):
        if uses_session:
            job.session.add(User(id=job.payload, name="effect"))

    worker, _ = work(handler, engine, on_event=sink)
    worker.start()
    for number, (point, error) in enumerate(faults, 1):
        refusal.arm(error, POINTS[point])
        job_id = add(app_engine, payload=number)
        assert refusal.struck.wait(PATIENCE), (point, error)
        wait_until(lambda job_id=job_id: seen.of(events.JobSucceeded, job_id=job_id) or seen.of(events.JobRetried, job_id=job_id))
        hasten(app_engine, job_id)
        seen.wait_for(events.JobSucceeded, job_id=job_id)
    seen.wait_for(events.JobSucceeded, job_id=add(app_engine, payload=len(faults) + 1))
    everybody = list(range(1, len(faults) + 2))

    assert worker.is_running
    assert [] == queued(app_engine)
    assert everybody == sorted(int(row.payload) for row in archived(app_engine) if row.status == "success")
    assert (everybody if uses_session else []) == effects(app_engine)
    assert [] == seen.of(events.JobAttemptFailed) + seen.of(events.OutcomeNotRecorded) + seen.of(events.JobLeaseLost)
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    words = "the database ended the transaction of job.session; the job runs again" if uses_session else "recording outcomes: "
    assert len(faults) == len(told)
    assert all(words in message for message in told), told
    closed = len([error for _, error in faults if error == "connection closed"])
    assert len(faults) - closed == len([message for message in told if INJECTED in message]), told


def test_recording_fails_once_for_a_lasting_reason(database, queue_engine, work, caplog):
    """Job done but not recorded, an error that waiting does not mend: said plainly, the job runs again after its lease."""
    engine = database.create_engine()
    refusal = Refusal(engine, killer=queue_engine)
    seen, sink = logging_recorder()
    worker, _ = work(lambda _job: None, engine, on_event=sink)
    worker.start()
    refused = []
    for point in POINTS.values():
        refusal.arm("permanent", point)
        job_id = add(queue_engine)
        seen.wait_for(events.OutcomeNotRecorded, job_id=job_id)
        (left,) = queued(queue_engine)
        assert left.claimed_by is not None
        seen.wait_for(events.JobSucceeded, job_id=add(queue_engine))
        lapse(queue_engine, job_id)
        seen.wait_for(events.JobSucceeded, job_id=job_id)
        refused.append(job_id)

    assert sorted(refused) == sorted(row.job_id for row in archived(queue_engine) if row.crashes == 1)
    assert 2 * len(refused) == len(archived(queue_engine))
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(refused) == len(told)
    for job_id, message in zip(refused, told, strict=True):
        assert f"job {job_id}" in message
        assert "handler finished, outcome not recorded; it runs again" in message
        assert INJECTED in message
    assert worker.is_running


def succeed(_job):
    """Do nothing, well."""


def write(job):
    """Leave a mark in the job's own transaction."""
    job.session.add(User(id=job.payload, name="effect"))


def fail(_job):
    """Fail."""
    raise LookupError("the reason")


def fail_after_writing(job):
    """Leave a mark that is to be taken back."""
    write(job)
    job.session.flush()
    raise LookupError("the reason")


KINDS = {
    "archive success": (succeed, None, "success", "deadlock"),
    "archive success with effects": (write, None, "success", "deadlock"),
    "archive failure": (fail, None, "failure", "time-out"),
    "retry": (fail, RetryStrategy(retries=1), "failure", "time-out"),
    "retry with effects": (fail_after_writing, RetryStrategy(retries=1), "failure", "deadlock"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_statement_fails_anywhere(database, app_engine, kind):
    """Lost job, non-atomic hand-over: a fault before each statement and COMMIT of retry and archiving, by the driver's own errors.

    After each fault the job is in exactly one of the two tables, and ends with its effects there once.
    """
    handler, retry, status, error = KINDS[kind]
    engine = database.create_engine()
    refusal = Refusal(engine, killer=app_engine)
    options = {"handler_mode": "advanced", "retry": retry, "on_event": Recorder()}
    for number in range(1, MOST_STATEMENTS):
        job_id = add(app_engine, payload=number)
        refusal.arm(error, number=number)
        try:
            process_next_job(engine, handler, **options)
        except sa.exc.SQLAlchemyError:
            assert {0, 1} >= {row.attempts for row in queued(app_engine)}  # the claim, or what comes before it
        struck = refusal.disarm()

        assert (number, [job_id]) == (number, whereabouts(app_engine, job_id))
        for waiting in iter(lambda: queued(app_engine), []):
            change(app_engine, job_id, process_at=waiting[0].enqueued_at)
            if waiting[0].claimed_by is not None:
                lapse(app_engine, job_id)
            assert process_next_job(app_engine, handler, **options)
            assert (number, [job_id]) == (number, whereabouts(app_engine, job_id))
        (row,) = [row for row in archived(app_engine) if row.job_id == job_id]
        assert (number, status) == (number, row.status), row.last_error
        if not struck:
            break

    assert number > 4, "too few statements to be true"
    assert not struck
    assert (list(range(1, number + 1)) if handler is write else []) == effects(app_engine)


def whereabouts(engine: sa.Engine, job_id: uuid.UUID) -> list[uuid.UUID]:
    """Return the job's id once for each table that it is in."""
    return [row.job_id for row in [*queued(engine), *archived(engine)] if row.job_id == job_id]
