"""A worker and its leases: heartbeats keep them, a lost one stops its handler, and rows that somebody has locked hold up nobody."""

import datetime as dt
import queue
import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import ManualClock, default_tables, events
from tests.helpers import wait_until
from tests.observing import PATIENCE, add, claim, clocked_tables, lapse
from tests.queue_contents import archived, queued

pytestmark = [pytest.mark.long, pytest.mark.async_workers]

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def test_heartbeats_keep_a_long_job(queue_engine, work):
    """Double execution, lease shorter than job: a job of ten leases runs once, though another worker polls all the time."""
    tables = clocked_tables(clock := ManualClock(START))
    lease, ran = 0.3, queue.Queue()
    add(queue_engine, tables=tables)

    def lease_until():
        return queued(queue_engine, tables)[0].lease_until

    def handler(job):
        ran.put(job)
        for _ in range(12):
            now = clock.tick(lease * 0.9)
            wait_until(lambda now=now: lease_until() >= now + dt.timedelta(seconds=lease), PATIENCE)

    worker, seen = work(handler, tables=tables, lease=lease)
    other, _ = work(ran.put, tables=tables, on_event=seen)
    worker.start()
    wait_until(lambda: not ran.empty(), PATIENCE)
    other.start()
    seen.wait_for(events.JobSucceeded)

    (row,) = archived(queue_engine, tables)
    assert 1 == ran.qsize()
    assert ("success", 1, None) == (row.status, row.attempts, row.crashes)
    assert [] == seen.of(events.JobLeaseLost)


def test_a_lost_lease_asks_the_handler_to_stop(queue_engine, work):
    """The heartbeat finds out that the job is another's: `stopping` is set, `wait` returns True, the late finish is refused."""
    begun, found = threading.Event(), queue.Queue()

    def handler(job):
        begun.set()
        found.put((job.wait(PATIENCE), job.stopping))

    worker, seen = work(handler, lease=0.5)
    job_id = add(queue_engine)
    worker.start()
    assert begun.wait(PATIENCE)
    steal(queue_engine, job_id)

    assert (True, True) == found.get(timeout=PATIENCE)
    seen.wait_for(events.JobLeaseLost, job_id=job_id, handler_finished=False)
    seen.wait_for(events.JobLeaseLost, job_id=job_id, handler_finished=True)
    assert [("thief", 1, 1)] == [(row.claimed_by, row.attempts, row.crashes) for row in queued(queue_engine)]
    assert [] == archived(queue_engine)


def steal(engine, job_id):
    """Let the lease lapse and claim the job before a heartbeat mends it."""

    def try_once():
        lapse(engine, job_id)
        return claim(engine, "thief")

    (stolen,) = wait_until(try_once, PATIENCE)
    assert job_id == stolen.job_id


def test_a_job_whose_lease_was_lost_is_still_told_as_running(queue_engine, work):
    """Handler outlives the stop timeout: `stop` names a handler that has not returned, although the job is another's by now."""
    begun, go = threading.Event(), threading.Event()
    worker, seen = work(lambda job: begun.set() or go.wait(PATIENCE), lease=0.5)
    job_id = add(queue_engine)
    worker.start()
    assert begun.wait(PATIENCE)
    steal(queue_engine, job_id)
    seen.wait_for(events.JobLeaseLost, job_id=job_id)

    left = worker.stop(0)
    go.set()

    assert [job_id] == [job.job_id for job in left]
    assert worker.join(PATIENCE)


def test_a_handler_that_blocks_its_own_row(database, queue_engine, work):
    """Row changed from outside: a handler that locks its own job's row elsewhere holds up its heartbeat, but no other job."""
    database.require("row_locks")
    begun, go = threading.Event(), threading.Event()
    table = default_tables.job

    def handler(job):
        if job.payload == "lock":
            with queue_engine.begin() as connection:
                connection.execute(sa.select(table.c.job_id).where(table.c.job_id == job.job_id).with_for_update())
                begun.set()
                assert go.wait(PATIENCE)

    worker, seen = work(handler, worker_threads=2)
    locked = add(queue_engine, payload="lock")
    worker.start()
    assert begun.wait(PATIENCE)
    other = add(queue_engine)
    seen.wait_for(events.JobSucceeded, job_id=other)
    go.set()
    seen.wait_for(events.JobSucceeded, job_id=locked)


def test_a_row_locked_from_outside_holds_up_only_its_own_job(database, queue_engine, work):
    """Row changed from outside: an outcome that waits for somebody's lock waits alone: other outcomes are recorded meanwhile."""
    database.require("row_locks")
    ran = threading.Event()
    table = default_tables.job
    locker = queue_engine.connect()

    def handler(job):
        if job.payload == "locked":
            locker.execute(sa.select(table.c.job_id).where(table.c.job_id == job.job_id).with_for_update())
            ran.set()

    worker, seen = work(handler)
    locked = add(queue_engine, payload="locked")
    worker.start()
    assert ran.wait(PATIENCE)
    others = [add(queue_engine) for _ in range(3)]
    for job_id in others:
        seen.wait_for(events.JobSucceeded, job_id=job_id)
    assert [] == seen.of(events.JobSucceeded, job_id=locked)
    locker.close()
    seen.wait_for(events.JobSucceeded, job_id=locked)

    assert {("success", 1, None)} == {(row.status, row.attempts, row.crashes) for row in archived(queue_engine)}
