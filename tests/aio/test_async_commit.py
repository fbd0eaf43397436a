"""The end of `job.session`'s transaction, in which its task is cancelled: a job is done if and only if its effects are there."""

import asyncio
import functools
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy.util import await_only

from proletarian_sa import events
from tests.aio.scene import until
from tests.observing import add
from tests.queue_contents import User, archived, queued

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("claim")]


class Cancelling:
    """Cancels the task that ends a transaction, once: in the COMMIT, or the other end of these, that comes next on this loop.

    Attributes:
        done: It has.
    """

    def __init__(self, engine, when, *ends):
        self._when = when
        self._is_armed = self.done = False
        dialect = engine.sync_engine.dialect
        for end in ends:
            setattr(dialect, end, functools.partial(self._cancel, getattr(dialect, end)))

    def arm(self):
        """Begin to wait for it."""
        self._is_armed = True

    def _cancel(self, end, *arguments):
        if not self._is_armed or threading.current_thread() is not threading.main_thread():
            end(*arguments)
            return
        self._is_armed, self.done = False, True
        task = asyncio.current_task()
        if self._when == "after its answer":
            end(*arguments)
        task.cancel()  # raises where it waits next
        if self._when == "while it is on its way":
            end(*arguments)
        await_only(asyncio.sleep(0))


WHEN = ["before it is sent", "while it is on its way", "after its answer"]


@pytest.mark.parametrize("when", WHEN)
def test_cancelled_in_the_commit(queue_engine, app_engine, scene, when):
    """Cancelled in the COMMIT of its session, a job is either done, or goes back as if it had not been run; never half."""
    job_id = add(queue_engine)
    runs = []

    async def handle(job):
        runs.append(job.attempts)
        job.session.add(User(name="Ada"))
        await job.session.flush()
        if len(runs) == 1:
            cancelling.arm()

    async def test():
        nonlocal cancelling
        cancelling = Cancelling(scene.engine, when, "do_commit")
        worker, seen = scene.work(handle, concurrency=1)
        async with worker:
            await until(lambda: archived(queue_engine) or not worker.is_running)
        assert cancelling.done
        return seen

    cancelling = None
    seen = scene.run(test)
    with queue_engine.connect() as connection:
        written = list(connection.scalars(sa.select(User.name)))

    assert ["Ada"] == written
    assert [] == queued(queue_engine)
    assert [(job_id, "success", 1)] == [(row.job_id, row.status, row.attempts) for row in archived(queue_engine)]
    assert [] == seen.of(events.JobAttemptFailed) + seen.of(events.OutcomeNotRecorded)
    assert 1 == len(seen.of(events.JobSucceeded))
    assert [1] * len(runs) == runs
    if when == "after its answer":
        assert 1 == len(runs)
    if when == "before it is sent":
        assert 2 == len(runs)


@pytest.mark.parametrize("when", WHEN)
def test_cancelled_in_the_roll_back(queue_engine, app_engine, scene, when):
    """A handler that a stop has cancelled gives its job back, also if its task is cancelled again while it is rolled back."""
    add(queue_engine)
    begun = []

    async def handle(job):
        job.session.add(User(name="Ada"))
        await job.session.flush()
        begun.append(job)
        try:
            await asyncio.Event().wait()
        finally:
            cancelling.arm()

    async def test():
        nonlocal cancelling
        cancelling = Cancelling(scene.engine, when, "do_rollback", "do_rollback_to_savepoint")
        worker, seen = scene.work(handle, concurrency=1)
        await worker.start()
        await until(lambda: begun)
        await worker.stop(0)
        assert await worker.join()
        assert cancelling.done
        return seen

    cancelling = None
    seen = scene.run(test)

    assert [] == archived(queue_engine)
    assert [(0, None)] == [(row.attempts, row.claimed_by) for row in queued(queue_engine)]
    assert 1 == len(seen.of(events.JobReleased))
    assert [] == seen.of(events.JobAttemptFailed) + seen.of(events.OutcomeNotRecorded)
