"""Ids that the database makes: known when the row is inserted, in the order of the inserts, and never given twice."""

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from proletarian_sa import DatabaseIds, JobTables, create_all, enqueue, enqueue_many, process_next_job
from proletarian_sa.dialects import schema_names
from tests.queue_contents import Base, User, archived, queued, queued_ids, run_due
from tests.strategies import Sometimes, own_tables

pytestmark = pytest.mark.async_drivers


@pytest.fixture
def tables(engine: sa.Engine) -> JobTables:
    """Create tables of which the database makes the ids."""
    tables = JobTables(job_ids=DatabaseIds())
    create_all(engine, tables=tables)
    return tables


def rows(count: int, **options: Any) -> list[dict[str, Any]]:
    """Return rows of which the payloads count up."""
    return [{"job_type": "tick", "payload": number, **options} for number in range(count)]


def run_async(database: Any, work: Any) -> Any:
    """Run a coroutine with an async engine on the database."""

    async def running() -> Any:
        engine = create_async_engine(database.async_url)
        try:
            return await work(engine)
        finally:
            await engine.dispose()

    return asyncio.run(running())


def test_the_columns(engine: sa.Engine, tables: JobTables):
    """The job table numbers its rows with 64 bits, and on SQLite never twice; the archive takes the numbers as they are."""
    with engine.connect() as connection:
        inspector = sa.inspect(connection)
        schema = schema_names.effective_schema(connection, tables.job.schema)
        job, done = (
            next(column for column in inspector.get_columns(table, schema=schema) if column["name"] == "job_id")
            for table in ("job", "archived_job")
        )
        numbering: Any = bool(job.get("identity")) or job.get("autoincrement") is True
        if connection.dialect.name == "sqlite":
            numbering = "AUTOINCREMENT" in str(connection.scalar(sa.text("SELECT sql FROM sqlite_master WHERE name = 'job'")))
            assert "AUTOINCREMENT" not in str(
                connection.scalar(sa.text("SELECT sql FROM sqlite_master WHERE name = 'archived_job'"))
            )
        keys = [inspector.get_pk_constraint(table, schema=schema)["constrained_columns"] for table in ("job", "archived_job")]

    assert numbering
    assert {str(job["type"]).removesuffix("(20)")} == {str(done["type"]).removesuffix("(20)")}
    assert ("INTEGER" if engine.dialect.name == "sqlite" else "BIGINT") == str(job["type"]).removesuffix("(20)")
    assert [["job_id"], ["job_id"]] == keys
    assert not done.get("identity")
    assert done.get("autoincrement") is not True
    assert done["default"] is None


def test_a_job_gets_its_id_at_the_flush(engine: sa.Engine, tables: JobTables):
    """`job_id` is None until the flush; then it is the row's, and survives commit and expiry although a worker archives the row."""
    with Session(engine) as session:
        job = tables.Job(job_type="tick")
        assert job.job_id is None
        assert "Job(job_id=None" in repr(job)
        session.add(job)
        assert job.job_id is None
        session.flush()
        job_id: Any = job.job_id
        assert isinstance(job_id, int)
        session.commit()
        run_due(engine, tables=tables)

        assert job_id == job.job_id
        session.expire_all()
        assert job_id == job.job_id
    assert [job_id] == [row.job_id for row in archived(engine, tables)]


def test_a_job_that_is_rolled_back_can_be_added_again(engine: sa.Engine, tables: JobTables):
    """After a rollback the object is new again: added once more, it gets an id that nobody has taken meanwhile."""
    with Session(engine) as session:
        job = tables.Job(job_type="again")
        session.add(job)
        session.flush()
        session.rollback()
        with engine.begin() as connection:
            meanwhile = enqueue(connection, "meanwhile", tables=tables)
        session.add(job)
        session.commit()
        job_id = job.job_id

    assert {meanwhile: "meanwhile", job_id: "again"} == {row.job_id: row.job_type for row in queued(engine, tables)}


def test_many_jobs_of_one_flush(engine: sa.Engine, tables: JobTables):
    """Objects that are flushed together each get their own row's id, times and delays included."""
    with Session(engine) as session, session.begin():
        jobs = [tables.Job(job_type="tick", payload=number, process_in=number % 3) for number in range(60)]
        session.add_all(jobs)
        session.flush()
        ids = {str(job.payload): job.job_id for job in jobs}
    by_payload = {row.payload: row.job_id for row in queued(engine, tables)}

    assert ids == by_payload
    assert ids == {str(number): job.job_id for number, job in enumerate(jobs)}
    assert 60 == len(set(by_payload.values()))


def test_enqueue_on_a_session_inserts_at_once(engine: sa.Engine, tables: JobTables):
    """`enqueue` returns the id: it inserts at once in the session's transaction, and flushes nothing of the caller's."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        pending = User(name="Ada")
        session.add(pending)
        job_id = enqueue(session, "tick", {"a": 1}, queue="mail", process_in=-5, tables=tables)

        assert isinstance(job_id, int)
        assert [pending] == list(session.new)
        assert sa.inspect(pending).pending
        assert {job_id} == queued_ids(session.connection(), tables)
        session.rollback()
        assert set() == queued_ids(engine, tables)
        kept = enqueue(session, "tick", {"a": 1}, queue="mail", tables=tables)
        session.commit()

    assert [(kept, {"a": 1})] == [(job.job_id, job.payload) for job in run_due(engine, queue="mail", tables=tables)]


def test_enqueue_on_a_session_in_a_savepoint(engine: sa.Engine, tables: JobTables):
    """A savepoint of the session takes the row back with the rest."""
    with Session(engine) as session, session.begin():
        kept = enqueue(session, "kept", tables=tables)
        savepoint = session.begin_nested()
        enqueue(session, "lost", tables=tables)
        savepoint.rollback()
        other = enqueue(session, "kept", tables=tables)

    assert {kept, other} == queued_ids(engine, tables)


def test_enqueue_on_every_sync_bind(engine: sa.Engine, tables: JobTables):
    """A scoped_session, a session with binds of its own, and a connection return the id as well."""
    scoped = scoped_session(sessionmaker(engine))
    ids = [enqueue(scoped, "tick", tables=tables)]
    scoped.commit()
    scoped.remove()
    with Session(binds={tables.Job: engine}) as session, session.begin():
        ids.append(enqueue(session, "tick", tables=tables))
    with engine.begin() as connection:
        ids.append(enqueue(connection, "tick", tables=tables))

    assert ids == sorted(ids)
    assert set(ids) == queued_ids(engine, tables)


@pytest.mark.plain_drivers
def test_enqueue_on_a_connection_from_asyncio(engine: sa.Engine, database: Any, tables: JobTables):
    """On an AsyncConnection the awaited call returns the id; many at once return theirs in order, on a session too."""

    async def work(async_engine: AsyncEngine) -> list[Any]:
        async with async_engine.begin() as connection:
            assert isinstance(connection, AsyncConnection)
            ids = [await enqueue(connection, "tick", tables=tables)]
            ids += await enqueue_many(connection, rows(3), tables=tables)
        async with AsyncSession(async_engine) as session, session.begin():
            ids += await enqueue_many(session, rows(3), tables=tables)
            assert 3 == await enqueue_many(session, iter(rows(3)), tables=tables)
        return ids

    ids = run_async(database, work)

    assert ids == sorted(set(ids))
    assert 7 == len(ids)
    assert set(ids) <= queued_ids(engine, tables)
    assert 10 == len(queued(engine, tables))


@pytest.mark.plain_drivers
def test_enqueue_on_an_async_session_says_what_to_type(engine: sa.Engine, database: Any, tables: JobTables):
    """An AsyncSession cannot insert without an await: nothing is left behind, and what the error says to type works."""

    async def work(async_engine: AsyncEngine) -> list[Any]:
        payload = {"a": 1}
        async with AsyncSession(async_engine) as session, session.begin():
            with pytest.raises(TypeError, match=r"job_id = await session\.run_sync") as caught:
                enqueue(session, "tick", payload, tables=tables)
            assert [] == list(session.new)
            told = str(caught.value)
            assert "job_id = await session.run_sync(enqueue, 'tick', payload, tables=tables)." in told
            assert "session.add(tables.Job(…))" in told
            job_id = await session.run_sync(enqueue, "tick", payload, tables=tables)
            session.add(job := tables.Job(job_type="tick"))
            await session.flush()
            return [job_id, job.job_id]

    ids = run_async(database, work)

    assert set(ids) == queued_ids(engine, tables)


def test_many_ids_come_back_in_the_order_of_the_rows(engine: sa.Engine, tables: JobTables):
    """Hundreds of ids come back in the order of the rows: each is that of its own row, and greater than the one before."""
    with engine.begin() as connection:
        connection.execute(sa.insert(tables.job), {"queue": "q", "job_type": "before", "payload": "null"})
        ids = enqueue_many(connection, rows(700), tables=tables)
    stored = {row.job_id: row.payload for row in queued(engine, tables)}

    assert [str(number) for number in range(700)] == [stored[job_id] for job_id in ids]
    assert ids == sorted(set(ids))


def test_many_ids_over_several_chunks(engine: sa.Engine, tables: JobTables):
    """Rows that are inserted in several statements, because they are long, get their own ids as well."""
    wanted = [{"job_type": "tick", "payload": [number, "x" * 300_000]} for number in range(9)]
    with Session(engine) as session, session.begin():
        ids = enqueue_many(session, wanted, tables=tables)
    jobs = run_due(engine, tables=tables)

    assert ids == [job.job_id for job in jobs]
    assert list(range(9)) == [job.payload[0] for job in jobs]


def test_an_engine_that_returns_no_ids_of_many_rows(database: Any, engine: sa.Engine, tables: JobTables):
    """Where the engine cannot return the ids of many rows, they come back in order nevertheless."""
    plain = database.create_engine(use_insertmanyvalues=False)
    with plain.begin() as connection:
        ids = enqueue_many(connection, rows(20), tables=tables)
    stored = {row.job_id: row.payload for row in queued(engine, tables)}

    assert [str(number) for number in range(20)] == [stored[job_id] for job_id in ids]


def test_an_iterator_returns_a_count(engine: sa.Engine, tables: JobTables):
    """An iterator streams and returns the number of its jobs, as with other ids."""
    with Session(engine) as session, session.begin():
        assert 1200 == enqueue_many(session, iter(rows(1200)), tables=tables)

    assert [str(number) for number in range(1200)] == [row.payload for row in queued(engine, tables)]
    assert 1200 == len(queued_ids(engine, tables))


def test_some_rows_with_ids_of_their_own(engine: sa.Engine, tables: JobTables):
    """Rows that bring an id and rows that do not may be mixed; all ids come back in order."""
    wanted: list[dict[str, Any]] = rows(6)
    for index, own in ((1, -10), (2, -20), (4, -(2**63))):
        wanted[index]["job_id"] = own
    with engine.begin() as connection:
        ids = enqueue_many(connection, wanted, tables=tables)
    stored = {row.job_id: row.payload for row in queued(engine, tables)}

    assert [-10, -20, -(2**63)] == [ids[1], ids[2], ids[4]]
    assert [str(number) for number in range(6)] == [stored[job_id] for job_id in ids]
    assert ids == [job.job_id for job in run_due(engine, tables=tables)]


def test_a_strategy_that_makes_some_ids(engine: sa.Engine):
    """A strategy may return an id for some jobs and None for others, which the database numbers."""
    tables = own_tables("sometimes", Sometimes(-2, -1))
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        ids = [enqueue(session, "tick", tables=tables) for _ in range(4)]

    assert [-1, -2] == ids[:2]
    assert all(job_id > 0 for job_id in ids[2:])
    assert set(ids) == queued_ids(engine, tables)


def test_an_id_is_never_given_again(engine: sa.Engine, tables: JobTables):
    """The next id is greater than all before it, though their jobs have left the table: the archive keeps each job's outcome."""
    seen: list[int] = []
    for number in range(4):
        with Session(engine) as session, session.begin():
            seen.append(enqueue(session, f"type-{number}", tables=tables))
        process_next_job(engine, lambda job_type, payload: None, tables=tables)
        assert [] == queued(engine, tables)

    assert seen == sorted(set(seen))
    assert [(job_id, f"type-{number}") for number, job_id in enumerate(seen)] == [
        (row.job_id, row.job_type) for row in archived(engine, tables)
    ]


def test_an_id_is_not_given_again_by_another_connection(database: Any, engine: sa.Engine, tables: JobTables):
    """Nor after all connections were closed and the rows were deleted behind our back."""
    with engine.begin() as connection:
        last = enqueue_many(connection, rows(3), tables=tables)[-1]
        connection.execute(sa.delete(tables.job))
    engine.dispose()
    with database.create_engine().begin() as connection:
        following = enqueue(connection, "tick", tables=tables)

    assert last < following
