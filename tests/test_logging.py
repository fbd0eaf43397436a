"""The logging sink: quiet at INFO, one ERROR record per failed attempt, no payloads."""

import datetime as dt
import logging

import pytest
import sqlalchemy as sa

from proletarian_sa import JobInterrupted, JobRegistry, RetryStrategy, default_tables, events, process_next_job
from proletarian_sa.health import Vigil
from proletarian_sa.log import log_event
from proletarian_sa.trouble import Trouble
from tests.observing import add, change, end_session, session_id

SECRET = "s3cr3t-payload"  # noqa: S105 - what must not be logged


def fail(_job_type, _payload):
    """Fail, with a message of its own."""
    raise ValueError("no good")


@pytest.fixture(autouse=True)
def at_info(caplog):
    """Log as an application does by default."""
    caplog.set_level(logging.INFO)


def test_success_is_quiet_at_info(queue_engine, caplog):
    """Jobs that succeed or are given back write nothing at INFO."""

    def interrupt(*_):
        raise JobInterrupted

    for handler in (lambda *_: None, interrupt):
        add(queue_engine, payload=SECRET)
        process_next_job(queue_engine, handler)
    process_next_job(queue_engine, fail, queue="empty")

    assert [] == caplog.records


@pytest.mark.parametrize("retries", [0, 1])
def test_a_failed_attempt_is_one_error_record(queue_engine, caplog, retries):
    """Exactly one record, of level ERROR, with the traceback, the job's id, its type and the attempt, and what comes next."""
    job_id = add(queue_engine, "resize", payload=SECRET)

    process_next_job(queue_engine, fail, retry=RetryStrategy(retries=retries, delays=[90]), worker_id="w")

    (record,) = caplog.records
    message = record.getMessage()
    assert ("proletarian_sa", "ERROR") == (record.name, record.levelname)
    assert f"[w] job {job_id} ('resize', queue 'default', attempt 1) failed and " in message
    assert ["is archived as failure", "is tried again in 0:01:30 (0 retries left after that)"][retries] in message
    assert message.endswith("ValueError: no good")
    assert ValueError is record.exc_info[0]
    assert "Traceback" in caplog.text
    assert job_id == record.proletarian_event.job_id
    assert SECRET not in caplog.text


def test_each_attempt_has_its_record(queue_engine, caplog):
    """Three attempts are three records, numbered."""
    add(queue_engine)
    for _ in range(3):
        process_next_job(queue_engine, fail, retry=RetryStrategy(retries=2))

    assert [1, 2, 3] == [record.proletarian_event.attempt for record in caplog.records]
    assert {"ERROR"} == {record.levelname for record in caplog.records}


def test_payloads_are_not_logged(queue_engine, caplog):
    """Cause hidden: nothing that a worker logs at INFO holds the payload, not even of a job that it cannot decode or run."""
    change(queue_engine, add(queue_engine, payload=SECRET), payload='{"$unknown": "' + SECRET)
    add(queue_engine, "unknown type", payload=SECRET)
    jobs = JobRegistry()
    for _ in range(2):
        process_next_job(queue_engine, jobs)

    first, second = (record.getMessage() for record in caplog.records)
    assert ["WARNING", "WARNING"] == [record.levelname for record in caplog.records]
    assert SECRET not in caplog.text
    assert "PayloadError: what is wrong with it stands in the job's last_error" in first
    assert "UnknownJobType: There is no handler for the job type 'unknown type'" in second


def test_the_payload_of_a_job_given_up_is_not_logged_either(queue_engine, caplog):
    """Cause hidden: nor when the job that nobody could decode is archived, which is one ERROR record."""
    job_id = add(queue_engine)
    note = "Put back 9 times since 2020-01-01T00:00:00+00:00: PayloadError"
    change(queue_engine, job_id, payload='{"$unknown": "' + SECRET, last_error=note)

    assert "failed" == process_next_job(queue_engine, fail).status
    (record,) = caplog.records
    assert "ERROR" == record.levelname
    assert f"job {job_id}" in record.getMessage()
    assert SECRET not in caplog.text


def test_a_database_error_is_told_without_its_statement_in_the_message(queue_engine, caplog):
    """Cause hidden: the message has the driver's error; statement and traceback are in the traceback, once."""
    add(queue_engine)

    process_next_job(queue_engine, lambda job: job.session.execute(sa.text("SELECT * FROM no_such_table")), handler_mode="advanced")

    (record,) = caplog.records
    assert "no_such_table" in record.getMessage()
    assert "[SQL: " not in record.getMessage()
    assert "[SQL: SELECT * FROM no_such_table]" in caplog.text


def test_a_killed_connection_is_told_with_its_cause(database, queue_engine, caplog):
    """Cause hidden: a transaction that the database ended is one WARNING with the driver's message."""
    database.require("server")
    add(queue_engine)

    def handler(job):
        end_session(queue_engine, session_id(job.session.connection()))
        job.session.execute(sa.text("SELECT 1"))

    process_next_job(queue_engine, handler, handler_mode="advanced")

    (record,) = [record for record in caplog.records if record.name == "proletarian_sa"]
    assert "WARNING" == record.levelname
    assert "the database ended the transaction of job.session; the job runs again: " in record.getMessage()
    assert str(record.exc_info[1].orig)[:40] in record.getMessage()


def test_a_pool_that_has_no_connection_is_told_as_that(database, queue_engine, caplog):
    """Cause hidden: a `job.session` that got no connection is one WARNING that blames the pool, without a traceback."""
    engine = database.create_engine(pool_size=1, max_overflow=0, pool_timeout=0.01)
    add(queue_engine)

    def handler(job):
        with engine.connect():
            job.session.execute(sa.text("SELECT 1"))

    assert "retrying" == process_next_job(engine, handler, handler_mode="advanced").status

    (record,) = [record for record in caplog.records if record.name == "proletarian_sa"]
    assert "WARNING" == record.levelname
    assert "job.session got no connection from the pool; the job runs again: TimeoutError: QueuePool limit" in record.getMessage()
    assert record.exc_info is None


def test_waiting_for_a_pool_has_no_traceback(caplog):
    """Log flood: a claim that got no connection from the pool is one line, each time that it begins."""
    error = sa.exc.TimeoutError("QueuePool limit of size 1 overflow 0 reached")
    log_event(
        events.TransientErrorMet(
            worker_id="w", activity="claiming jobs", exception=error, retry_in=dt.timedelta(seconds=0.1), consecutive=1
        )
    )

    (record,) = caplog.records
    assert "claiming jobs: TimeoutError: QueuePool limit" in record.getMessage()
    assert record.exc_info is None


def test_another_reason_is_told_too(caplog):
    """Cause hidden: after a lost connection the log says why there is no other, with a traceback, once; the rest is DEBUG."""
    reasons = ["lost", "lost", "too many connections", "lost", "too many connections", "starting up"]
    with caplog.at_level(logging.DEBUG, "proletarian_sa"):
        trouble = Trouble(log_event, "w", "claiming jobs", Vigil())
        for reason in reasons:
            trouble.met(OSError(reason), lambda _failures: dt.timedelta(seconds=0.1))
        trouble.over()
    levels = [record.levelname for record in caplog.records]

    assert ["WARNING", "DEBUG", "WARNING", "DEBUG", "DEBUG", "DEBUG", "INFO"] == levels
    assert ["WARNING"] * 2 == [record.levelname for record in caplog.records if record.exc_info is not None]


def test_a_lost_job_is_a_warning(queue_engine, caplog):
    """A finish that is refused is told."""
    job_id = add(queue_engine)

    def handler(*_):
        with queue_engine.begin() as connection:
            connection.execute(sa.delete(default_tables.job))

    process_next_job(queue_engine, handler)

    (record,) = caplog.records
    assert "WARNING" == record.levelname
    assert f"job {job_id}" in record.getMessage()
    assert "no longer belongs to this worker" in record.getMessage()


class Unshowable(Exception):  # noqa: N818 - see its text
    """Has a text that nobody can see."""

    def __str__(self):
        raise SystemExit(3)


def test_an_exception_without_a_text_is_logged(queue_engine, caplog):
    """A message that cannot be shown costs neither the record nor the job."""

    def handler(*_):
        raise Unshowable

    add(queue_engine)

    assert "failed" == process_next_job(queue_engine, handler).status
    (record,) = caplog.records
    assert "Unshowable: (its message cannot be shown: SystemExit)" in record.getMessage()


def test_a_long_message_is_shortened(queue_engine, caplog):
    """The log line of an exception of 10 MB has a few hundred characters."""

    def handler(*_):
        raise ValueError("x" * 10_000_000)

    add(queue_engine)
    process_next_job(queue_engine, handler)

    (record,) = caplog.records
    assert len(record.getMessage()) < 1000
