"""What errors of the drivers for asyncio mean for us: each says what the driver for threads says."""

import socket
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import default_tables
from proletarian_sa.dialects import Statements, statements_for
from proletarian_sa.own_connection import OwnConnection
from tests.observing import end_session, session_id
from tests.queue_contents import User

pytestmark = pytest.mark.async_drivers

JUDGEMENTS = ("transient", "transaction_death", "lost_race", "missing_table", "lost_savepoint", "foreign_key_violation")


def judged(engine: sa.Engine, error: BaseException) -> set[str]:
    """Return what is true of an error."""
    statements: Statements = statements_for(engine.dialect, default_tables)
    waited = {"waited"} if statements.has_waited(error) else set()
    return {name for name in JUDGEMENTS if getattr(statements, f"is_{name}")(error)} | waited


def test_a_missing_table(engine: sa.Engine):
    """A table that is not there is no matter of waiting."""
    with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError) as caught:
        connection.execute(sa.select(default_tables.job))

    assert {"missing_table"} == judged(engine, caught.value)


def test_a_savepoint_that_is_gone(app_engine: sa.Engine):
    """A savepoint is gone where something has ended the transaction under it."""
    with app_engine.connect() as connection:
        connection.execute(sa.insert(User).values(name="first"))
        savepoint = connection.begin_nested()
        connection.exec_driver_sql("ROLLBACK")
        with pytest.raises(sa.exc.DBAPIError) as caught:
            savepoint.rollback()

    assert {"lost_savepoint"} == judged(app_engine, caught.value)


def test_a_lock_that_is_waited_for_in_vain(database: Any, app_engine: sa.Engine):
    """A lock that somebody else has for too long is waited for again."""
    patience = {"postgresql": "SET LOCAL lock_timeout = '50ms'", "sqlite": "PRAGMA busy_timeout = 50"}
    with app_engine.begin() as connection:
        connection.execute(sa.insert(User).values(id=1, name="first"))
    other_engine = database.create_engine()
    with app_engine.connect() as one, other_engine.connect() as other:
        one.execute(sa.update(User).values(name="mine"))
        other.exec_driver_sql(patience.get(app_engine.dialect.name, "SET SESSION innodb_lock_wait_timeout = 1"))
        with pytest.raises(sa.exc.DBAPIError) as caught:
            other.execute(sa.update(User).values(name="theirs"))
        other.rollback()

    expected = {"transient", "waited"} if database.row_locks else {"transient", "transaction_death"}
    assert expected == judged(app_engine, caught.value)


def test_a_connection_that_is_lost(database: Any, app_engine: sa.Engine):
    """A connection that the server has ended ends the transaction, and the next one may do."""
    database.require("server")
    with app_engine.connect() as connection:
        end_session(app_engine, session_id(connection))
        with pytest.raises(sa.exc.DBAPIError) as caught:
            connection.execute(sa.select(User))

    assert caught.value.connection_invalidated
    assert {"transient", "transaction_death"} == judged(app_engine, caught.value)


def unheard(port: int) -> dict[str, Any]:
    """Nobody listens there."""
    return {"host": "127.0.0.1", "port": port}


def unknown(_port: int) -> dict[str, Any]:
    """There is no such host."""
    return {"host": "no-such-host.invalid"}


@pytest.mark.parametrize("place", [unheard, unknown])
def test_a_server_that_is_not_there(database: Any, engine: sa.Engine, place: Any):
    """A server that cannot be reached is waited for, whatever the driver raises: asyncpg lets the system's own errors through."""
    database.require("server")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    own = OwnConnection(database.create_engine_at(**place(port)))
    with pytest.raises(sa.exc.DBAPIError) as caught:
        own.begin()

    assert {"transient"} == judged(engine, caught.value)


def test_a_log_in_that_is_refused(database: Any, engine: sa.Engine):
    """A role that may not log in is waited for: an operator is at it."""
    database.require("roles")
    own = OwnConnection(database.create_engine_as("nobody_of_this_name"))
    with pytest.raises(sa.exc.DBAPIError) as caught:
        own.begin()

    assert {"transient"} == judged(engine, caught.value)


def test_a_statement_that_the_driver_gives_up(database: Any, engine: sa.Engine):
    """The limit that asyncpg itself has for statements is a time-out like any other."""
    if database.async_driver != "postgresql+asyncpg":
        pytest.skip("no limit of the driver's own")
    with database.create_engine(connect_args={"command_timeout": 0.05}).connect() as connection:
        with pytest.raises((TimeoutError, sa.exc.DBAPIError)) as caught:
            connection.exec_driver_sql("SELECT pg_sleep(5)")
        connection.invalidate()

    assert "transient" in judged(engine, caught.value)


def test_a_plan_that_is_out_of_date(app_engine: sa.Engine, database: Any):
    """DDL that makes prepared statements invalid is no worker's end: the next try prepares them anew."""
    database.require("listen")
    with app_engine.connect() as connection:
        names = sa.select(User.name)
        for _ in range(7):  # psycopg prepares what comes often
            connection.execute(names).all()
        connection.commit()
        with app_engine.begin() as other:
            other.exec_driver_sql("ALTER TABLE users ALTER name TYPE text")
        with pytest.raises(sa.exc.DBAPIError) as met:
            connection.execute(names).all()
        connection.rollback()

        assert [] == connection.execute(names).all()
    assert {"transient"} == judged(app_engine, met.value)


def test_a_prepared_statement_that_another_session_has(engine: sa.Engine, database: Any):
    """Behind a pooler that mixes sessions the advice is that for the driver."""
    database.require("listen")
    with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError) as caught:
        connection.exec_driver_sql("EXECUTE nothing_of_this_name")
    advice = statements_for(engine.dialect, default_tables).advice(caught.value)

    assert advice is not None
    asyncpg = database.async_driver == "postgresql+asyncpg"
    assert ("statement_cache_size" if asyncpg else "prepare_threshold") in advice
