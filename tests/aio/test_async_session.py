"""`job.session` as an AsyncSession: what the handler writes and the job's completion are one commit."""

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from proletarian_sa import JobInterrupted, LeaseLost, RetryStrategy, SessionNotYours, enqueue, events
from tests.aio.scene import until
from tests.observing import add, change
from tests.queue_contents import User, archived, queued

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("claim")]


@pytest.fixture(autouse=True)
def tables(app_engine):
    """Let the application have tables."""
    return app_engine


def users(engine):
    """Return the names of the users there are."""
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(User.name).order_by(User.name)))


def work_off(scene, handler, count=1, **options):
    """Run a handler until so many jobs have ended, and return the events."""

    async def test():
        worker, seen = scene.work(handler, **options)
        async with worker:
            ends = (events.JobSucceeded, events.JobFailed, events.JobRetried, events.JobReleased, events.JobLeaseLost)
            await until(lambda: sum(len(seen.of(end)) for end in ends) >= count)
        return seen

    return scene.run(test)


def test_effects_and_completion_are_one_commit(queue_engine, scene):
    """What a handler writes through its session is committed with the job's completion; jobs that it enqueues, too."""
    add(queue_engine, payload="Ada")

    async def handle(job):
        session = job.session
        assert isinstance(session, AsyncSession)
        assert session is job.session
        session.add(User(name=job.payload))
        enqueue(session, "next", queue="later")
        await session.flush()
        assert ["Ada"] == list(await session.scalars(sa.select(User.name)))
        async with session.begin_nested() as savepoint:
            session.add(User(name="nobody"))
            await session.flush()
            await savepoint.rollback()

    work_off(scene, handle)
    assert ["Ada"] == users(queue_engine)
    assert ["success"] == [row.status for row in archived(queue_engine)]
    assert ["later"] == [row.queue for row in queued(queue_engine)]


@pytest.mark.parametrize("use", ["add", "begin_nested", "connection", "run_sync", "stream", "nothing"])
def test_the_transaction_begins_with_the_first_use(queue_engine, scene, use):
    """Whatever the handler does first with its session, or only adds to it, is in the one transaction."""
    add(queue_engine)

    async def handle(job):
        session = job.session
        session.add(User(name="Ada"))
        if use == "begin_nested":
            async with session.begin_nested():
                session.add(User(name="Bea"))
        elif use == "connection":
            await (await session.connection()).execute(sa.insert(User).values(name="Bea"))
        elif use == "run_sync":
            await session.run_sync(lambda sync: (sync.begin(nested=True), sync.add(User(name="Bea")), sync.flush()))
        elif use == "stream":
            assert ["Ada"] == [name async for name in await session.stream_scalars(sa.select(User.name))]

    work_off(scene, handle)
    assert (["Ada"] if use in ("add", "stream", "nothing") else ["Ada", "Bea"]) == users(queue_engine)
    assert ["success"] == [row.status for row in archived(queue_engine)]


def test_a_failure_takes_the_effects_back(queue_engine, scene):
    """A handler that raises leaves nothing of what it wrote; a constraint that fails at the end is its failure."""
    add(queue_engine, payload="raises")
    add(queue_engine, payload="violates")

    async def handle(job):
        job.session.add(User(name="Ada"))
        if job.payload == "raises":
            await job.session.flush()
            raise LookupError("no such address")
        with job.session.no_autoflush:
            job.session.add_all([User(id=7, name="x"), User(id=7, name="y")])

    seen = work_off(scene, handle, 2, concurrency=1)
    assert [] == users(queue_engine)
    assert ["failure", "failure"] == [row.status for row in archived(queue_engine)]
    assert {LookupError, IntegrityError} == {type(event.exception) for event in seen.of(events.JobAttemptFailed)}


def test_the_end_of_the_transaction_is_the_workers(queue_engine, scene):
    """Commit, rollback and their like are refused, used or not, by any way; the handler goes on, and its writes are committed."""
    add(queue_engine)
    refused = []

    async def handle(job):
        session = job.session
        for used in (False, True):
            for end in ("commit", "rollback", "close", "reset", "invalidate"):
                with pytest.raises(SessionNotYours, match=rf"job\.session\.{end}\(\) is the worker's business\. Instead, "):
                    await getattr(session, end)()
                refused.append((used, end))
            with pytest.raises(SessionNotYours):
                async with session:
                    pass
            with pytest.raises(InvalidRequestError, match="already begun"):
                async with session.begin():
                    pass
            session.add(User(name=f"user {used}"))
            await session.flush()

    work_off(scene, handle)
    assert 10 == len(refused)
    assert ["user False", "user True"] == users(queue_engine)


def test_it_ends_with_the_handler(queue_engine, scene):
    """After the handler has returned, the session is refused, in tasks that it has left behind, too."""
    add(queue_engine)
    found = []

    async def handle(job):
        async def later():
            await go.wait()
            with pytest.raises(SessionNotYours, match="ended when the handler returned"):
                _ = job.session
            found.append(job)

        go = asyncio.Event()
        tasks.append((asyncio.create_task(later()), go))

    tasks = []

    async def test():
        worker, seen = scene.work(handle)
        async with worker:
            await until(lambda: seen.of(events.JobSucceeded))
            task, go = tasks[0]
            go.set()
            await task

    scene.run(test)
    assert 1 == len(found)


def test_the_applications_own_sessions(queue_engine, scene):
    """`session_factory` brings the application's own AsyncSession; anything else is refused as the handler's failure."""
    add(queue_engine, payload="own")

    class Own(AsyncSession):
        pass

    async def handle(job):
        assert type(job.session) is Own
        job.session.add(User(name="Ada"))

    async def test():
        worker, seen = scene.work(handle, session_factory=async_sessionmaker(scene.engine, class_=Own, expire_on_commit=False))
        async with worker:
            await until(lambda: seen.of(events.JobSucceeded))

    scene.run(test)
    assert ["Ada"] == users(queue_engine)

    add(queue_engine)
    seen = work_off(scene, handle, session_factory=lambda: "no session", concurrency=1)
    (failed,) = seen.of(events.JobAttemptFailed)
    assert "session_factory must return a new AsyncSession, not str: session_factory=async_sessionmaker(async_engine)." == str(
        failed.exception
    )


@pytest.mark.leased
@pytest.mark.parametrize("swallows", [False, True])
def test_a_claim_that_is_somebody_elses(queue_engine, database, scene, swallows):
    """Nothing of a run is recorded whose job is somebody else's now; where one writes at a time, the first use says so."""
    job_id = add(queue_engine)
    raised = []

    async def handle(job):
        await asyncio.to_thread(change, queue_engine, job_id, claimed_by="somebody else")
        job.session.add(User(name="Ada"))
        try:
            await job.session.flush()
        except LeaseLost as error:
            raised.append(error)
            if not swallows:
                raise

    seen = work_off(scene, handle, lease=3600)
    assert (0 if database.row_locks else 1) == len(raised)
    assert 1 == len(seen.of(events.JobLeaseLost))
    assert [] == users(queue_engine)
    assert ["somebody else"] == [row.claimed_by for row in queued(queue_engine)]


def test_failed_job_in_the_transaction_that_archives(queue_engine, scene):
    """`failed_job` may be `async def`: what it writes is committed with the archiving; if it raises, that is undone and told."""
    add(queue_engine, payload="good")
    add(queue_engine, payload="bad")

    async def handle(job):
        raise LookupError(job.payload)

    async def failed_job(job, exception):
        job.session.add(User(name=f"{job.payload}: {exception}"))
        await job.session.flush()
        await asyncio.sleep(0)
        if job.payload == "bad":
            raise ValueError("no")

    seen = work_off(scene, handle, 2, failed_job=failed_job)
    assert ["failure", "failure"] == [row.status for row in archived(queue_engine)]
    assert ["good: good"] == users(queue_engine)
    (told,) = seen.of(events.FailedJobCallbackFailed)
    assert "no" == str(told.exception)


def test_a_plain_failed_job(queue_engine, scene):
    """`failed_job` may be a plain function: it is called on the loop, and what it adds to the session is committed."""
    add(queue_engine)

    async def handle(_job):
        raise LookupError("gone")

    def failed_job(job, exception):
        assert asyncio.get_running_loop() is not None
        job.session.add(User(name=str(exception)))

    work_off(scene, handle, failed_job=failed_job)
    assert ["gone"] == users(queue_engine)


def test_an_interruption_takes_the_effects_back(queue_engine, scene):
    """JobInterrupted puts the job back with its attempt, without what it wrote."""
    add(queue_engine)

    async def handle(job):
        job.session.add(User(name="Ada"))
        await job.session.flush()
        raise JobInterrupted

    work_off(scene, handle)
    assert [] == users(queue_engine)
    assert [0] == [row.attempts for row in queued(queue_engine)]


def test_a_plain_handler_has_no_session(queue_engine, scene):
    """In a thread the worker's engine cannot be used: `job.session` is refused there, with what to do."""
    add(queue_engine, "plain")

    def handle(job):
        _ = job.session

    seen = work_off(scene, handle)
    (failed,) = seen.of(events.JobAttemptFailed)
    assert isinstance(failed.exception, SessionNotYours)
    assert "The handler of 'plain' is a plain function" in str(failed.exception)


def test_a_pool_without_a_connection_is_no_verdict(queue_engine, scene):
    """Handlers wait for the pool's connections; one that gets none in time is tried again, whatever its strategy says."""
    for _ in range(2):
        add(queue_engine)
    inside, go = [], asyncio.Event()

    async def handle(job):
        await job.session.execute(sa.select(User.name))
        inside.append(job)
        if len(inside) == 1:
            await go.wait()

    async def test():
        engine = scene.create_engine(pool_size=1, max_overflow=0, pool_timeout=0.05)
        worker, seen = scene.work(handle, engine, retry=RetryStrategy(retries=0), claim="leased")
        async with worker:
            await until(lambda: seen.of(events.JobTransactionDied))
            go.set()
            await until(lambda: len(seen.of(events.JobSucceeded)) == 2)

    scene.run(test)
    assert ["success", "success"] == [row.status for row in archived(queue_engine)]


@pytest.mark.leased
def test_a_session_that_could_not_be_opened_is_no_success(queue_engine, scene):
    """A handler that swallows the error of its session's first use has written nothing: its job runs again."""
    errors = []

    async def handle(job):
        job.session.add(User(name="Ada"))
        for _ in range(2):
            try:
                await job.session.flush()
            except PoolTimeout as error:
                errors.append(error)

    async def test():
        engine = scene.create_engine(pool_size=1, max_overflow=0, pool_timeout=0.05)
        worker, seen = scene.work(handle, engine)
        async with worker:
            async with engine.connect():
                await asyncio.to_thread(add, queue_engine)
                await until(lambda: seen.of(events.JobTransactionDied))
            await until(lambda: len(seen.of(events.JobSucceeded)) == 1)

    scene.run(test)
    assert errors
    assert errors[0] is errors[1]
    assert ["Ada"] == users(queue_engine)
