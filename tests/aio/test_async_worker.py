"""`AsyncQueueWorker`: handlers overlap on one event loop, on few connections."""

import asyncio
import contextvars
import threading
import time
from contextlib import nullcontext

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from proletarian_sa import (
    AsyncQueueWorker,
    DatabaseNotSupported,
    JobRegistry,
    TablesMissing,
    create_all,
    drop_all,
    enqueue_many,
    events,
)
from tests.aio.scene import until
from tests.observing import PATIENCE, Recorder, add
from tests.queue_contents import archived, queued
from tests.servers.sessions import sessions

JOBS, AT_ONCE, MOST_CONNECTIONS = 200, 100, 5
MOST_ROUNDS = 20
"""Two are enough, if all jobs that can be are begun before the first has ended; one after the other they were 200."""


def fill(engine, count, job_type="work"):
    """Enqueue jobs whose payloads count."""
    with engine.begin() as connection:
        return enqueue_many(connection, [{"job_type": job_type, "payload": number} for number in range(count)])


def test_handlers_overlap_on_few_connections(queue_engine, database, scene):
    """200 jobs that wait for 50 ms are run a hundred at a time: about a tenth of a second, in one thread, on five connections."""
    ids = fill(queue_engine, JOBS)
    queue_engine.dispose()
    running, most, ran, threads, rounds, opened, closed = set(), [0], [], set(), [0], [], []

    async def handle(job):
        running.add(job.job_id)
        most[0] = max(most[0], len(running))
        threads.add(threading.get_ident())
        before = rounds[0]  # how many jobs have waited one after the other until this one was begun
        await until(lambda: most[0] >= AT_ONCE)
        await asyncio.sleep(0.05)
        rounds[0] = max(rounds[0], before + 1)
        running.discard(job.job_id)
        ran.append(job.job_id)

    async def test():
        sa.event.listen(scene.engine.sync_engine, "connect", lambda *_: opened.append(1))
        sa.event.listen(scene.engine.sync_engine, "close", lambda *_: closed.append(1))
        worker, seen = scene.work(handle, concurrency=AT_ONCE)
        counting = asyncio.create_task(asyncio.to_thread(count_connections, database, lambda: len(ran) == JOBS))
        async with worker:
            await until(lambda: len(seen.of(events.JobSucceeded)) == JOBS)
            at_work = len(opened) - len(closed)
            assert "running" == worker.health.state
        return at_work, await counting

    at_work, at_server = scene.run(test)

    assert sorted(ids) == sorted(ran)
    assert most[0] == AT_ONCE
    assert JOBS // AT_ONCE <= rounds[0] <= MOST_ROUNDS
    assert {threading.get_ident()} == threads
    assert 1 <= at_work <= MOST_CONNECTIONS
    assert len(opened) <= MOST_CONNECTIONS
    assert at_server is None or 1 <= at_server <= MOST_CONNECTIONS
    assert ["success"] * JOBS == [row.status for row in archived(queue_engine)]


CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def count_connections(database, over):
    """Return how many connections the server has to the database at the most, beside this one, until it is over."""
    if not database.server:
        return None
    url, most, deadline = database.url, 0, time.monotonic() + PATIENCE
    is_postgresql = url.get_backend_name() == "postgresql"
    with database.create_engine(isolation_level="AUTOCOMMIT").connect() if is_postgresql else nullcontext() as connection:
        while not over() and time.monotonic() < deadline:
            found = connection.scalar(sa.text(CONNECTIONS)) if is_postgresql else chosen_by(url)
            most = max(most, found)
            time.sleep(0.01)
    return most


def chosen_by(url):
    """Return how many sessions of a MySQL or MariaDB server have chosen this database."""
    return sum(session.database == url.database for session in sessions(url))


def test_context_variables_are_the_jobs_own(queue_engine, scene):
    """What a handler sets is seen by the tasks that it starts, and by no other job; what the application has set is not there."""
    mark = contextvars.ContextVar("mark", default="none")
    fill(queue_engine, 100)
    found = []

    async def look():
        return mark.get()

    async def handle(job):
        before = mark.get()
        mark.set(job.job_id)
        await asyncio.sleep(0)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(look()) for _ in range(2)]
        found.append((before, {task.result() for task in tasks} == {job.job_id} == {mark.get()}))

    async def test():
        mark.set("the application's")
        worker, seen = scene.work(handle, concurrency=2)
        async with worker:
            await until(lambda: len(seen.of(events.JobSucceeded)) == 100)
        assert "the application's" == mark.get()

    scene.run(test)

    assert [("none", True)] * 100 == found


def test_start_and_stop(queue_engine, scene):
    """Started, it runs jobs until it is stopped; then its threads are gone, and it can be started again."""

    async def handle(_job):
        return None

    def threads():
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("to start and stop")]

    async def test():
        worker, seen = scene.work(handle, worker_id="to start and stop")
        assert not worker.is_running
        assert "stopped" == worker.health.state
        assert [] == await worker.stop()
        for number in range(2):
            await worker.start()
            await worker.start()
            assert worker.is_running
            assert "running" == worker.health.state
            assert not await worker.join(0)
            await asyncio.to_thread(add, queue_engine)
            await until(lambda number=number: len(seen.of(events.JobSucceeded)) == number + 1)

            assert [] == await worker.stop()
            assert [] == await worker.stop()
            assert not worker.is_running
            assert await worker.join()
            await until(lambda: not threads())
        assert worker.error is None
        return seen

    seen = scene.run(test)
    assert ["WorkerStarted", "WorkerStopping", "WorkerStopped"] * 2 == [name for name in seen.names() if name.startswith("Worker")]


def test_run_returns_when_it_is_stopped(queue_engine, scene):
    """`run` starts the worker, and returns once `stop` has been called elsewhere: by a handler, which does not wait for itself."""
    add(queue_engine)
    workers = []

    async def handle(_job):
        running = await workers[0].stop()
        return [job.job_id for job in running]

    async def test():
        workers.append(scene.work(handle)[0])
        await workers[0].run()
        assert await workers[0].join(0) or await workers[0].join()

    scene.run(test)
    assert ["success"] == [row.status for row in archived(queue_engine)]


def test_starting_twice_at_the_same_time_is_starting_once(scene):
    """Tasks that start a worker at the same time start it once; all return when it runs."""

    async def handle(_job):
        return None

    async def test():
        worker, seen = scene.work(handle)
        await asyncio.gather(*(worker.start() for _ in range(4)))
        assert worker.is_running
        return len(seen.of(events.WorkerStarted))

    assert 1 == scene.run(test)


def test_missing_tables(queue_engine, scene):
    """Without the tables `start` and `run` raise, with what to type; `wait_for_tables` waits, and a stop ends that."""
    drop_all(queue_engine)

    async def handle(_job):
        return None

    async def test():
        worker, _ = scene.work(handle)
        with pytest.raises(TablesMissing, match="create_all"):
            await worker.start()
        with pytest.raises(TablesMissing, match="create_all"):
            await worker.run()
        assert not worker.is_running

        patient, seen = scene.work(handle, wait_for_tables=True)
        waiting = asyncio.create_task(patient.start())
        await until(lambda: seen.of(events.TransientErrorMet))
        await patient.stop()
        await waiting
        assert not patient.is_running

    scene.run(test)


def test_plain_functions_run_in_threads(queue_engine, scene):
    """Handlers that are no coroutines run in threads, several at a time, and the loop goes on; their context is kept."""
    fill(queue_engine, 3, "plain")
    mark = contextvars.ContextVar("mark", default="none")
    jobs, barrier, found = JobRegistry(), threading.Barrier(4), []

    @jobs.handler("plain")
    def plain(_payload, job):
        found.append((threading.current_thread() is threading.main_thread(), mark.get(), job.stopping))
        mark.set("set")
        barrier.wait(PATIENCE)

    async def test():
        worker, seen = scene.work(jobs, handler_mode="default")
        async with worker:
            await until(lambda: barrier.n_waiting == 3)
            await asyncio.to_thread(barrier.wait, PATIENCE)
            await until(lambda: len(seen.of(events.JobSucceeded)) == 3)

    scene.run(test)
    assert [(False, "none", False)] * 3 == found


def test_another_loop_is_refused(queue_engine, scene):
    """A worker is stopped in the loop in which it was started; elsewhere the message says how."""

    async def handle(_job):
        return None

    async def test():
        worker, _ = scene.work(handle)

        async def elsewhere():
            with pytest.raises(RuntimeError, match=r"started in another event loop.*run_coroutine_threadsafe"):
                await worker.stop()
            with pytest.raises(RuntimeError, match="started in another event loop"):
                await worker.join()

        async with worker:
            await asyncio.to_thread(asyncio.run, elsewhere())
            assert worker.is_running

    scene.run(test)


def test_a_loop_that_ends_without_a_stop(queue_engine, scene):
    """A program that forgets to stop its worker: the handlers' jobs are put back when the loop ends, none is archived."""
    fill(queue_engine, 3)
    seen, begun = Recorder(), []

    async def handle(job):
        begun.append(job)
        await asyncio.Event().wait()

    async def forgetful():
        engine = scene.create_engine()
        worker = AsyncQueueWorker(engine, handle, handler_mode="advanced", concurrency=2, on_event=seen)
        await worker.start()
        await until(lambda: len(begun) == 2)
        return worker

    worker = asyncio.run(forgetful())
    seen.wait_for(events.JobReleased, count=2)
    worker._stop_at_exit()

    assert not worker.is_running
    assert [] == archived(queue_engine)
    assert [(0, None)] * 3 == [(row.attempts, row.claimed_by) for row in queued(queue_engine)]


def test_a_job_that_is_begun_while_its_loop_ends(queue_engine, scene):
    """A program that forgets to stop its worker: what is begun too late to be cancelled is put back, too."""
    fill(queue_engine, 3)
    begun = []

    async def handle(job):
        begun.append(job)
        await asyncio.Event().wait()

    async def last_words():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await until(lambda: len(begun) == 3)

    async def forgetful():
        engine = scene.create_engine()
        worker = AsyncQueueWorker(engine, handle, handler_mode="advanced", concurrency=2)
        await worker.start()
        await until(lambda: len(begun) == 2)
        return worker, asyncio.create_task(last_words())

    worker, _ = asyncio.run(forgetful())
    worker._stop_at_exit()

    assert not worker.is_running
    assert [] == archived(queue_engine)
    assert [(0, None)] * 3 == [(row.attempts, row.claimed_by) for row in queued(queue_engine)]


def test_a_database_that_cannot_hold_claims(tmp_path):
    """SQLite cannot hold claims: `start` says so."""

    async def test():
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/held.db")
        async with engine.begin() as connection:
            await connection.run_sync(create_all)
        try:
            await AsyncQueueWorker(engine, print, claim="held").start()
        finally:
            await engine.dispose()

    with pytest.raises(DatabaseNotSupported, match="cannot hold claims"):
        asyncio.run(test())
