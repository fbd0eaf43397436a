"""The servers that the other tests rely on are what their names say."""

import socket
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.servers import ServerMissingError, Servers, start
from tests.servers.administrator import Administrator
from tests.servers.database import Database, new_database


def test_server_is_of_its_kind(database: Database, engine: sa.Engine) -> None:
    """A server answers, and its dialect and version are those of its kind."""
    with engine.connect() as connection:
        answer = connection.scalar(sa.text("SELECT 1"))

    assert 1 == answer
    assert database.kind.removesuffix("-oldest") == engine.dialect.name
    assert ("MariaDB" in database.version) == (database.kind == "mariadb")
    assert database.version.split(".")[0].isdigit()


def test_server_listens_on_loopback_only(database: Database) -> None:
    """No other machine can reach a server that was started here."""
    database.require("server")
    host, port = database.url.host, database.url.port

    assert "127.0.0.1" == host
    assert isinstance(port, int)
    with socket.socket() as other:
        # all of 127/8 is this machine, but a server bound to 127.0.0.1 alone leaves the rest free
        other.bind(("127.0.0.2", port))


def test_database_is_unicode(engine: sa.Engine) -> None:
    """Text outside the basic plane survives the round trip."""
    table = sa.Table("texts", sa.MetaData(), sa.Column("text", sa.String(20)))
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(table.insert(), {"text": "жук 🐞"})

        assert "жук 🐞" == connection.scalar(sa.select(table.c.text))


def test_database_is_new(engine: sa.Engine) -> None:
    """A database begins empty."""
    assert [] == sa.inspect(engine).get_table_names()


def test_database_goes_with_open_transactions(database: Database, administrators: dict[str, Administrator]) -> None:
    """A test that leaves a transaction open hurts no other test: its database is dropped all the same."""
    database.require("server")
    with new_database(database.kind, database.version, administrators[database.kind]) as other:
        connection = other.create_engine().connect()
        sa.Table("things", sa.MetaData(), sa.Column("id", sa.Integer)).create(connection)
        connection.execute(sa.text("SELECT * FROM things"))
    connection.invalidate()

    with pytest.raises(sa.exc.DBAPIError):
        other.create_engine().connect()


def test_database_makes_schemas(database: Database) -> None:
    """Another schema can hold a table of its own."""
    schema = database.create_schema()
    table = sa.Table("things", sa.MetaData(), sa.Column("id", sa.Integer), schema=schema)
    engine = database.create_engine()
    table.create(engine)

    assert ["things"] == sa.inspect(engine).get_table_names(schema=schema)


def test_two_phase_transactions(database: Database, engine: sa.Engine) -> None:
    """A kind that says so can prepare a transaction."""
    database.require("two_phase")
    with engine.connect() as connection, connection.begin_twophase() as transaction:
        connection.execute(sa.text("SELECT 1"))
        transaction.prepare()
        transaction.commit()


def test_locks_can_be_counted(database: Database, engine: sa.Engine, database_kind: str) -> None:
    """MySQL's lock tables are readable, since other tests count locks in them."""
    if database_kind != "mysql":
        pytest.skip("no performance schema")
    with engine.connect() as connection:
        assert isinstance(connection.scalar(sa.text("SELECT count(*) FROM performance_schema.data_locks")), int)


def test_missing_server_says_what_would_help(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kind that is not to be had is remembered, and the reason names the cure."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PROLETARIAN_CACHE", str(tmp_path))
    monkeypatch.delenv("PROLETARIAN_TEST_MYSQL_URL", raising=False)
    monkeypatch.setattr("tests.servers.programs.SERVER_FOLDERS", ())

    with pytest.raises(ServerMissingError, match="run tests/setup"):
        start("mysql")
    with pytest.raises(ServerMissingError):
        Servers({"mysql": ServerMissingError("told before")}).get("mysql")
