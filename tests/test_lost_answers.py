"""A COMMIT of the worker's own that was done, and whose answer was lost: it is tried again, and does nothing twice."""

import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import JobInterrupted, RetryStrategy, events
from tests.observing import PATIENCE, add
from tests.queue_contents import archived, queued

pytestmark = pytest.mark.long


class LostAnswer:
    """Commits once for the finisher, then closes the connection, so that its COMMIT fails; holds up its next try until told."""

    def __init__(self, engine):
        self.struck, self.go = threading.Event(), threading.Event()
        self._writes = False  # the finisher has said something about jobs in its transaction
        sa.event.listen(engine, "commit", self._commit)
        sa.event.listen(engine, "before_cursor_execute", self._execute)

    def _commit(self, connection):
        if is_finisher() and self._writes and not self.struck.is_set():
            raw = connection.connection.dbapi_connection
            raw.commit()
            raw.close()
            self.struck.set()

    def _execute(self, _connection, _cursor, statement, *_):
        if not is_finisher() or "job" not in statement:
            return
        self._writes = True
        if self.struck.is_set():
            assert self.go.wait(PATIENCE)


def is_finisher():
    """Return whether this is the thread that records outcomes."""
    return threading.current_thread().name.endswith(" finisher")


def fail(job):
    """Fail the first time."""
    if job.attempts == 1:
        raise LookupError


KINDS = {"retry": (fail, events.JobRetried, 2), "release": (None, events.JobReleased, 1)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_was_put_back(database, queue_engine, work, kind):
    """The same worker has claimed the job anew before the second try: that claim is not given away, nor its attempt."""
    database.require("server")
    engine = database.create_engine()
    lost = LostAnswer(engine)
    fail_first, told, attempts = KINDS[kind]
    begun, go, runs = threading.Event(), threading.Event(), []

    def handler(job):
        runs.append(job.attempts)
        if len(runs) == 1:
            if fail_first is None:
                raise JobInterrupted
            fail_first(job)
        begun.set()
        assert go.wait(PATIENCE)

    worker, seen = work(handler, engine, retry=RetryStrategy(retries=3, delays=[0]))
    job_id = add(queue_engine)
    with worker:
        assert begun.wait(PATIENCE)
        lost.go.set()
        seen.wait_for(told, job_id=job_id)
        during = [(row.attempts, row.claimed_by is not None) for row in queued(queue_engine)]
        go.set()
        seen.wait_for(events.JobSucceeded, job_id=job_id)

    assert [(attempts, True)] == during
    assert [1, attempts] == runs
    assert [("success", attempts, None)] == [(row.status, row.attempts, row.crashes) for row in archived(queue_engine)]
    assert 1 == len(seen.of(told))
    assert [] == seen.of(events.JobLeaseLost) + seen.of(events.OutcomeNotRecorded)


@pytest.mark.parametrize("status", ["success", "failure"])
def test_a_job_that_was_archived(database, queue_engine, work, status):
    """It is found in the archive, told once, and not run again."""
    database.require("server")
    engine = database.create_engine()
    lost = LostAnswer(engine)
    lost.go.set()
    runs = []

    def handler(job):
        runs.append(job.attempts)
        if status == "failure":
            raise LookupError

    worker, seen = work(handler, engine)
    job_id = add(queue_engine)
    told = events.JobSucceeded if status == "success" else events.JobFailed
    with worker:
        seen.wait_for(told, job_id=job_id)
        seen.wait_for(events.Recovered)

    assert lost.struck.is_set()
    assert [1] == runs
    assert [(job_id, status, 1)] == [(row.job_id, row.status, row.attempts) for row in archived(queue_engine)]
    assert [] == queued(queue_engine)
    assert 1 == len(seen.of(told))
    assert [] == seen.of(events.JobLeaseLost) + seen.of(events.OutcomeNotRecorded)
