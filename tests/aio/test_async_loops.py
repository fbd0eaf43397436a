"""`AsyncQueueWorker` and its event loop: one that is blocked, other kinds of loops, what runs in one beside it."""

import asyncio
import datetime as dt
import threading

import pytest

from proletarian_sa import ManualClock, enqueue_many, events, health, process_next_job
from tests.aio.scene import Scene, until
from tests.faults.durations import REAL
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add, clocked_tables
from tests.queue_contents import User, archived, queued

pytestmark = pytest.mark.long

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
MORE = 20.0 if REAL else 0.0
"""Seconds for which a loop is blocked after that was told."""


def test_a_handler_that_blocks_the_loop_keeps_its_lease(queue_engine, scene, monkeypatch):
    """Heartbeats have a thread of their own: while a handler blocks the loop, leases are kept, and an event tells of it."""
    if not REAL:
        monkeypatch.setattr(health, "SILENT", 0.1)
    tables, lease, seen = clocked_tables(clock := ManualClock(START)), 0.5, Recorder()
    add(queue_engine, tables=tables)
    owners = []

    async def handle(_job):
        owners.append(queued(queue_engine, tables)[0].claimed_by)
        seen.wait_for(events.LoopBlocked)
        threading.Event().wait(MORE)
        for _ in range(4):
            prolonged = clock.tick(lease * 0.9) + dt.timedelta(seconds=lease)
            wait_until(lambda prolonged=prolonged: queued(queue_engine, tables)[0].lease_until >= prolonged)
        owners.append(queued(queue_engine, tables)[0].claimed_by)

    async def test():
        worker, _ = scene.work(handle, tables=tables, lease=lease, on_event=seen)
        async with worker:
            await until(lambda: seen.of(events.JobSucceeded), MORE + 2 * PATIENCE)

    scene.run(test)
    assert 2 == len(owners)
    assert 1 == len(set(owners))
    assert [] == seen.of(events.JobLeaseLost)
    assert 1 <= seen.of(events.LoopBlocked)[0].seconds
    assert [("success", 1)] == [(row.status, row.attempts) for row in archived(queue_engine, tables)]


def test_a_held_job_that_blocks_the_loop_keeps_its_claim(database, app_engine, scene, monkeypatch):
    """While a handler blocks the loop, another worker cannot have its held job; what it wrote is committed, and an event tells."""
    database.require("row_locks")
    monkeypatch.setattr(health, "SILENT", 0.1)
    add(app_engine)
    outcomes, scene_seen = [], []

    async def handle(job):
        job.session.add(User(name="Ada"))
        await job.session.flush()
        scene_seen[0].wait_for(events.LoopBlocked)
        outcomes.append(process_next_job(app_engine, print))

    async def test():
        worker, seen = scene.work(handle, claim="held", lease=0.5, concurrency=2)
        scene_seen.append(seen)
        async with worker:
            await until(lambda: seen.of(events.JobSucceeded), 2 * PATIENCE)
        return seen

    seen = scene.run(test)
    assert [None] == outcomes
    assert [] == [*seen.of(events.JobLeaseLost), *seen.of(events.JobConnectionLost)]
    assert [("success", 1)] == [(row.status, row.attempts) for row in archived(app_engine)]
    with app_engine.connect() as connection:
        assert ["Ada"] == [row.name for row in connection.execute(User.__table__.select())]


def test_a_loop_that_goes_on_is_not_told_of(queue_engine, scene, monkeypatch):
    """Nothing is told of a loop that is merely busy."""
    monkeypatch.setattr(health, "SILENT", 0.05)
    add(queue_engine)

    async def handle(_job):
        return None

    async def test():
        worker, seen = scene.work(handle)
        async with worker:
            await until(lambda: seen.of(events.JobSucceeded))
            for _ in range(20):
                await asyncio.sleep(0.01)
        return seen

    assert [] == scene.run(test).of(events.LoopBlocked)


def test_uvloop(queue_engine, app_engine, database, driver):
    """The application's loop may be another one than asyncio's."""
    uvloop = pytest.importorskip("uvloop", reason="no uvloop")
    scene = Scene(database.url.set(drivername=f"{database.url.get_backend_name()}+{driver}"), "leased", uvloop.new_event_loop)
    run_a_few(scene, app_engine)


def test_anyio(queue_engine, app_engine, scene):
    """Handlers may use anyio, and a worker may be run in one of its task groups, whose cancellation stops it."""
    anyio = pytest.importorskip("anyio", reason="no anyio")

    async def pause():
        with anyio.move_on_after(0.01) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)

    run_a_few(scene, app_engine, pause)
    begun = []
    add(app_engine, "waits")

    async def wait(job):
        begun.append(job)
        await anyio.sleep_forever()

    async def test():
        worker, _ = scene.work(wait, stop_timeout=0.2)
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            await until(lambda: begun)
            group.cancel_scope.cancel()
        await until(lambda: not worker.is_running)

    scene.run(test)
    assert ["waits"] == [row.job_type for row in queued(app_engine)]


def test_a_task_group(app_engine, scene):
    """A worker runs as a task of a TaskGroup; so do tasks inside handlers, whose errors are the handler's."""

    async def pause():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()

    run_a_few(scene, app_engine, pause)


def test_an_error_in_a_handlers_task_group(queue_engine, scene):
    """An error in a task of a handler's TaskGroup fails the attempt, as its ExceptionGroup."""
    add(queue_engine)

    async def fail():
        raise LookupError("gone")

    async def handle(_job):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(asyncio.sleep(PATIENCE))

    async def test():
        worker, seen = scene.work(handle)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(worker.run())
            await until(lambda: seen.of(events.JobFailed))
            await worker.stop()
            await running
        return seen

    (failed,) = scene.run(test).of(events.JobAttemptFailed)
    assert isinstance(failed.exception, ExceptionGroup)


def run_a_few(scene, engine, pause=lambda: asyncio.sleep(0)):
    """Run jobs that write, in a task group of their own."""
    with engine.begin() as connection:
        enqueue_many(connection, [{"job_type": "work", "payload": f"user {number}"} for number in range(6)])

    async def handle(job):
        await pause()
        job.session.add(User(name=job.payload))
        await job.session.flush()

    async def test():
        worker, seen = scene.work(handle, concurrency=3)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(worker.run())
            await until(lambda: len(seen.of(events.JobSucceeded)) == 6)
            await worker.stop()
            await running

    scene.run(test)
    assert ["success"] * 6 == [row.status for row in archived(engine)]
    with engine.connect() as connection:
        assert 6 == len(connection.execute(User.__table__.select()).all())
