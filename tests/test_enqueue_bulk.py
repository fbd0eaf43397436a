"""Bulk enqueue takes the fastest way that does the same as single inserts: COPY, arrays, or statements of many rows."""

import asyncio
import datetime as dt
import itertools
import tracemalloc
import uuid
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, mapped_column

from proletarian_sa import JobTables, ManualClock, UUIDv7, create_all, enqueue, enqueue_many
from tests.bulk import CHUNK, COPY, FEW, MANY, SOME, VALUES, fastest, rows, tables_with, ways
from tests.queue_contents import Base, User, queued, queued_ids

pytestmark = pytest.mark.async_drivers

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
LAST = dt.datetime.max.replace(tzinfo=dt.UTC)


@pytest.mark.parametrize("count", [FEW, SOME, MANY])
def test_the_way_that_a_database_has(queue_engine: sa.Engine, database: Any, count: int):
    """Many rows go by COPY, fewer as arrays; very few, and where a database has neither, in a statement of many rows."""
    with ways(queue_engine) as taken:
        with queue_engine.begin() as connection:
            enqueue_many(connection, rows(count))
            enqueue_many(connection, iter(rows(count)))
        with Session(queue_engine) as session, session.begin():
            enqueue_many(session, rows(count))

    assert [fastest(database, count)] * 3 == taken
    assert 3 * count == len(queued(queue_engine))


def test_few_rows_that_are_long(queue_engine: sa.Engine, database: Any):
    """A kibibyte of payload counts as a row: few long rows are worth a COPY as many short ones are."""
    with ways(queue_engine) as taken, queue_engine.begin() as connection:
        enqueue_many(connection, rows(FEW, payload="x" * (1024 * MANY // FEW)))

    assert [fastest(database, MANY)] == taken


@pytest.mark.plain_drivers
@pytest.mark.parametrize("given", [list, iter])
def test_statements_of_many_chunks(queue_engine: sa.Engine, database: Any, given: Any):
    """Whatever the number of rows: the clock is read once, and COPY asked for once.

    A chunk is one statement; a list is one COPY. An iterator is none: what makes its rows may need the connection.
    """
    sent: list[str] = []
    sa.event.listen(queue_engine, "before_cursor_execute", lambda *arguments: sent.append(arguments[2].split()[0]))
    with queue_engine.begin() as connection:
        enqueue_many(connection, given(rows(2 * CHUNK + 1)))

    chunk = "COPY" if database.copy else "INSERT"
    asked = {"postgresql": 2, "sqlite": 0}.get(queue_engine.dialect.name, 1)
    statements = 1 if database.copy and given is list else 3
    assert ["SELECT"] * asked + [chunk] * statements == [verb for verb in sent if verb in {"SELECT", "INSERT", "COPY"}]


class Shout:
    """A serializer whose texts are neither ASCII nor JSON."""

    def encode(self, value: Any) -> str:
        return f"¡{value}!"

    def decode(self, text: str) -> Any:
        return text[1:-1]


@pytest.mark.parametrize("count", [FEW, SOME, MANY])
def test_every_way_stores_the_same(engine: sa.Engine, count: int):
    """Ids, names, payloads and times come back as they were given, however many rows there are."""
    tables = JobTables(serializer=Shout(), clock=ManualClock(NOW))
    create_all(engine, tables=tables)
    given: list[dict[str, Any]] = [
        {"job_type": "plain"},
        {"job_type": "späť 🦀", "queue": "x" * 255, "payload": "🦀\n\t\\N\\.\"'é"},
        {"job_type": "early", "process_at": NOW - dt.timedelta(days=1), "payload": ""},
        {"job_type": "zoned", "process_at": NOW.astimezone(dt.timezone(dt.timedelta(hours=5))) + dt.timedelta(microseconds=7)},
        {"job_type": "last", "process_at": LAST, "job_id": uuid.UUID(int=2**128 - 1)},
        {"job_type": "delayed", "process_in": dt.timedelta(days=365_000, microseconds=1), "queue": "other"},
        *rows(count, process_in=-1, payload="p" * 3000),
    ]
    with engine.begin() as connection:
        ids = enqueue_many(connection, given, tables=tables)
        stored = {row.job_id: row for row in connection.execute(sa.select(tables.job))}

    spread = itertools.count(2)  # after "plain" and "späť 🦀", and "early", which are due now as well
    due = {
        "plain": NOW,
        "späť 🦀": NOW + dt.timedelta(microseconds=1),
        "early": NOW + dt.timedelta(microseconds=next(spread)),
        "zoned": NOW + dt.timedelta(microseconds=7),
        "last": LAST,
        "delayed": NOW + dt.timedelta(days=365_000, microseconds=1),
    }
    for job_id, row in zip(ids, given, strict=True):
        found = stored[job_id]
        expected = (row["job_type"], row.get("queue", "default"), f"¡{row.get('payload')}!", 0, NOW)
        assert expected == (found.job_type, found.queue, found.payload, found.attempts, found.enqueued_at)
        if row["job_type"] in due:
            assert due[row["job_type"]] == found.process_at
        else:
            assert NOW + dt.timedelta(microseconds=next(spread)) == found.process_at
    assert len(given) == len(stored)


def test_what_is_checked_quickly_is_checked(queue_engine: sa.Engine):
    """Rows may be mappings of any kind; a name is refused also after good ones, an id also where its maker looks like ours."""

    class Wrong(UUIDv7):
        def new(self) -> Any:
            return "7"

    with queue_engine.connect() as connection:
        for queue, error in ([[], TypeError], [f"{CHUNK} ", ValueError], [None, TypeError], [5, TypeError]):
            with pytest.raises(error, match=r"rows\[2\]: queue"):
                enqueue_many(connection, [*rows(2), {"job_type": "tick", "queue": queue}])
        with pytest.raises(TypeError, match=r"rows\[0\]: job_id must be"):
            enqueue_many(connection, rows(1), tables=JobTables(job_ids=Wrong()))
        ids = enqueue_many(connection, [MappingProxyType(row) for row in rows(MANY)])

        assert ids == [row.job_id for row in queued(connection)]


def test_jobs_are_due_in_order_however_they_came(queue_engine: sa.Engine):
    """Jobs are due in the order in which they were enqueued, whichever ways they took."""
    with queue_engine.begin() as connection:
        ids = [job_id for count in (SOME, FEW, MANY) for job_id in enqueue_many(connection, rows(count))]
        ids.append(enqueue(connection, "tick"))
    stored = queued(queue_engine)

    assert ids == [row.job_id for row in stored]
    assert [*map(str, [*range(SOME), *range(FEW), *range(MANY)]), "null"] == [row.payload for row in stored]


def test_defaults_of_own_columns(engine: sa.Engine, database: Any):
    """A column of the application's gets its server default; a default that Python makes is made for each row, as ever."""
    numbers = itertools.count(1)
    by_server = tables_with(engine, {"region": mapped_column(sa.String(10), server_default="eu"), "__tablename__": "one"})
    with engine.begin() as connection, ways(engine) as taken:
        for count in (FEW, SOME, MANY):
            enqueue_many(connection, rows(count), tables=by_server)
        found = {row.region for row in queued(connection, by_server)}
    assert {"eu"} == found
    assert [fastest(database, count) for count in (FEW, SOME, MANY)] == taken

    by_python = tables_with(engine, {"number": mapped_column(sa.Integer, default=lambda: next(numbers)), "__tablename__": "two"})
    with engine.begin() as connection, ways(engine) as taken:
        enqueue_many(connection, rows(MANY), tables=by_python)
        found = {row.number for row in queued(connection, by_python)}
    assert set(range(1, MANY + 1)) == found
    assert {VALUES} == set(taken)


class Upper(sa.TypeDecorator[str]):
    """Text in capitals."""

    impl = sa.String(255)
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value.upper()


class Reversed(sa.TypeDecorator[uuid.UUID]):
    """Ids that are stored as another value, by a type of the application's."""

    impl = sa.Uuid().with_variant(sa.BINARY(16), "mysql", "mariadb")
    cache_ok = True

    def process_bind_param(self, value: uuid.UUID | None, dialect: Any) -> Any:
        stored = None if value is None else uuid.UUID(bytes=value.bytes[::-1])
        return stored if stored is None or dialect.name not in ("mysql", "mariadb") else stored.bytes

    def process_result_value(self, value: Any, dialect: Any) -> uuid.UUID | None:
        return None if value is None else uuid.UUID(bytes=(value if isinstance(value, bytes) else value.bytes)[::-1])


@pytest.mark.parametrize("count", [FEW, SOME, MANY])
def test_own_types_see_their_values(engine: sa.Engine, count: int):
    """A type that the application gave a column, or its ids, converts the values of many rows as those of one."""
    loud = tables_with(engine, {"queue": mapped_column(Upper, nullable=False), "__tablename__": "loud"})
    ids = type("Ids", (), {"column_type": Reversed(), "new": staticmethod(uuid.uuid4)})()
    turned = JobTables(schema=None, job_table="turned", archived_job_table="turned_done", job_ids=ids)
    create_all(engine, tables=turned)
    with engine.begin() as connection, ways(engine) as taken:
        enqueue_many(connection, rows(count, queue="shop"), tables=loud)
        made = enqueue_many(connection, rows(count), tables=turned)
        assert {"SHOP"} == {row.queue for row in queued(connection, loud)}
        assert made == [row.job_id for row in queued(connection, turned)]
        assert COPY not in taken
        stored = connection.execute(sa.select(sa.type_coerce(turned.job.c.job_id, sa.String))).scalars().first()

    assert str(stored) not in {str(job_id) for job_id in made}


@pytest.mark.parametrize("count", [FEW, SOME, MANY])
def test_a_refused_row_leaves_the_session_usable(queue_engine: sa.Engine, count: int):
    """What the database refuses is SQLAlchemy's own error; inside a savepoint the transaction goes on."""
    Base.metadata.create_all(queue_engine)
    twice = uuid.uuid4()
    with Session(queue_engine) as session, session.begin():
        kept = enqueue(session, "kept")
        session.flush()
        for given in (rows(count) + 2 * rows(1, job_id=twice), rows(count) + rows(1, job_id=kept)):
            with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
                enqueue_many(session, given)
            with pytest.raises(sa.exc.IntegrityError):
                enqueue_many(session, iter(given))
        session.add(User(name="after"))
        many = enqueue_many(session, rows(count))

    assert {kept, *many} == queued_ids(queue_engine)


@pytest.mark.parametrize("count", [FEW, SOME, MANY])
def test_checks_of_the_application(engine: sa.Engine, count: int):
    """A CHECK constraint of the application's sees each row."""
    tables = tables_with(engine, {"__tablename__": "checked"}, sa.CheckConstraint("queue <> 'nobody'", name="somebody"))
    with engine.connect() as connection:
        enqueue_many(connection, rows(count), tables=tables)
        with pytest.raises(sa.exc.DBAPIError, match="somebody") as caught:
            enqueue_many(connection, [*rows(count), *rows(1, queue="nobody")], tables=tables)

    assert isinstance(caught.value, sa.exc.IntegrityError | sa.exc.OperationalError)


def test_autocommit(queue_engine: sa.Engine, database: Any):
    """On a connection in autocommit a list is there at once."""
    with queue_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection, ways(queue_engine) as taken:
        ids = enqueue_many(connection, rows(MANY))
        assert set(ids) == queued_ids(queue_engine)

    assert [fastest(database, MANY)] == taken


def test_two_phases(queue_engine: sa.Engine, database: Any):
    """Rows belong to a transaction that is prepared first, and rolled back or committed later."""
    database.require("two_phase")
    with queue_engine.connect() as connection:
        lost = connection.begin_twophase()
        enqueue_many(connection, rows(MANY))
        lost.prepare()
        lost.rollback()
        kept = connection.begin_twophase()
        ids = enqueue_many(connection, rows(MANY))
        kept.prepare()
        kept.commit()

    assert set(ids) == queued_ids(queue_engine)


@pytest.mark.plain_drivers
def test_asyncio(queue_engine: sa.Engine, database: Any):
    """An AsyncSession and an AsyncConnection take the same ways, lists and iterators alike, and their transactions decide."""

    async def work() -> tuple[list[str], set[Any]]:
        engine = create_async_engine(database.async_url)
        try:
            with ways(engine.sync_engine) as taken:
                async with AsyncSession(engine) as session, session.begin():
                    kept = set(await enqueue_many(session, rows(MANY)))
                    with pytest.raises(sa.exc.IntegrityError):
                        async with session.begin_nested():
                            await enqueue_many(session, [*rows(MANY), *rows(1, job_id=next(iter(kept)))])
                async with engine.connect() as connection:
                    await enqueue_many(connection, iter(rows(MANY)))
                    await connection.rollback()
                    kept |= set(await enqueue_many(connection, rows(MANY)))
                    await _first(connection)
                    await connection.commit()
            return taken, kept
        finally:
            await engine.dispose()

    taken, kept = asyncio.run(work())
    assert {fastest(database, MANY)} == set(taken)
    assert 4 == len(taken)
    assert kept == queued_ids(queue_engine)


async def _first(connection: AsyncConnection) -> Any:
    return (await connection.execute(sa.text("SELECT 1"))).scalar()


def test_an_iterator_takes_constant_memory(queue_engine: sa.Engine):
    """Of an iterator's rows no more than a chunk lies in memory, whatever their number."""
    size, count = 20_000, 700

    def stream() -> Iterator[dict[str, Any]]:
        for number in range(count):
            yield {"job_type": "tick", "payload": f"{number:0{size}}"}

    with queue_engine.connect() as connection:
        enqueue_many(connection, iter(rows(MANY)))  # what is made once
        tracemalloc.start()
        try:
            assert count == enqueue_many(connection, stream())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert peak < count * size / 2  # a chunk of one mebibyte, in several forms at a time
