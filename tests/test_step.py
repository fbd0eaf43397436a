"""`process_next_job`: one step, its outcomes, and jobs that this worker cannot run."""

import datetime as dt
import uuid

import pytest
import sqlalchemy as sa

from proletarian_sa import (
    JobInterrupted,
    JobRegistry,
    JobTables,
    ManualClock,
    Outcome,
    PayloadError,
    RetryStrategy,
    UnknownJobType,
    default_tables,
    events,
)
from tests.claims import process_next_job
from tests.observing import Recorder, add, change, clocked_tables
from tests.queue_contents import archived, queued, run_due

pytestmark = [pytest.mark.usefixtures("claim"), pytest.mark.async_drivers]

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def succeed(_job_type, _payload):
    """Do nothing, well."""


def fail(_job_type, _payload):
    """Fail, with a message of its own."""
    raise ValueError("no good")


def interrupt(_job_type, _payload):
    """Give the job back."""
    raise JobInterrupted


def test_nothing_due_is_none(queue_engine):
    """`process-next-job!`: None, and no event, when the queue is empty or its jobs are due later."""
    seen = Recorder()
    add(queue_engine, process_in=3600)

    assert process_next_job(queue_engine, succeed, on_event=seen) is None
    assert [] == seen.events
    assert 1 == len(queued(queue_engine))


def test_a_run_that_succeeds(queue_engine):
    """`process-next-job!`: a job whose handler returns moves to the archive with all that it was, and the outcome says so."""
    given = []
    job_id = add(queue_engine, "greet", {"to": "you"})
    (before,) = queued(queue_engine)

    outcome = process_next_job(queue_engine, lambda job_type, payload: given.append((job_type, payload)), worker_id="me")

    (row,) = archived(queue_engine)
    assert Outcome(status="succeeded", job_id=job_id, job_type="greet", attempts=1) == outcome
    assert [("greet", {"to": "you"})] == given
    assert [] == queued(queue_engine)
    assert (job_id, "default", "greet", "success", 1) == (row.job_id, row.queue, row.job_type, row.status, row.attempts)
    assert (before.payload, before.enqueued_at, before.process_at) == (row.payload, row.enqueued_at, row.process_at)
    assert (None, None) == (row.last_error, row.crashes)
    assert row.claimed_by.startswith("me#")
    assert row.finished_at >= row.process_at


def test_a_run_that_fails_for_good(queue_engine):
    """Without a retry strategy a job whose handler raises is archived as failure, with the traceback."""
    job_id = add(queue_engine)

    outcome = process_next_job(queue_engine, fail)

    (row,) = archived(queue_engine)
    assert ("failed", job_id, 1, None) == (outcome.status, outcome.job_id, outcome.attempts, outcome.retry_in)
    assert "no good" == str(outcome.exception)
    assert ("failure", 1) == (row.status, row.attempts)
    assert row.last_error.startswith("Traceback (most recent call last)")
    assert "ValueError: no good" in row.last_error
    assert [] == queued(queue_engine)


def test_a_run_that_is_to_be_tried_again(queue_engine):
    """With retries left the job is back in the queue, free, due after the delay, its error noted."""
    add(queue_engine)

    outcome = process_next_job(queue_engine, fail, retry=RetryStrategy(retries=1, delays=[3600]))

    (row,) = queued(queue_engine)
    assert ("retrying", dt.timedelta(hours=1)) == (outcome.status, outcome.retry_in)
    assert (1, None, None) == (row.attempts, row.claimed_by, row.lease_until)
    assert "ValueError: no good" in row.last_error
    assert dt.timedelta(seconds=3590) < row.process_at - row.enqueued_at < dt.timedelta(seconds=3660)
    assert [] == archived(queue_engine)
    assert process_next_job(queue_engine, fail) is None


def test_an_interrupted_run_gives_its_attempt_back(queue_engine):
    """`JobInterrupted` puts the job back as if it had not been run, but due only after a second, so that it cannot spin."""
    tables = clocked_tables(clock := ManualClock(START))
    add(queue_engine, tables=tables)

    outcome = process_next_job(queue_engine, interrupt, tables=tables)

    (row,) = queued(queue_engine, tables)
    assert ("interrupted", 1) == (outcome.status, outcome.attempts)
    assert (0, None, None, None) == (row.attempts, row.claimed_by, row.lease_until, row.last_error)
    assert process_next_job(queue_engine, succeed, tables=tables) is None
    clock.tick(1)
    assert 1 == process_next_job(queue_engine, succeed, tables=tables).attempts


def test_every_outcome_is_truthy(queue_engine):
    """`process-next-job!`: `while process_next_job(…)` goes on after every outcome but "nothing due"."""
    for _ in range(4):
        add(queue_engine)

    assert process_next_job(queue_engine, succeed)
    assert process_next_job(queue_engine, fail)
    assert process_next_job(queue_engine, fail, retry=RetryStrategy(retries=1, delays=[60]))
    assert process_next_job(queue_engine, interrupt)


def test_a_queue_is_served_alone(queue_engine):
    """`:queue`: jobs of other queues are not touched, however alike their names are."""
    for queue in ("mail", "Mail", "mäil", "mail2"):
        add(queue_engine, queue=queue, payload=queue)

    (job,) = run_due(queue_engine, queue="mail")

    assert "mail" == job.payload
    assert ["Mail", "mail2", "mäil"] == sorted(row.queue for row in queued(queue_engine))
    assert {None} == {row.claimed_by for row in queued(queue_engine)}


def test_the_oldest_due_job_comes_first(queue_engine):
    """Starvation: order is by the time at which jobs are due, not by the time at which they were enqueued."""
    tables = clocked_tables(clock := ManualClock(START))
    for seconds in (30, 10, 20, 5000):
        add(queue_engine, payload=seconds, process_in=seconds, tables=tables)
    clock.tick(60)

    assert [10, 20, 30] == [job.payload for job in run_due(queue_engine, tables=tables)]


def test_a_job_has_the_facts_of_its_row(queue_engine):
    """`:handler-fn-mode`, advanced: handlers that take the job see its columns and the number of the attempt."""
    job_id = add(queue_engine, "look", [1], queue="q")
    (row,) = queued(queue_engine)

    (job,) = run_due(queue_engine, queue="q")

    assert (job_id, "q", "look", [1]) == (job.job_id, job.queue, job.job_type, job.payload)
    assert (1, 0) == (job.attempts, job.crashes)
    assert (row.enqueued_at, row.process_at) == (job.enqueued_at, job.process_at)
    assert not job.stopping
    assert not job.wait(0)


BROKEN = ['{"to": ', "", "{}x", '{"$no-such-tag": 1}', "[" * 100_000]  # cut off, empty, too long, an unknown tag, too deep


def test_a_payload_that_cannot_be_decoded_is_put_back(queue_engine):
    """Undecodable payload: the job waits for a worker that can read it; its handler is not called."""
    for text in BROKEN:
        seen = Recorder()
        job_id = add(queue_engine)
        change(queue_engine, job_id, payload=text)

        outcome = process_next_job(queue_engine, fail, retry=RetryStrategy(retries=9), on_event=seen)

        (row,) = [row for row in queued(queue_engine) if row.job_id == job_id]
        assert ("retrying", dt.timedelta(seconds=1)) == (outcome.status, outcome.retry_in)
        assert isinstance(outcome.exception, PayloadError)
        assert (text, 0, None) == (row.payload, row.attempts, row.claimed_by)
        assert row.last_error.startswith("Put back 1 times since ")
        assert "PayloadError" in row.last_error
        assert ["JobsClaimed", "JobUndeliverable"] == seen.names()
        change(queue_engine, job_id, queue="seen")


def test_an_unknown_job_type_is_put_back(queue_engine):
    """Lost job, cannot be restored: an old worker meets a job of the new version, and leaves it to a new worker."""
    old, new = JobRegistry(), JobRegistry()
    tables = clocked_tables(clock := ManualClock(START))
    new.handler("send-email")(lambda payload: None)
    add(queue_engine, "send-email", tables=tables)

    outcome = process_next_job(queue_engine, old, tables=tables)
    clock.tick(1)
    healed = process_next_job(queue_engine, new, tables=tables)

    assert "retrying" == outcome.status
    assert isinstance(outcome.exception, UnknownJobType)
    assert ("succeeded", 1) == (healed.status, healed.attempts)


@pytest.mark.parametrize("way", ["payload", "job type"])
def test_what_stays_undeliverable_is_archived_with_its_text(queue_engine, way):
    """Lost job, cannot be restored: the delay grows to a minute; after ten it is archived as failure, its text unchanged."""
    seen = Recorder()
    tables = clocked_tables(clock := ManualClock(START))
    text = '{"$broken": ' if way == "payload" else '"good"'
    change(queue_engine, add(queue_engine, "send-email", tables=tables), tables, payload=text)
    delays = []
    while (outcome := process_next_job(queue_engine, JobRegistry(), tables=tables, on_event=seen)).status == "retrying":
        delays.append(outcome.retry_in.total_seconds())
        clock.tick(outcome.retry_in - dt.timedelta(microseconds=1))
        assert process_next_job(queue_engine, JobRegistry(), tables=tables) is None
        clock.tick(dt.timedelta(microseconds=1))

    (row,) = archived(queue_engine, tables)
    assert [1, 2, 4, 8, 16, 32, *[60] * 9] == delays
    assert dt.timedelta(minutes=10) <= clock.now() - START < dt.timedelta(minutes=11)
    assert ("failed", "failure", text, 1) == (outcome.status, row.status, row.payload, row.attempts)
    assert {"payload": "PayloadError", "job type": "UnknownJobType"}[way] in row.last_error
    assert [] == queued(queue_engine, tables)
    assert 1 == len(seen.of(events.JobAttemptFailed, retry_in=None))
    assert "JobFailed" == seen.names()[-1]


def test_undeliverable_jobs_hold_up_nobody(queue_engine):
    """Undecodable payload: good jobs behind bad ones all run, and the bad ones are not taken again at once."""
    for number in range(20):
        job_id = add(queue_engine, payload=number)
        if number % 4 == 0:
            change(queue_engine, job_id, payload="{")
    ran = run_due(queue_engine)

    assert [number for number in range(20) if number % 4] == [job.payload for job in ran]
    assert 5 == len(queued(queue_engine))


@pytest.mark.parametrize("attempts", [2_000_000_000, 2**31 - 1])
def test_the_attempts_column_cannot_overflow(queue_engine, attempts):
    """Absurd delays: a job at the end of the integer column has a defined end and stops no worker."""
    change(queue_engine, add(queue_engine), attempts=attempts)

    outcome = process_next_job(queue_engine, fail, retry=RetryStrategy(retries=1_000_000))

    (row,) = archived(queue_engine)
    assert ("failed", "failure") == (outcome.status, row.status)
    assert min(attempts + 1, 2**31 - 1) == row.attempts == outcome.attempts


def test_the_crashes_column_cannot_overflow(queue_engine):
    """Absurd delays: likewise the number of lost runs."""
    change(queue_engine, add(queue_engine), claimed_by="dead", lease_until=LONG_AGO, crashes=2**31 - 1)

    assert "failed" == process_next_job(queue_engine, succeed).status


def test_ids_and_tables_of_ones_own(engine):
    """The step works on the tables it is given, and only on them."""
    tables = JobTables(schema=None, job_table="my_jobs", archived_job_table="my_old_jobs")
    tables.job.metadata.create_all(engine)
    job_id = add(engine, tables=tables)

    outcome = process_next_job(engine, succeed, tables=tables)

    assert job_id == outcome.job_id
    assert [job_id] == [row.job_id for row in archived(engine, tables)]


def test_an_archive_row_that_is_there_is_replaced(queue_engine):
    """An archive row of the same id costs no job: the newer outcome stands, and an event says so."""
    seen = Recorder()
    job_id = uuid.uuid4()
    columns = {
        "queue": "default",
        "job_type": "old",
        "payload": "1",
        "attempts": 7,
        "enqueued_at": LONG_AGO,
        "process_at": LONG_AGO,
    }
    with queue_engine.begin() as connection:
        old = {"job_id": job_id, "status": "failure", "finished_at": LONG_AGO, "last_error": "old", **columns}
        connection.execute(sa.insert(default_tables.archived_job).values(old))
        connection.execute(sa.insert(default_tables.job).values({"job_id": job_id, **columns, "job_type": "new", "attempts": 0}))

    outcome = process_next_job(queue_engine, succeed, on_event=seen)

    (row,) = archived(queue_engine)
    assert "succeeded" == outcome.status
    assert ("new", "success", 1, None) == (row.job_type, row.status, row.attempts, row.last_error)
    assert ["JobsClaimed", "JobStarted", "ArchiveRowReplaced", "JobSucceeded"] == seen.names()
    assert [] == queued(queue_engine)


@pytest.mark.leased
@pytest.mark.parametrize("handler", [succeed, fail, interrupt], ids=["success", "failure", "release"])
def test_a_row_that_vanished_is_an_event(queue_engine, handler):
    """Row changed from outside: a job that was deleted while it ran ends as lost, and nothing is archived."""
    seen = Recorder()
    job_id = add(queue_engine)

    def delete_and(job_type, payload):
        with queue_engine.begin() as connection:
            connection.execute(sa.delete(default_tables.job).where(default_tables.job.c.job_id == job_id))
        handler(job_type, payload)

    outcome = process_next_job(queue_engine, delete_and, on_event=seen)

    assert "lost" == outcome.status
    assert 1 == len(seen.of(events.JobLeaseLost, job_id=job_id, handler_finished=True))
    assert [] == queued(queue_engine) == archived(queue_engine)


@pytest.mark.leased
def test_a_due_time_changed_from_outside_is_kept(queue_engine):
    """Row changed from outside: a due time changed while the job runs changes nothing for this run, and reaches the archive."""
    job_id = add(queue_engine)

    process_next_job(queue_engine, lambda *_: change(queue_engine, job_id, process_at=START))

    (row,) = archived(queue_engine)
    assert ("success", START) == (row.status, row.process_at)


def test_options_are_checked_before_anything_is_claimed(queue_engine):
    """A wrong option is a plain error that says what to give, and no job is touched."""
    add(queue_engine)
    wrong = [
        ({"engine": queue_engine.connect}, TypeError, "A worker needs an Engine, not method"),
        ({"handler": 7}, TypeError, "A handler is a JobRegistry or a function of (job_type, payload), not 7"),
        ({"queue": ""}, ValueError, "queue must have 1 to 255 characters"),
        ({"lease": 0}, ValueError, "lease=0 is less than 0.05 seconds"),
        ({"lease": "1"}, TypeError, "lease='1' is of type str, not a duration"),
        ({"retry": 3}, TypeError, "retry must be a RetryStrategy or a function"),
        ({"handler_mode": "fast"}, ValueError, "handler_mode must be 'default' or 'advanced', not 'fast'"),
        ({"max_crashes": -1}, ValueError, "max_crashes must be an int of at least 0, not -1"),
        ({"max_crashes": True}, ValueError, "max_crashes must be an int of at least 0, not True"),
        ({"on_event": None}, TypeError, "on_event must be a function of one event, not None"),
        ({"session_factory": 1}, TypeError, "session_factory must be a function that returns a Session, not 1"),
        ({"worker_id": " "}, ValueError, "worker_id ' ' has white space at an end"),
    ]
    for options, error, message in wrong:
        arguments = {"engine": queue_engine, "handler": succeed, **options}
        with pytest.raises(error) as caught:
            process_next_job(arguments.pop("engine"), arguments.pop("handler"), **arguments)
        assert message in str(caught.value)

    (row,) = queued(queue_engine)
    assert (0, None) == (row.attempts, row.claimed_by)
