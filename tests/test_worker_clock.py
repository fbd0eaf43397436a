"""The database's clock jumps while jobs run."""

import datetime as dt
import queue
import threading

import sqlalchemy as sa

from proletarian_sa import ManualClock, events
from tests.helpers import wait_until
from tests.observing import PATIENCE, add, clocked_tables
from tests.queue_contents import User, archived, queued

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
NAME = "same"


def names(engine: sa.Engine) -> list[str]:
    """Return what handlers have written."""
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(User.name)))


def test_forward(app_engine, work):
    """The lease lapses early, and another worker of that name runs the job: the first one's writes are gone, its finish refused."""
    tables = clocked_tables(clock := ManualClock(START))
    begun, go, found = threading.Event(), threading.Event(), queue.Queue()

    def first(job):
        begun.set()
        found.put((job.wait(PATIENCE), job.stopping))
        job.session.add(User(name="first"))

    def second(job):
        assert go.wait(PATIENCE)
        job.session.add(User(name="second"))

    worker, seen = work(first, tables=tables, lease=1, worker_id=NAME)
    other, others = work(second, tables=tables, lease=86400, worker_id=NAME)
    job_id = add(app_engine, tables=tables)
    worker.start()
    assert begun.wait(PATIENCE)
    other.start()

    def jump():  # again, if a heartbeat was there before the other worker
        clock.tick(5)
        return others.of(events.JobStarted, job_id=job_id)

    wait_until(jump, timeout=PATIENCE, pause=0.05)
    assert (True, True) == found.get(timeout=PATIENCE)
    seen.wait_for(events.JobLeaseLost, handler_finished=True)
    go.set()
    others.wait_for(events.JobSucceeded)

    assert [("success", 1, 1)] == [(row.status, row.attempts, row.crashes) for row in archived(app_engine, tables)]
    assert ["second"] == names(app_engine)
    assert [] == seen.of(events.JobSucceeded)


def test_backward(app_engine, work):
    """The lease is prolonged by the new time, nobody else takes the job, and it is finished."""
    tables = clocked_tables(clock := ManualClock(START))
    begun, go = threading.Event(), threading.Event()

    def handler(job):
        begun.set()
        assert go.wait(PATIENCE)
        job.session.add(User(name="once"))

    worker, seen = work(handler, tables=tables, lease=0.3, worker_id=NAME)
    other, others = work(handler, tables=tables, lease=0.3, worker_id=NAME)
    add(app_engine, tables=tables)
    worker.start()
    assert begun.wait(PATIENCE)
    other.start()
    now = clock.tick(-3600)
    wait_until(lambda: queued(app_engine, tables)[0].lease_until == now + dt.timedelta(seconds=0.3), timeout=PATIENCE)
    go.set()
    seen.wait_for(events.JobSucceeded)

    assert [("success", 1, None)] == [(row.status, row.attempts, row.crashes) for row in archived(app_engine, tables)]
    assert ["once"] == names(app_engine)
    assert [] == others.of(events.JobStarted)
