"""What a worker with held claims sends for each job, by the driver's cursor where nobody looks: the same as SQLAlchemy would."""

import datetime as dt
import logging
import threading
import uuid

import pytest
import sqlalchemy as sa

from proletarian_sa import enqueue, events
from proletarian_sa.dialects import hot
from tests.helpers import wait_until
from tests.observing import PATIENCE, add, backends, end_session, transactions
from tests.plans import Captured
from tests.queue_contents import archived, queued
from tests.test_held_lost import holder


@pytest.fixture
def row_locks(database):
    """Skip where claims cannot be held."""
    database.require("row_locks")


@pytest.fixture
def sent(monkeypatch):
    """Return what is sent behind SQLAlchemy's back: its first words."""
    texts = []
    again = hot._Sent.again

    def noted(self, connection, values):
        texts.append(self._text.split()[0])
        return again(self, connection, values)

    monkeypatch.setattr(hot._Sent, "again", noted)
    return texts


def run_some(queue_engine, work, handler=lambda _job: None, count=4, **options):
    """Run jobs by a worker, and return its events."""
    ids = [add(queue_engine, payload={"n": n}) for n in range(count)]
    worker, seen = work(handler, queue_engine, claim="held", polling_interval=0.02, **options)
    with worker:
        seen.wait_for(events.JobSucceeded, count=count)
        wait_until(lambda: not queued(queue_engine), PATIENCE)
    return ids, seen


def test_the_third_job_is_as_the_first(database, queue_engine, work):
    """What the handler is given and what the archive says is the same, whoever has sent the statements."""
    database.require("row_locks")
    jobs = []
    ids, _ = run_some(queue_engine, work, jobs.append)

    rows = archived(queue_engine)
    assert ids == [job.job_id for job in jobs] == [row.job_id for row in rows]
    assert [{"n": n} for n in range(4)] == [job.payload for job in jobs]
    assert {uuid.UUID} == {type(job.job_id) for job in jobs}
    assert {dt.UTC} == {moment.tzinfo for job in jobs for moment in (job.enqueued_at, job.process_at)}
    assert [(job.enqueued_at, job.process_at, "success", 1) for job in jobs] == [
        (row.enqueued_at, row.process_at, row.status, row.attempts) for row in rows
    ]


def test_a_job_is_two_statements_and_a_commit(database, queue_engine, work, sent):
    """From the second job on a connection on, no statement of a job is SQLAlchemy's to send, where the dialect knows how."""
    database.require("row_locks")
    held = "postgresql" in database.kind
    run_some(queue_engine, work)

    assert (3 if held else 0) == sent.count("WITH")
    assert (3 if held else 0) <= sent.count("SELECT")


@pytest.mark.usefixtures("row_locks")
@pytest.mark.parametrize("how", ["before_cursor_execute", "after_cursor_execute", "before_execute", "after_execute", "echo"])
def test_who_looks_sees_every_statement(queue_engine, work, sent, how, caplog):
    """With a listener, or a log, everything that is sent goes SQLAlchemy's way."""
    finishes = []
    if how == "echo":
        caplog.set_level(logging.INFO, "sqlalchemy.engine.Engine")
    else:

        def look(_connection, first, second, *_others):
            if isinstance(first, sa.Insert) or "INSERT INTO" in str(second):
                finishes.append(first)

        sa.event.listen(queue_engine, how, look)
    run_some(queue_engine, work)
    if how == "echo":
        finishes = [
            record for record in caplog.records if "INSERT INTO" in record.getMessage() and "archived" in record.getMessage()
        ]

    assert [] == sent
    assert 4 <= len(finishes)


def test_a_listener_that_comes_later(database, queue_engine, work):
    """Who begins to listen while a worker runs sees what it sends for the next job but one, at the latest."""
    database.require("row_locks")
    captured = []
    worker, seen = work(lambda _job: None, queue_engine, claim="held", polling_interval=0.02)
    with worker:
        for _ in range(3):
            add(queue_engine)
        seen.wait_for(events.JobSucceeded, count=3)
        sa.event.listen(
            queue_engine, "before_cursor_execute", lambda _c, _cursor, text, values, *_: captured.append(Captured(text, values))
        )
        for count in (4, 5):  # the first may have been claimed before
            add(queue_engine, "late")
            seen.wait_for(events.JobSucceeded, count=count)

    assert True in [True for one in captured if "archived_job" in one.statement and "INSERT" in one.statement]


def test_an_error_is_sqlalchemys(database, queue_engine, work):
    """A connection that is lost between jobs is met as SQLAlchemy's error, told to its listeners, and replaced."""
    database.require("row_locks")
    engine, numbers = backends(database)
    errors, begun, go = [], threading.Event(), threading.Event()
    sa.event.listen(engine, "handle_error", lambda context: errors.append(context.is_disconnect))

    def handler(job):
        if job.payload == 3:
            begun.set()
            assert go.wait(PATIENCE)

    ids = [add(queue_engine, payload=number) for number in range(1, 5)]
    worker, seen = work(handler, engine, claim="held", polling_interval=0.02)
    with worker:
        assert begun.wait(PATIENCE)
        end_session(queue_engine, holder(queue_engine, numbers))
        go.set()
        seen.wait_for(events.JobSucceeded, count=4)

    assert set(ids) == {row.job_id for row in archived(queue_engine)}
    assert True in errors
    assert worker.error is None
    assert all(isinstance(event.exception, sa.exc.DBAPIError) for event in seen.of(events.TransientErrorMet))


def test_a_job_that_is_enqueued_by_a_job_wakes_a_worker(database, queue_engine, work):
    """A commit that begins the next transaction, too, is a commit: a worker of this process is woken, long before its next poll."""
    database.require("row_locks")
    options = {"claim": "held", "polling_interval": 600}
    first, seen = work(lambda job: enqueue(job.session, "second", queue="other"), queue_engine, **options)
    second, woken = work(lambda _job: None, queue_engine, queue="other", **options)
    with first, second:
        for count in (1, 2, 3):
            add(queue_engine)
            seen.wait_for(events.JobSucceeded, count=count)
            woken.wait_for(events.JobSucceeded, count=count)

    assert 6 == len(archived(queue_engine))


def test_an_idle_worker_is_in_no_transaction(database, queue_engine, work):
    """A worker that has found no further job waits outside of any transaction."""
    database.require("row_locks")
    engine, numbers = backends(database)
    for _ in range(3):
        add(queue_engine)
    worker, seen = work(lambda _job: None, engine, claim="held", polling_interval=600)
    with worker:
        seen.wait_for(events.JobSucceeded, count=3)
        wait_until(lambda: not transactions(queue_engine, list(numbers)), PATIENCE)
