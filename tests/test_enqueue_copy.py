"""COPY is used only where it does what INSERT does, and SQLAlchemy's hooks, log and errors see it as any other statement."""

import itertools
import logging
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, mapped_column

from proletarian_sa import DatabaseIds, JobTables, ManualClock, create_all, enqueue_many
from tests.bulk import ARRAYS, COPY, FEW, MANY, VALUES, rows, tables_with, ways
from tests.queue_contents import Base, User, queued, queued_ids
from tests.roles import role_with
from tests.test_enqueue_bulk import NOW


@pytest.fixture(autouse=True)
def needs_copy(database: Any) -> None:
    """Skip where no rows can be streamed in."""
    database.require("copy")


def ways_of(engine: sa.Engine, **options: Any) -> list[str]:
    """Enqueue many jobs and return how they were inserted."""
    with ways(engine) as taken, engine.begin() as connection:
        ids = enqueue_many(connection, rows(MANY), **options)
        assert set(ids) <= queued_ids(connection, **options)
    return taken


def test_row_level_security(queue_engine: sa.Engine, database: Any):
    """Where the table has policies for this role, which COPY is refused, rows come as arrays, and the policies hold."""
    role = role_with(database, "--role")
    assert [COPY] == ways_of(role)
    with queue_engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE proletarian.job ENABLE ROW LEVEL SECURITY")
        connection.exec_driver_sql("CREATE POLICY mine ON proletarian.job USING (queue <> 'theirs')")

    assert [ARRAYS] == ways_of(role)
    assert [COPY] == ways_of(queue_engine)
    with role.connect() as connection, pytest.raises(sa.exc.ProgrammingError, match="row-level security"):
        enqueue_many(connection, rows(MANY, queue="theirs"))


def test_a_role_that_only_enqueues(queue_engine: sa.Engine, database: Any):
    """The printed rights of a role that only enqueues are enough for COPY."""
    role = role_with(database, "--enqueue-role")
    with ways(role) as taken, role.begin() as connection:
        ids = enqueue_many(connection, rows(MANY))

    assert [COPY] == taken
    assert set(ids) == queued_ids(queue_engine)


def test_rules_of_the_table(queue_engine: sa.Engine):
    """COPY would pass by a rule of the application's."""
    with queue_engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE seen (job_type text)")
        connection.exec_driver_sql("CREATE RULE see AS ON INSERT TO proletarian.job DO ALSO INSERT INTO seen VALUES (NEW.job_type)")

    assert [ARRAYS] == ways_of(queue_engine)
    with queue_engine.connect() as connection:
        assert MANY == connection.scalar(sa.text("SELECT count(*) FROM seen"))


def test_a_view_in_place_of_the_table(queue_engine: sa.Engine):
    """What looks like the table may be a view, into which nothing is copied."""
    with queue_engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE proletarian.job RENAME TO all_jobs")
        connection.exec_driver_sql("CREATE VIEW proletarian.job AS SELECT * FROM proletarian.all_jobs")

    assert [ARRAYS] == ways_of(queue_engine)


def test_no_table(engine: sa.Engine):
    """A missing table is the same error as without COPY."""
    with engine.connect() as connection, pytest.raises(sa.exc.ProgrammingError, match="does not exist") as caught:
        enqueue_many(connection, rows(MANY))

    assert "INSERT INTO proletarian.job" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        "attempts TYPE bigint",
        "process_at TYPE timestamptz(3)",
        "payload TYPE varchar",
        "queue TYPE char(20)",
    ],
)
def test_columns_of_other_types(queue_engine: sa.Engine, change: str):
    """Where the application has changed a column, rows arrive nevertheless: binary COPY needs the very types."""
    with queue_engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE proletarian.job ALTER {change}")
    same = {"process_at TYPE timestamptz(3)", "payload TYPE varchar"}

    assert [COPY if change in same else ARRAYS] == ways_of(queue_engine)


def test_triggers(queue_engine: sa.Engine):
    """A trigger of the application's sees each row that is copied, and may change it."""
    with queue_engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION high() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.queue := 'high'; RETURN NEW; END $$"
        )
        connection.exec_driver_sql("CREATE TRIGGER high BEFORE INSERT ON proletarian.job FOR EACH ROW EXECUTE FUNCTION high()")

    assert [COPY] == ways_of(queue_engine)
    assert {"high"} == {row.queue for row in queued(queue_engine)}


def test_text_in_another_encoding(queue_engine: sa.Engine, database: Any):
    """A connection whose text is not UTF-8 is given arrays, which the driver encodes."""
    latin = database.create_engine(connect_args={"client_encoding": "latin1"})
    with ways(latin) as taken, latin.begin() as connection:
        enqueue_many(connection, rows(MANY, queue="späť".replace("ť", "t")))

    assert [ARRAYS] == taken
    assert {"spät"} == {row.queue for row in queued(queue_engine)}


def test_pipeline_mode(engine: sa.Engine):
    """In psycopg's pipeline mode, where COPY is refused, rows come as arrays."""
    tables = JobTables(clock=ManualClock(NOW))  # a statement whose answer is waited for has no place in a pipeline
    create_all(engine, tables=tables)
    with ways(engine) as taken, engine.begin() as connection:
        with connection.connection.driver_connection.pipeline():
            ids = enqueue_many(connection, rows(MANY), tables=tables)
        ids += enqueue_many(connection, rows(MANY), tables=tables)

    assert [ARRAYS, COPY] == taken
    assert set(ids) == queued_ids(engine)


def test_another_driver(queue_engine: sa.Engine, database: Any):
    """Other drivers are given arrays."""
    pytest.importorskip("asyncpg", reason="no asyncpg")
    import asyncio  # noqa: PLC0415 - beside the driver that needs it

    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - see above

    async def work() -> tuple[list[str], list[Any]]:
        engine = create_async_engine(database.url.set(drivername="postgresql+asyncpg"))
        try:
            with ways(engine.sync_engine) as taken:
                async with engine.begin() as connection:
                    return taken, await enqueue_many(connection, rows(MANY, process_in=1, payload="é"))
        finally:
            await engine.dispose()

    taken, ids = asyncio.run(work())
    assert [ARRAYS] == taken
    assert set(ids) == queued_ids(queue_engine)


class Given:
    """Ids of a type, from an iterator."""

    def __init__(self, column_type: Any, ids: Iterator[Any]) -> None:
        self.column_type = column_type
        self.new = lambda: next(ids)


class Checked(Given):
    """The same, with a check of its own, which may let any type pass."""

    def check(self, value: Any) -> None:
        """Take anything."""


NUMBERS, WORDS = itertools.count(2**63 - 10_000), (f"é-{number:09}" for number in itertools.count())


@pytest.mark.parametrize(
    ("ids", "way"),
    [
        (Given(sa.BigInteger(), NUMBERS), COPY),
        (Given(sa.String(26), WORDS), COPY),
        (Given(sa.Uuid(), (uuid.uuid4() for _ in itertools.count())), COPY),
        (Given(sa.Uuid(as_uuid=False), (str(uuid.uuid4()) for _ in itertools.count())), ARRAYS),
        (Given(sa.Numeric(30), map(Decimal, NUMBERS)), ARRAYS),
        (Checked(sa.String(26), WORDS), ARRAYS),
    ],
    ids=["numbers", "words", "uuids", "uuids as text", "decimals", "checked"],
)
def test_kinds_of_ids(engine: sa.Engine, ids: Any, way: str):
    """UUIDs, text and numbers of 64 bits are copied; ids of other types, or of uncertain ones, are not."""
    tables = JobTables(job_ids=ids)
    create_all(engine, tables=tables)

    assert [way] == ways_of(engine, tables=tables)


def test_ids_that_the_database_makes(engine: sa.Engine):
    """They are asked for where they are wanted, in order; an iterator's rows come as arrays and are numbered in order."""
    tables = JobTables(job_ids=DatabaseIds())
    create_all(engine, tables=tables)
    with engine.begin() as connection, ways(engine) as taken:
        first = enqueue_many(connection, rows(MANY), tables=tables)
        enqueue_many(connection, iter(rows(MANY)), tables=tables)
        enqueue_many(connection, iter(rows(MANY, job_id=None) + rows(1, job_id=-1) + rows(FEW)), tables=tables)
        stored = [row.job_id for row in queued(connection, tables) if row.job_id > 0]

    assert [VALUES, *[ARRAYS] * 4] == taken
    assert sorted(stored) == stored
    assert first == stored[:MANY]


@pytest.mark.parametrize("name", ['Jo"b 100%', "%s%%", "select", "größe"])
def test_names_that_need_quotes(engine: sa.Engine, database: Any, name: str):
    """The table is found under any name, in any schema, and where the connection's `schema_translate_map` says."""
    tables = JobTables(schema="elsewhere", job_table=name)
    moved = engine.execution_options(schema_translate_map={"elsewhere": database.create_schema()})
    create_all(moved, tables=tables)

    assert [COPY] == ways_of(moved, tables=tables)


def test_a_temporary_table_that_hides_ours(engine: sa.Engine):
    """The table is the one that an INSERT would find: a schema of None is wherever the connection looks first."""
    tables = tables_with(engine, {"__tablename__": "task"})
    with engine.begin() as connection, ways(engine) as taken:
        connection.exec_driver_sql("CREATE TEMPORARY TABLE task (LIKE public.task INCLUDING ALL)")
        ids = enqueue_many(connection, rows(MANY), tables=tables)
        assert set(ids) == queued_ids(connection, tables)
        connection.exec_driver_sql("DROP TABLE pg_temp.task")
        assert set() == queued_ids(connection, tables)

    assert [COPY] == taken


def test_python_defaults_of_our_own_columns(engine: sa.Engine):
    """A default that the application has given one of the library's nullable columns is made for each row."""
    numbers = itertools.count()
    column = mapped_column(sa.String(255), default=lambda: f"key {next(numbers)}")
    tables = tables_with(engine, {"unique_key": column})

    assert {VALUES} == set(ways_of(engine, tables=tables))
    assert MANY == len({row.unique_key for row in queued(engine, tables)})


def test_rows_that_come_from_a_server_side_cursor(queue_engine: sa.Engine):
    """An iterator may read from the very connection: between two chunks it is free, though a cursor is open."""
    Base.metadata.create_all(queue_engine)
    count = 2500
    with Session(queue_engine) as session, session.begin():
        session.add_all(User(id=number, name=f"user {number}") for number in range(count))
    with ways(queue_engine) as taken, queue_engine.connect() as connection:
        query = sa.select(User.id).order_by(User.id)
        with connection.execute(query, execution_options={"yield_per": 100}) as users:
            found = enqueue_many(connection, ({"job_type": "greet", "payload": user.id} for user in users))
        connection.commit()

    assert count == found
    assert [COPY] * 3 == taken
    assert [str(number) for number in range(count)] == [row.payload for row in queued(queue_engine)]


def test_a_connection_that_streams(queue_engine: sa.Engine):
    """A connection of which every statement is to be read by a server-side cursor takes a list as others do."""
    with ways(queue_engine) as taken, queue_engine.connect() as connection:
        connection.execution_options(stream_results=True)
        enqueue_many(connection, rows(MANY))
        connection.commit()

    assert [COPY] == taken
    assert MANY == len(queued(queue_engine))


def test_hooks(queue_engine: sa.Engine, caplog: pytest.LogCaptureFixture):
    """`before_cursor_execute` hooks see and change a COPY and may use the connection; others see its end, its error and its log."""
    seen: list[str] = []

    @sa.event.listens_for(queue_engine, "before_cursor_execute", retval=True)
    def before(connection: Any, _cursor: Any, statement: str, parameters: Any, *_others: Any) -> tuple[str, Any]:
        if statement.startswith("COPY"):
            with connection.connection.driver_connection.cursor() as cursor:
                seen.append(cursor.execute("SELECT 'before'").fetchone()[0])
            return f"{statement} /* 100% traced */", parameters
        return statement, parameters

    sa.event.listen(queue_engine, "after_cursor_execute", lambda *arguments: seen.append(arguments[2]))
    sa.event.listen(queue_engine, "handle_error", lambda context: seen.append(type(context.original_exception).__name__))
    twice = uuid.uuid4()
    with caplog.at_level(logging.INFO, "sqlalchemy.engine"), queue_engine.begin() as connection:
        seen.clear()
        enqueue_many(connection, rows(MANY))
        copy, copied = seen[-2:]
        with pytest.raises(sa.exc.IntegrityError, match=r"COPY proletarian\.job .*100% traced"), connection.begin_nested():
            enqueue_many(connection, rows(MANY) + rows(2, job_id=twice))

    assert ("before", True) == (copy, copied.startswith("COPY") and copied.endswith("/* 100% traced */"))
    assert "UniqueViolation" == seen[-2]
    assert any("COPY proletarian.job" in record.getMessage() for record in caplog.records)
    assert MANY == len(queued(queue_engine))


def test_a_cursor_class_of_the_application(queue_engine: sa.Engine, database: Any):
    """An engine whose connections have a cursor class of the application's own has it back after a COPY, and after an error."""
    import psycopg  # noqa: PLC0415 - not everybody has it

    engine = database.create_engine(connect_args={"cursor_factory": psycopg.ClientCursor})
    with engine.begin() as connection:
        driver: Any = connection.connection.driver_connection
        enqueue_many(connection, rows(MANY))
        assert driver.cursor_factory is psycopg.ClientCursor
        with pytest.raises(sa.exc.IntegrityError), connection.begin_nested():
            enqueue_many(connection, rows(MANY) + 2 * rows(1, job_id=uuid.uuid4()))

        assert driver.cursor_factory is psycopg.ClientCursor
    assert MANY == len(queued(queue_engine))


def test_a_connection_that_is_lost(queue_engine: sa.Engine):
    """A COPY whose connection dies is an error that says so, and the pool makes a new one."""
    with queue_engine.connect() as connection:

        @sa.event.listens_for(connection, "before_cursor_execute")
        def kill(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
            if statement.startswith("COPY"):
                with queue_engine.connect() as other:
                    other.execute(sa.text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})

        pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        with pytest.raises(sa.exc.DBAPIError) as caught:
            enqueue_many(connection, rows(MANY))
    assert caught.value.connection_invalidated

    assert [COPY] == ways_of(queue_engine)


def test_a_locked_table(queue_engine: sa.Engine):
    """A time limit of the connection's ends a COPY that waits, as SQLAlchemy's own error, and the savepoint saves the rest."""
    with queue_engine.connect() as other, queue_engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
        other.exec_driver_sql("LOCK TABLE proletarian.job IN EXCLUSIVE MODE")
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"), connection.begin_nested():
            enqueue_many(connection, rows(MANY))
        other.rollback()
        enqueue_many(connection, rows(MANY))

    assert MANY == len(queued(queue_engine))
