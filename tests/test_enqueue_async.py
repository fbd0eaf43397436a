"""Enqueueing from asyncio: on a session without I/O, on a connection awaited, in the caller's transaction."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from proletarian_sa import DatabaseNotSupported, Job, default_tables, enqueue, enqueue_many
from proletarian_sa.dialects import statements_for
from tests.queue_contents import Base, User, queued, queued_ids, run_due
from tests.servers.kinds import ASYNC_KINDS


@pytest.fixture(params=ASYNC_KINDS)
def database_kind(request: pytest.FixtureRequest) -> str:
    """Run on each driver for asyncio."""
    return str(request.param)


def run(database: Any, work: Callable[[AsyncEngine], Awaitable[Any]]) -> Any:
    """Run a coroutine with an async engine on the database, in an event loop of its own."""

    async def running() -> Any:
        engine = create_async_engine(database.async_url)
        try:
            return await work(engine)
        finally:
            await engine.dispose()

    return asyncio.run(running())


def test_a_session_adds_the_job(queue_engine: sa.Engine, database: Any):
    """On an AsyncSession `enqueue` returns the id at once, and the job goes with the commit, or with the rollback."""

    async def work(engine: AsyncEngine) -> set[Any]:
        async with AsyncSession(engine) as session:
            enqueue(session, "lost")
            await session.flush()
            await session.rollback()
            kept = {enqueue(session, "kept", {"to": "a@b.c"}, queue="mail", process_in=-1)}
            job = Job(job_type="kept", queue="mail")
            session.add(job)
            await session.commit()
            return kept | {job.job_id}

    ids = run(database, work)
    assert ids == queued_ids(queue_engine)
    assert ids == {job.job_id for job in run_due(queue_engine, queue="mail")}


def test_a_connection_is_awaited(queue_engine: sa.Engine, database: Any):
    """On an AsyncConnection the awaited call returns the id; savepoints and the outer transaction decide."""

    async def work(engine: AsyncEngine) -> Any:
        async with engine.connect() as connection:
            await enqueue(connection, "lost")
            await connection.rollback()
            kept = await enqueue(connection, "kept")
            savepoint = await connection.begin_nested()
            await enqueue(connection, "lost")
            await savepoint.rollback()
            await connection.commit()
            return kept

    assert {run(database, work)} == queued_ids(queue_engine)


def test_many_on_a_session_and_on_a_connection(queue_engine: sa.Engine, database: Any):
    """`enqueue_many` is awaited on both; ids in order for a sequence, a count for an iterator; a bad row leaves nothing."""
    rows = [{"job_type": "tick", "payload": number} for number in range(1200)]
    bad = {"job_type": "tick", "payload": object()}

    async def fill(bind: AsyncSession | AsyncConnection) -> list[Any]:
        ids = await enqueue_many(bind, rows)
        for broken in ([*rows, bad], iter([*rows, bad])):
            with pytest.raises(TypeError, match=r"^rows\[1200\]: "):
                await enqueue_many(bind, broken)
        assert 1200 == await enqueue_many(bind, iter(rows))
        await bind.commit()
        return ids

    async def work(engine: AsyncEngine) -> list[Any]:
        async with AsyncSession(engine) as session:
            ids = await fill(session)
        async with engine.connect() as connection:
            return ids + await fill(connection)

    ids = run(database, work)
    stored = queued(queue_engine)
    assert 4800 == len(stored)
    assert ids == [row.job_id for row in stored if row.job_id in set(ids)]


def test_nothing_of_the_callers_is_flushed(queue_engine: sa.Engine, database: Any):
    """Pending rows of an AsyncSession stay pending while jobs are enqueued, and commit with them."""
    Base.metadata.create_all(queue_engine)

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            user = User(name="Ada")
            session.add(user)
            enqueue(session, "one")
            await enqueue_many(session, [{"job_type": "many"}])
            assert user in session.new
            await session.commit()

    run(database, work)
    assert 2 == len(queued(queue_engine))
    with queue_engine.connect() as connection:
        assert ["Ada"] == list(connection.scalars(sa.select(User.name)))


def test_scoped_async_sessions(queue_engine: sa.Engine, database: Any):
    """An async_scoped_session is as good as its session."""

    async def work(engine: AsyncEngine) -> set[Any]:
        session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        ids = {enqueue(session, "one"), *await enqueue_many(session, [{"job_type": "many"}])}
        await session.commit()
        await session.remove()
        return ids

    assert run(database, work) == queued_ids(queue_engine)


def test_refusals_are_raised_by_the_call(queue_engine: sa.Engine, database: Any):
    """What is refused is refused before anything is awaited, and the session goes on."""

    async def work(engine: AsyncEngine) -> Any:
        async with AsyncSession(engine) as session, engine.connect() as connection:
            for bind in (session, connection):
                with pytest.raises(TypeError, match="object"):
                    enqueue(bind, "tick", object())
            with pytest.raises(
                TypeError, match=r"enqueue needs an AsyncSession or an AsyncConnection of yours, .* not AsyncEngine: async with"
            ):
                enqueue(engine, "tick")  # type: ignore[call-overload]
            kept = enqueue(session, "kept")
            await session.commit()
            return kept

    assert {run(database, work)} == queued_ids(queue_engine)


def test_what_has_no_transaction_is_refused(queue_engine: sa.Engine, database: Any):
    """What makes sessions or connections, and a closed one, is refused with the cure."""

    async def work(engine: AsyncEngine) -> None:
        closed = AsyncSession(engine, close_resets_only=False)
        await closed.close()
        for bind in (engine, async_sessionmaker(engine)):
            with pytest.raises(
                TypeError, match=r"async with AsyncSession\(engine\) as session, session\.begin\(\): await enqueue_many"
            ):
                await enqueue_many(bind, [{"job_type": "tick"}])  # type: ignore[call-overload]
        with pytest.raises(sa.exc.InvalidRequestError, match="closed"):
            enqueue(closed, "tick")
        with pytest.raises(sa.exc.InvalidRequestError, match="closed"):
            await enqueue_many(closed, [{"job_type": "tick"}])
        async with engine.connect() as connection:
            await connection.close()
            with pytest.raises(sa.exc.ResourceClosedError):
                await enqueue(connection, "tick")

    run(database, work)
    assert [] == queued(queue_engine)


def forget(function: Callable[..., Any], *arguments: Any) -> None:
    """Call without `await`."""
    function(*arguments)
    gc.collect()


def test_a_missing_await_is_told(queue_engine: sa.Engine, database: Any):
    """Without `await` nothing is enqueued, and Python's warning names the function."""

    async def work(engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            for function, arguments in ((enqueue, ["tick"]), (enqueue_many, [[{"job_type": "tick"}]])):
                with pytest.warns(RuntimeWarning, match=rf"'proletarian_sa\.{function.__name__}' was never awaited"):
                    forget(function, connection, *arguments)
            await connection.commit()

    run(database, work)
    assert [] == queued(queue_engine)


def test_a_driver_that_is_broken():
    """With PyMySQL 1.2 aiomysql cannot bind bytes: it is refused with the reason and the cure, wherever it is first met."""
    pytest.importorskip("aiomysql")
    pymysql = pytest.importorskip("pymysql")
    if pymysql.VERSION[:2] < (1, 2):
        pytest.skip("a PyMySQL that it can use")
    dialect = create_async_engine("mysql+aiomysql://nobody@127.0.0.1:1/none").dialect

    with pytest.raises(DatabaseNotSupported, match=r"PyMySQL 1\.2 or later.*mysql\+asyncmy://.*PyMySQL<1\.2"):
        statements_for(dialect, default_tables)
