"""`AsyncQueueWorker` with held claims: each running job in the transaction that holds it, on the application's loop."""

import asyncio
import contextvars
import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import enqueue_many, events
from tests.aio.scene import until
from tests.observing import add
from tests.queue_contents import User, archived, queued

AT_ONCE = 8
MARK = contextvars.ContextVar("mark", default="none")


@pytest.fixture(autouse=True)
def row_locks(database):
    """Held claims lock rows."""
    database.require("row_locks")


def test_handlers_overlap(queue_engine, app_engine, scene):
    """Jobs run at the same time, each on a connection of its own, and no more of them than there may be."""
    with queue_engine.begin() as connection:
        enqueue_many(connection, [{"job_type": "work", "payload": number} for number in range(3 * AT_ONCE)])
    running, most, found, opened = set(), [0], [], []

    async def handle(job):
        running.add(job.job_id)
        most[0] = max(most[0], len(running))
        found.append((MARK.get(), threading.current_thread() is threading.main_thread()))
        MARK.set("set")
        if len(found) < AT_ONCE:
            await until(lambda: most[0] == AT_ONCE)
        job.session.add(User(name=f"user {job.payload}"))
        await job.session.flush()
        running.discard(job.job_id)

    async def test():
        sa.event.listen(scene.engine.sync_engine, "connect", lambda *_: opened.append(1))
        worker, seen = scene.work(handle, claim="held", concurrency=AT_ONCE)
        async with worker:
            await until(lambda: len(seen.of(events.JobSucceeded)) == 3 * AT_ONCE)
        return seen

    seen = scene.run(test)
    assert AT_ONCE == most[0]
    assert [("none", True)] * 3 * AT_ONCE == found
    assert len(opened) <= AT_ONCE + 5  # the watch, and what was looked at before the start
    assert ["success"] * 3 * AT_ONCE == [row.status for row in archived(queue_engine)]
    assert [] == seen.of(events.TransientErrorMet)
    with queue_engine.connect() as connection:
        assert 3 * AT_ONCE == len(connection.execute(User.__table__.select()).all())


def test_jobs_that_come_one_by_one(queue_engine, scene):
    """An idle worker finds what comes, is stopped while idle, and can be started again."""

    async def handle(_job):
        return None

    async def test():
        worker, seen = scene.work(handle, claim="held", concurrency=3)
        for start in range(2):
            async with worker:
                for number in range(2):
                    await asyncio.to_thread(add, queue_engine)
                    await until(lambda count=2 * start + number + 1: len(seen.of(events.JobSucceeded)) == count)
            assert not worker.is_running

    scene.run(test)
    assert ["success"] * 4 == [row.status for row in archived(queue_engine)]


def test_outcomes(queue_engine, app_engine, scene):
    """A failure undoes what the handler wrote, and `failed_job` writes in the same transaction; others go on."""
    for payload in ("fails", "times out", "works"):
        add(queue_engine, payload=payload)

    async def handle(job):
        job.session.add(User(name=job.payload))
        await job.session.flush()
        if job.payload == "fails":
            raise LookupError("gone")

    async def failed_job(job, exception):
        job.session.add(User(name=f"failed: {exception}"))
        await job.session.flush()

    async def test():
        worker, seen = scene.work(handle, claim="held", concurrency=2, failed_job=failed_job)
        async with worker:
            await until(lambda: len(seen.of(events.JobSucceeded)) + len(seen.of(events.JobFailed)) == 3)

    scene.run(test)
    assert ["failure", "success", "success"] == sorted(row.status for row in archived(queue_engine))
    with queue_engine.connect() as connection:
        assert {"failed: gone", "times out", "works"} == set(connection.scalars(sa.select(User.name)))


def test_plain_handlers(queue_engine, scene):
    """Plain functions run in threads."""
    add(queue_engine)
    threads = []

    def handle(_job):
        threads.append(threading.current_thread())

    async def test():
        worker, seen = scene.work(handle, claim="held", concurrency=2)
        async with worker:
            await until(lambda: seen.of(events.JobSucceeded))

    scene.run(test)
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("swallows", [False, True])
def test_cancelled_in_a_job(queue_engine, app_engine, scene, swallows):
    """Cancelled in a job, `run` returns in time, and the job is due again as if it had not been run."""
    add(queue_engine)
    begun = []

    async def handle(job):
        job.session.add(User(name="Ada"))
        await job.session.flush()
        begun.append(job)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise

    async def test():
        worker, _ = scene.work(handle, claim="held", concurrency=2, stop_timeout=0.5)
        running = asyncio.create_task(worker.run())
        await until(lambda: begun)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: not worker.is_running)

    scene.run(test)
    assert [] == archived(queue_engine)
    assert [(0, None)] == [(row.attempts, row.claimed_by) for row in queued(queue_engine)]
    with queue_engine.connect() as connection:
        assert [] == list(connection.scalars(sa.select(User.name)))


def test_a_pool_that_is_too_small(queue_engine, scene):
    """With fewer connections than handlers the worker tells so, and the jobs are run all the same."""
    with queue_engine.begin() as connection:
        enqueue_many(connection, [{"job_type": "work"} for _ in range(6)])

    async def handle(_job):
        await asyncio.sleep(0.01)

    async def test():
        worker, seen = scene.work(handle, scene.create_engine(pool_size=2, max_overflow=0), claim="held", concurrency=4)
        async with worker:
            await until(lambda: len(seen.of(events.JobSucceeded)) == 6)
        return seen

    (told,) = scene.run(test).of(events.PoolTooSmall)
    assert (4, 2) == (told.needed, told.available)
