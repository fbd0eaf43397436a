"""An `AsyncQueueWorker` that is cancelled: it returns in time, and no job in flight is archived as success."""

import asyncio
import contextlib
import itertools
import threading
import time

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from proletarian_sa import events
from tests.aio.scene import Scene, until
from tests.helpers import wait_until
from tests.observing import PATIENCE, add
from tests.proxies import proxy
from tests.queue_contents import User, archived, queued

pytestmark = pytest.mark.long

FROZEN = "worker of a frozen database"
SOON = 0.5  # the stop_timeout of these tests, seconds
AT_ONCE = 20.0  # seconds within which what does not wait returns, on a busy machine


async def cancelled(task):
    """Cancel a task, and return after how many seconds it has ended so."""
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return time.monotonic() - began


def put_back(engine):
    """Return whether the one job is in its queue as if it had not been run, and nothing is archived."""
    return [] == archived(engine) and [(0, None)] == [(row.attempts, row.claimed_by) for row in queued(engine)]


@pytest.mark.parametrize("claim", ["leased", "held"])
def test_idle(database, scene, claim):
    """Cancelled while there is nothing to do, `run` stops the worker and ends as a cancelled task does."""

    async def handle(_job):
        return None

    if claim == "held":
        database.require("row_locks")

    async def test():
        worker, seen = scene.work(handle, claim=claim)
        running = asyncio.create_task(worker.run())
        await until(lambda: seen.of(events.WorkerStarted))
        assert await cancelled(running) < AT_ONCE
        assert not worker.is_running
        assert await worker.join(0)

    scene.run(test)


@pytest.mark.parametrize("ending", ["raises", "swallows", "fails", "returns early"])
def test_in_a_job(queue_engine, app_engine, scene, ending):
    """Cancelled in a job, `run` waits for the handler, then cancels it: its job goes back, whatever the handler makes of that.

    A handler that returns before, because it was asked to stop, has done its work.
    """
    add(queue_engine)
    begun = []

    async def handle(job):
        job.session.add(User(name="Ada"))
        await job.session.flush()
        begun.append(job)
        if ending == "returns early":
            assert await job.wait(PATIENCE)
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert job.stopping
            if ending == "fails":
                raise LookupError("as it was cancelled") from None
            if ending != "swallows":
                raise

    async def test():
        worker, seen = scene.work(handle, stop_timeout=PATIENCE if ending == "returns early" else SOON)
        running = asyncio.create_task(worker.run())
        await until(lambda: begun)
        assert await cancelled(running) < SOON + AT_ONCE
        await until(lambda: not worker.is_running)
        return seen

    seen = scene.run(test)
    with queue_engine.connect() as connection:
        written = list(connection.scalars(sa.select(User.name)))
    if ending == "returns early":
        assert ["Ada"] == written
        assert ["success"] == [row.status for row in archived(queue_engine)]
    else:
        assert [] == written
        assert put_back(queue_engine)
        assert [] == seen.of(events.JobAttemptFailed)


def test_a_second_cancellation_ends_the_wait(queue_engine, scene):
    """Cancelled again while it waits for handlers, `run` cancels them at once."""
    add(queue_engine)
    begun = []

    async def handle(job):
        begun.append(job)
        await asyncio.Event().wait()

    async def test():
        worker, _ = scene.work(handle, stop_timeout=3600)
        running = asyncio.create_task(worker.run())
        await until(lambda: begun)
        running.cancel()
        await until(lambda: begun[0].stopping)
        assert await cancelled(running) < AT_ONCE
        await until(lambda: not worker.is_running)

    scene.run(test)
    assert put_back(queue_engine)


def test_a_handler_that_goes_on_keeps_its_job(queue_engine, scene):
    """A handler that swallows its cancellation is reported by `stop`, keeps its lease, and puts its job back at last."""
    job_id = add(queue_engine)
    begun, go = [], asyncio.Event()

    async def handle(job):
        begun.append(job)
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    async def test():
        worker, seen = scene.work(handle, lease=0.5, stop_timeout=SOON)
        await worker.start()
        await until(lambda: begun)
        assert [job_id] == [job.job_id for job in await worker.stop()]
        assert worker.is_running
        assert [1] == [told.running for told in seen.of(events.WorkerStopped)]
        with pytest.raises(RuntimeError, match="still stopping: 1 of its handlers have not returned"):
            await worker.start()

        (before,) = await asyncio.to_thread(queued, queue_engine)
        await until(lambda: queued(queue_engine)[0].lease_until > before.lease_until)
        go.set()
        assert await worker.join()
        assert [] == seen.of(events.JobLeaseLost)

    scene.run(test)
    assert put_back(queue_engine)


def test_plain_handlers_are_not_cancelled(queue_engine, scene):
    """A handler in a thread cannot be cancelled: it is asked to stop, and what it returns counts."""
    add(queue_engine)
    begun = []

    def handle(job):
        begun.append(job)
        assert job.wait(PATIENCE)

    async def test():
        worker, _ = scene.work(handle, stop_timeout=SOON)
        running = asyncio.create_task(worker.run())
        await until(lambda: begun)
        await cancelled(running)
        await until(lambda: not worker.is_running)

    scene.run(test)
    assert ["success"] == [row.status for row in archived(queue_engine)]


def test_a_handler_that_cancels_itself(queue_engine, scene):
    """A task that somebody else cancels puts its job back; the worker goes on."""
    add(queue_engine)
    begun = []

    async def handle(job):
        begun.append(job)
        if len(begun) == 1:
            asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async def test():
        worker, seen = scene.work(handle)
        async with worker:
            await until(lambda: seen.of(events.JobSucceeded))
        return seen

    seen = scene.run(test)
    assert 1 == len(seen.of(events.JobReleased))
    assert [("success", 1)] == [(row.status, row.attempts) for row in archived(queue_engine)]


def test_stop_in_a_block(queue_engine, scene):
    """A block of `async with` that is cancelled stops the worker."""
    add(queue_engine)
    begun = []

    async def handle(job):
        begun.append(job)
        await asyncio.Event().wait()

    async def test():
        worker, _ = scene.work(handle, stop_timeout=SOON)

        async def block():
            async with worker:
                await asyncio.Event().wait()

        running = asyncio.create_task(block())
        await until(lambda: begun)
        await cancelled(running)
        await until(lambda: not worker.is_running)

    scene.run(test)
    assert put_back(queue_engine)


def frozen(database, driver, test, claim="leased"):
    """Run a test whose database can be frozen: it is given the scene and the proxy."""
    database.require("server")
    with proxy(database.url) as way:
        scene = Scene(way.url.set(drivername=f"{way.url.get_backend_name()}+{driver}"), claim)
        began = time.monotonic()
        scene.run(lambda: test(scene, way))
        assert time.monotonic() - began < 3 * AT_ONCE
        way.thaw()
        wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith(FROZEN)], PATIENCE)


def test_starting_with_a_frozen_database(queue_engine, database, driver):
    """Cancelled while the database does not answer, `start` returns at once, and nothing is started."""

    async def handle(_job):
        return None

    async def test(scene, way):
        way.freeze()
        worker, seen = scene.work(handle, stop_timeout=SOON, worker_id=FROZEN)
        for method in (worker.start, worker.run):
            starting = asyncio.create_task(method())
            await asyncio.wait([starting], timeout=0.1)
            assert await cancelled(starting) < AT_ONCE
            assert not worker.is_running
        assert [] == seen.events
        way.thaw()
        await worker.start()
        assert worker.is_running

    frozen(database, driver, test)


WHEN = pytest.mark.parametrize("when", ["idle", "in a handler", "in job.session", "in the commit"])


@WHEN
def test_with_a_frozen_database(app_engine, database, driver, when):
    """Cancelled while the database does not answer, `run` returns in time; the loop goes on, and its end is not held up either."""
    cancelled_while_frozen(app_engine, database, driver, when, "leased")


@WHEN
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_held_jobs_with_a_frozen_database(app_engine, database, driver, when):
    """The same with held claims, whose transaction belongs to the connection that does not answer."""
    cancelled_while_frozen(app_engine, database, driver, when, "held")


def cancelled_while_frozen(app_engine, database, driver, when, claim):
    """Cancel a worker at some time after its database has been frozen."""
    if when != "idle":
        add(app_engine)
    begun, ticks = [], []

    async def handle(job):
        if when in ("in job.session", "in the commit"):
            job.session.add(User(name="Ada"))
            await job.session.flush()
        begun.append(job)
        if when == "in a handler":
            await asyncio.Event().wait()
        await until(lambda: frozen_now)
        if when == "in job.session":
            await job.session.execute(sa.text("SELECT 1"))

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    frozen_now = []

    async def test(scene, way):
        worker, seen = scene.work(handle, stop_timeout=SOON, worker_id=FROZEN)
        running = asyncio.create_task(worker.run())
        ticking = asyncio.create_task(tick())
        await until(lambda: begun or (when == "idle" and seen.of(events.WorkerStarted)))
        way.freeze()
        frozen_now.append(True)
        await asyncio.wait([running], timeout=0.1)
        assert await cancelled(running) < SOON + AT_ONCE
        ticking.cancel()
        assert max(b - a for a, b in itertools.pairwise(ticks)) < AT_ONCE
        scene.leave_workers()

    frozen(database, driver, test, claim)
    assert [] == [row for row in archived(app_engine) if row.status == "success" and when != "in the commit"]


def test_an_error_that_ends_the_worker(queue_engine, scene):
    """An error of the database that waiting does not mend ends `run`, which raises it."""
    errors = []

    async def handle(_job):
        return None

    async def test():
        worker, seen = scene.work(handle, on_polling_error=lambda error: errors.append(error) or True)

        @sa.event.listens_for(scene.engine.sync_engine, "before_cursor_execute", retval=True)
        def spoil(_connection, _cursor, statement, parameters, *_):
            return ("SELECT nothing FROM nowhere WHERE (", ()) if seen.of(events.WorkerStarted) else (statement, parameters)

        with pytest.raises(DBAPIError):
            await worker.run()
        assert errors == [worker.error]
        assert "failed" == worker.health.state
        assert not worker.is_running

    scene.run(test)
