"""The same job run twice, or by two at once: never while the worker that has it lives."""

import contextlib
import json
import subprocess
import sys
import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import enqueue_many, events
from tests.field_cases.watching import polls_of
from tests.helpers import scaled, wait_until
from tests.observing import PATIENCE, Recorder, add
from tests.queue_contents import archived, queued
from tests.stress import tables as marks
from tests.stress.processes import REPOSITORY
from tests.test_job_session_endings import ENDINGS

pytestmark = pytest.mark.long

PROCESSES = 4
THREADS = 2


def test_a_worker_in_each_web_process(database, queue_engine):
    """Several workers from one web app, one in each of four forked processes: each job runs once, on four times the threads."""
    marks.metadata.create_all(queue_engine)
    count = scaled(100)
    with queue_engine.begin() as connection:
        ids = enqueue_many(connection, [{"job_type": "work"}] * count)
    command = [sys.executable, "-m", "tests.programs.web_processes", database.url_text, str(PROCESSES), str(THREADS)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            started = [json.loads(server.stdout.readline()) for _ in range(PROCESSES)]
            wait_until(lambda: queued(queue_engine) == [], timeout=3 * PATIENCE, pause=0.05)
            server.stdin.close()
            code = server.wait(3 * PATIENCE)
        finally:
            server.kill()
    with queue_engine.connect() as connection:
        runs = connection.scalars(sa.select(marks.runs.c.job_id)).all()

    assert 0 == code
    assert PROCESSES == len({line["pid"] for line in started})
    assert [THREADS] * PROCESSES == [line["handlers"] for line in started]
    assert sorted(map(str, ids)) == sorted(runs)
    assert {("success", 1)} == {(row.status, row.attempts) for row in archived(queue_engine)}
    assert count == len(archived(queue_engine))


class Endings:
    """Handlers that do something to what they were given, and then work on until they may return."""

    def __init__(self):
        self.ended, self.go = threading.Semaphore(0), threading.Event()
        self.running, self.overlaps = set(), []
        self._lock = threading.Lock()

    def __call__(self, job):
        if job.job_type == "other":
            return
        with self._lock:
            if job.job_id in self.running:
                self.overlaps.append(job.job_type)
            self.running.add(job.job_id)
        try:
            if job.attempts == 1:
                self._end(job)
                self.ended.release()
                assert self.go.wait(PATIENCE)
        finally:
            with self._lock:
                self.running.remove(job.job_id)

    def _end(self, job):
        session = job.session
        session.execute(sa.select(1))
        with contextlib.suppress(Exception):  # the handler that swallows is the worst
            end = ENDINGS.get(job.job_type, lambda session: getattr(session, job.job_type)())
            getattr(session, "run_sync", lambda function: function(session))(end)  # that of an AsyncSession is in another thread


METHODS = ["commit", "rollback", "close", "invalidate"]


@pytest.mark.async_workers
def test_a_handler_that_ends_the_transaction(database, queue_engine, work):
    """Handler ends the claim transaction: no second one of four workers starts the job while it runs; each run has one outcome.

    The handler goes on until the other workers have polled five times each, not for five seconds.
    """
    database.require("row_locks")  # else a handler with a transaction would keep everybody out
    handler, seen = Endings(), Recorder()
    ids = [add(queue_engine, name) for name in (*METHODS, *ENDINGS)]
    threads = len(ids) + 1  # whoever has taken them all still looks for more
    engines = [database.create_engine(pool_size=threads + 3) for _ in range(4)]
    polls = [polls_of(engine) for engine in engines]
    workers = [work(handler, engine, worker_threads=threads, on_event=seen)[0] for engine in engines]
    for worker in workers:
        worker.start()
    try:
        for _ in ids:
            assert handler.ended.acquire(timeout=PATIENCE)
        before = [len(poll) for poll in polls]
        others = [add(queue_engine, "other") for _ in range(4)]
        for job_id in others:
            seen.wait_for(events.JobSucceeded, job_id=job_id)
        wait_until(lambda: all(len(poll) >= number + 5 for poll, number in zip(polls, before, strict=True)), PATIENCE)
        started = [event.job_id for event in seen.of(events.JobStarted)]
    finally:
        handler.go.set()
    wait_until(lambda: {event.job_id for event in outcomes(seen)} >= set(ids), PATIENCE)
    wait_until(lambda: all(row.claimed_by is None for row in queued(queue_engine)), PATIENCE)

    assert sorted([*ids, *others]) == sorted(started)
    assert [] == handler.overlaps
    for job_id in ids:
        runs, ends = seen.of(events.JobStarted, job_id=job_id), [end for end in outcomes(seen) if end.job_id == job_id]
        assert len(ends) in (len(runs), len(runs) - 1)
    assert [] == seen.of(events.JobLeaseLost) + seen.of(events.OutcomeNotRecorded)


def outcomes(seen):
    """Return the events that tell what became of runs."""
    return seen.of(events.JobSucceeded) + seen.of(events.JobFailed) + seen.of(events.JobRetried)
