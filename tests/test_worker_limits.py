"""What a worker holds at a time: bounded, given back when others could run it, and never twice in one process."""

from __future__ import annotations

import datetime as dt
import threading
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from proletarian_sa import ManualClock, QueueWorker, default_tables, enqueue_many, events
from proletarian_sa.dialects import statements_for
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add, clocked_tables

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def start(queue_engine: sa.Engine) -> Iterator[Any]:
    """Return a function that starts a worker, stopped at the end, and its events."""
    workers: list[QueueWorker] = []

    def started(handler: Any, **options: Any) -> tuple[QueueWorker, Recorder]:
        seen = Recorder()
        worker = QueueWorker(queue_engine, handler, on_event=seen, handler_mode="advanced", polling_interval=0.02, **options)
        worker.start()
        workers.append(worker)
        return worker, seen

    yield started
    for worker in workers:
        worker.stop(PATIENCE)


def fill(engine: sa.Engine, count: int, job_type: str = "quick") -> None:
    """Enqueue that many jobs."""
    with engine.begin() as connection:
        enqueue_many(connection, [{"job_type": job_type}] * count)


def archived(engine: sa.Engine) -> int:
    """Return how many jobs are in the archive."""
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(default_tables.archived_job)) or 0


def lock_archive(connection: sa.Connection) -> None:
    """Keep everybody from writing to the archive, as a CREATE INDEX or a backup does."""
    name = connection.dialect.identifier_preparer.format_table(default_tables.archived_job)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"LOCK TABLE {name} IN SHARE MODE")
    else:
        connection.exec_driver_sql(f"LOCK TABLES {default_tables.archived_job.name} READ")


def test_outcomes_that_cannot_be_stored_are_bounded(database: Any, queue_engine: sa.Engine, start: Any) -> None:
    """While the archive is locked a worker runs a bounded number of jobs, not the whole queue; afterwards all are archived."""
    database.require("row_locks")
    most = statements_for(queue_engine.dialect, default_tables).most_ahead
    count = 4 * most
    fill(queue_engine, count)
    with queue_engine.connect() as locker:
        lock_archive(locker)
        worker, seen = start(lambda job: None, worker_threads=2)
        wait_until(lambda: worker._crew._unrecorded >= most, PATIENCE)
        begun = len(seen.of(events.JobStarted))
        if locker.dialect.name != "postgresql":
            locker.exec_driver_sql("UNLOCK TABLES")
        locker.rollback()
    seen.wait_for(events.JobSucceeded, count, 2 * PATIENCE)

    assert begun < 2 * most
    assert count == archived(queue_engine)


def test_a_locked_row_holds_up_no_other(database: Any, queue_engine: sa.Engine, start: Any) -> None:
    """One finished job's row is locked by the application: the others are archived meanwhile, and it is when it is free."""
    database.require("row_locks")
    ids = [add(queue_engine, payload=number) for number in range(4)]
    running = threading.Barrier(5)
    column = default_tables.job.c.job_id
    _, seen = start(lambda job: running.wait(PATIENCE), worker_threads=4)
    wait_until(lambda: len(seen.of(events.JobStarted)) == 4, PATIENCE)
    with queue_engine.connect() as locker:
        locker.execute(sa.select(column).where(column == ids[1]).with_for_update())
        running.wait(PATIENCE)
        seen.wait_for(events.JobSucceeded, 3)
        locked = seen.of(events.JobSucceeded, job_id=ids[1])
        locker.rollback()
    seen.wait_for(events.JobSucceeded, 4)

    assert [] == locked
    assert set(ids) == {event.job_id for event in seen.of(events.JobSucceeded)}


def test_jobs_taken_ahead_go_to_others_when_their_worker_is_busy(queue_engine: sa.Engine, start: Any) -> None:
    """A worker that has run quick jobs takes some ahead; behind a long one they go back, and an idle worker runs them."""
    release = threading.Event()

    def handler(job: Any) -> None:
        if job.job_type == "long":
            release.wait(PATIENCE)

    _, seen = start(handler)
    fill(queue_engine, 300)
    seen.wait_for(events.JobSucceeded, 300)
    with queue_engine.begin() as connection:
        enqueue_many(connection, [{"job_type": "long"}, *[{"job_type": "quick"}] * 4])
    seen.wait_for(events.JobStarted, job_type="long")
    _, others = start(handler, worker_threads=2)
    others.wait_for(events.JobSucceeded, 4)
    release.set()
    seen.wait_for(events.JobSucceeded, job_type="long")

    assert {1} == {event.attempt for event in others.of(events.JobSucceeded)}


def test_a_stop_puts_jobs_taken_ahead_back_at_once(queue_engine: sa.Engine, start: Any) -> None:
    """While a handler is still running, the jobs behind it are free again, their attempts given back."""
    release = threading.Event()

    def handler(job: Any) -> None:
        if job.job_type == "long":
            release.wait(PATIENCE)

    worker, seen = start(handler)
    fill(queue_engine, 300)
    seen.wait_for(events.JobSucceeded, 300)
    with queue_engine.begin() as connection:
        enqueue_many(connection, [{"job_type": "long"}, *[{"job_type": "quick"}] * 4])
    seen.wait_for(events.JobStarted, job_type="long")
    stopping = threading.Thread(target=worker.stop, args=(PATIENCE,))
    stopping.start()
    job = default_tables.job.c
    free = sa.select(job.attempts).where(job.claimed_by.is_(None), job.job_type == "quick")

    def attempts() -> list[int]:
        with queue_engine.connect() as connection:
            return list(connection.scalars(free))

    wait_until(lambda: attempts() == [0] * 4, PATIENCE)
    release.set()
    stopping.join(PATIENCE)

    assert not worker.is_running


def test_a_clock_that_jumps_past_the_lease_runs_nothing_twice_at_a_time(queue_engine: sa.Engine, start: Any) -> None:
    """The worker's own job seems lapsed: the second run waits for the first, which is asked to stop and is not recorded."""
    clock = ManualClock(dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
    tables = clocked_tables(clock)
    at_once: list[int] = []
    now = [0]
    lock = threading.Lock()
    told = threading.Event()

    def handler(job: Any) -> None:
        with lock:
            now[0] += 1
            at_once.append(now[0])
        if job.crashes == 0 and job.wait(PATIENCE):
            told.set()
        with lock:
            now[0] -= 1

    _, seen = start(handler, worker_threads=3, tables=tables)
    job_id = add(queue_engine, tables=tables)
    seen.wait_for(events.JobStarted)
    clock.tick(3600)
    seen.wait_for(events.JobSucceeded)
    lost = [event for event in seen.of(events.JobLeaseLost) if event.handler_finished]

    assert told.is_set()
    assert [1, 1] == at_once
    assert [job_id] == [event.job_id for event in lost]
    assert 1 == seen.of(events.JobSucceeded)[0].attempt


def test_a_worker_can_be_stopped_from_its_own_threads(queue_engine: sa.Engine, start: Any) -> None:
    """A handler that stops its worker does not wait for itself, and its job is recorded."""
    stopped: list[Any] = []
    worker, seen = start(lambda job: stopped.append(worker.stop(PATIENCE)))
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)

    assert worker.join(PATIENCE)
    assert 1 == len(stopped)


def test_a_worker_stops_when_the_database_refuses_outcomes(database: Any, queue_engine: sa.Engine, start: Any) -> None:
    """Three jobs in a row whose outcomes cannot be stored end the worker: it would only repeat their effects."""
    worker, seen = start(lambda job: None)
    with queue_engine.begin() as connection:
        name = connection.dialect.identifier_preparer.format_table(default_tables.archived_job)
        if connection.dialect.name != "postgresql":
            name = default_tables.archived_job.name
        connection.exec_driver_sql(f"ALTER TABLE {name} RENAME COLUMN status TO renamed")
    fill(queue_engine, 50)
    seen.wait_for(events.WorkerFailed)

    assert worker.join(PATIENCE)
    assert worker.error is not None
    assert 3 <= len(seen.of(events.OutcomeNotRecorded))
