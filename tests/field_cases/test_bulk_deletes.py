"""Many rows deleted by others while workers run, first known from MySQL: nobody stops, and nobody waits for long."""

import datetime as dt
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from proletarian_sa import enqueue_many, events
from proletarian_sa.dialects import statements_for
from proletarian_sa.models import default_tables as tables
from tests.field_cases.deadlocks import impatient_engine
from tests.helpers import scaled, wait_until
from tests.observing import PATIENCE, Recorder, add
from tests.queue_contents import User, archived, queued

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def old_archive(engine: sa.Engine, rows: int) -> None:
    """Fill the archive with jobs of long ago."""
    archive = tables.archived_job
    values = {"queue": "default", "job_type": "old", "payload": "1", "attempts": 1, "enqueued_at": LONG_AGO, "process_at": LONG_AGO}
    with engine.begin() as connection:
        finished = [LONG_AGO + dt.timedelta(seconds=number) for number in range(rows)]
        ids = [tables.job_ids.new() for _ in range(rows)]
        connection.execute(
            sa.insert(archive),
            [
                {**values, "job_id": job_id, "status": "success", "finished_at": moment}
                for job_id, moment in zip(ids, finished, strict=True)
            ],
        )


def purge(engine: sa.Engine, batch: int | None) -> tuple[int, int]:
    """Delete what is old, in batches or all at once; return how many rows and how many deadlocks there were."""
    archive = tables.archived_job
    old = archive.c.finished_at < LONG_AGO + dt.timedelta(days=365)
    deleted = deadlocks = 0
    while True:
        try:
            with engine.begin() as connection:
                if batch is None:
                    return deleted + connection.execute(sa.delete(archive).where(old)).rowcount, deadlocks
                ids = connection.scalars(sa.select(archive.c.job_id).where(old).order_by(archive.c.finished_at).limit(batch)).all()
                deleted += connection.execute(sa.delete(archive).where(archive.c.job_id.in_(sorted(ids)))).rowcount
                if not ids:
                    return deleted, deadlocks
        except sa.exc.OperationalError as error:
            if not statements_for(engine.dialect, tables).is_transient(error):
                raise
            deadlocks += 1


@pytest.mark.parametrize("batch", [100, None], ids=["in batches", "in one statement"])
def test_purges_while_workers_run(database, app_engine, work, batch):
    """Deadlock in bulk deletes: two purges of the archive at the same time cost eight workers no error and no second.

    A thousand old rows and eighty jobs, not 50 000 and as many as it takes.
    """
    database.require("row_locks")
    old, jobs = scaled(1000), scaled(80)
    old_archive(app_engine, old)
    seen = Recorder()
    engine = database.create_engine(pool_size=40)
    workers = [work(lambda job: job.session.add(User(name="effect")), engine, on_event=seen)[0] for _ in range(8)]
    with app_engine.begin() as connection:
        ids = enqueue_many(connection, [{"job_type": "work"}] * jobs)
    for worker in workers:
        worker.start()
    seen.wait_for(events.JobSucceeded)
    with ThreadPoolExecutor(2) as pool:
        purges = list(pool.map(lambda _: purge(impatient_engine(database), batch), range(2)))
    seen.wait_for(events.JobSucceeded, count=jobs)

    assert old == sum(deleted for deleted, _ in purges)
    assert sorted(ids) == sorted(row.job_id for row in archived(app_engine))
    assert {("success", 1, None)} == {(row.status, row.attempts, row.crashes) for row in archived(app_engine)}
    assert [] == seen.of(events.TransientErrorMet) + seen.of(events.JobTransactionDied) + seen.of(events.OutcomeNotRecorded)


def test_a_bulk_cancel_while_workers_run(database, app_engine, work):
    """Deadlock in bulk deletes: whoever deletes all free jobs in one statement stops no worker; each job has one end."""
    database.require("row_locks")
    seen = Recorder()
    engine = database.create_engine(pool_size=20)
    jobs = scaled(150)
    with app_engine.begin() as connection:
        ids = set(enqueue_many(connection, [{"job_type": "work"}] * jobs))
    workers = [work(lambda _job: None, engine, worker_threads=2, on_event=seen)[0] for _ in range(2)]
    for worker in workers:
        worker.start()
    seen.wait_for(events.JobSucceeded)
    cancelled = cancel(app_engine)
    wait_until(lambda: not queued(app_engine), PATIENCE)
    last = add(app_engine)
    seen.wait_for(events.JobSucceeded, job_id=last)

    done = {row.job_id for row in archived(app_engine)} - {last}
    assert cancelled <= ids
    assert set() == cancelled & done
    assert ids == cancelled | done
    assert all(worker.is_running for worker in workers)
    assert [] == seen.of(events.OutcomeNotRecorded) + seen.of(events.WorkerFailed)


def cancel(engine: sa.Engine) -> set[uuid.UUID]:
    """Delete all jobs that nobody has claimed, once the database lets us."""
    free = tables.job.c.claimed_by.is_(None)
    for _ in range(20):
        try:
            with engine.begin() as connection:
                ids = connection.scalars(sa.select(tables.job.c.job_id).where(free).with_for_update(skip_locked=True)).all()
                connection.execute(sa.delete(tables.job).where(tables.job.c.job_id.in_(ids)))
            return set(ids)
        except sa.exc.OperationalError as error:
            if not statements_for(engine.dialect, tables).is_transient(error):
                raise
    raise AssertionError("no end of deadlocks")
