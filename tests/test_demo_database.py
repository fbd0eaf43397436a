"""The demo's database: what it makes, what it leaves alone, and what it says about a URL that is of no use."""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from examples.demo import run as demo
from examples.demo.app import Base, User
from examples.demo.database import VERSION_TABLE, CannotRunError, install, installed
from examples.demo.people import People
from proletarian_sa import Job, create_all, default_tables, drop_all
from proletarian_sa.dialects.schema_names import effective_schema
from tests.catalogue import catalogue
from tests.demo_table import everything
from tests.servers.database import Database


def test_tables_that_were_there_stay(queue_engine: sa.Engine) -> None:
    """Tables that the demo did not make are left where they are, even if nothing is in them."""
    Base.metadata.create_all(queue_engine)
    with installed(queue_engine, People()):
        pass

    assert {"users": set(), "queued": set(), "archived": set()} == everything(queue_engine)


def test_tables_that_others_use_meanwhile_stay(engine: sa.Engine) -> None:
    """Tables that the demo made are left where they are if somebody else's rows are in them by then."""
    with installed(engine, People()), Session(engine) as session, session.begin():
        session.add_all([User(name="Ada", email="ada@elsewhere.example"), Job(job_type="other", payload="waits")])

    assert {"users": {"ada@elsewhere.example"}, "queued": {"'waits'"}, "archived": set()} == everything(engine)


def test_what_it_installs_is_what_the_models_say(engine: sa.Engine) -> None:
    """The demo's revisions make the queue's tables as `create_all` does, and its own as its models do."""
    with installed(engine, People()):
        queue, users = catalogue(engine, default_tables), columns_of_users(engine)
    create_all(engine)
    Base.metadata.create_all(engine)

    assert catalogue(engine, default_tables) == queue
    assert columns_of_users(engine) == users


def columns_of_users(engine: sa.Engine) -> dict[str, Any]:
    """Return what the demo's own table looks like."""
    inspector, name = sa.inspect(engine), User.__tablename__
    columns = [(column["name"], str(column["type"]), column["nullable"]) for column in inspector.get_columns(name)]
    unique = [constraint["column_names"] for constraint in inspector.get_unique_constraints(name)]
    return {"columns": columns, "unique": unique, "key": inspector.get_pk_constraint(name)["constrained_columns"]}


def test_another_history_stays(queue_engine: sa.Engine) -> None:
    """Where an application's own Alembic has made the tables, its version table stays as it is, and the demo's goes."""
    theirs = sa.Table("alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32)))
    theirs.create(queue_engine)
    with queue_engine.begin() as connection:
        connection.execute(theirs.insert().values(version_num="theirs"))
    before = {*sa.inspect(queue_engine).get_table_names()}
    with installed(queue_engine, People()):
        meanwhile = {*sa.inspect(queue_engine).get_table_names()}
    with queue_engine.connect() as connection:
        versions = connection.scalars(sa.select(theirs.c.version_num)).all()

    assert ["theirs"] == versions
    assert before | {VERSION_TABLE, User.__tablename__} == meanwhile
    assert before == {*sa.inspect(queue_engine).get_table_names()}


def test_run_that_was_killed_is_no_hindrance(engine: sa.Engine) -> None:
    """What a killed run has noted in its version table is not believed: the tables may have gone since."""
    install(engine)
    drop_all(engine)
    with installed(engine, People()):
        before = everything(engine)

    assert {"users": set(), "queued": set(), "archived": set()} == before
    assert [User.__tablename__] == sa.inspect(engine).get_table_names()  # which the second run has found


def test_install_that_fails_leaves_nothing(engine: sa.Engine) -> None:
    """Where another table has an index of the name, and the database allows a name only once, nothing of the demo is left."""
    with engine.begin() as connection:
        schema = effective_schema(connection, default_tables.job.schema)
        if schema:
            connection.execute(sa.schema.CreateSchema(schema))
        theirs = sa.Table("theirs", sa.MetaData(), sa.Column("id", sa.Integer), schema=schema)
        sa.Index("archived_job_finished_at", theirs.c.id)
        theirs.create(connection)
    try:
        with installed(engine, People()):
            pass
    except CannotRunError as error:
        assert "archived_job_finished_at" in str(error)  # noqa: PT017 - MySQL and MariaDB do not raise

    assert {"theirs"} == {*sa.inspect(engine).get_table_names(), *sa.inspect(engine).get_table_names(schema)}


@pytest.mark.parametrize(("name", "named"), [("demo_user", "demo_user"), ("job", "job"), ("archived_job", "job")])
def test_foreign_tables_are_refused(
    database: Database, engine: sa.Engine, name: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table that only has the name of one of the demo's makes it refuse in one line, and nothing is changed."""
    with engine.begin() as connection:
        schema = effective_schema(connection, default_tables.job.schema) if name != "demo_user" else None
        theirs = sa.Table(name, sa.MetaData(), sa.Column("id", sa.Integer), schema=schema)
        if schema:
            connection.execute(sa.schema.CreateSchema(schema))
        theirs.create(connection)
    code = demo.main([database.url_text])
    out, error = capsys.readouterr()

    assert (2, "") == (code, out)
    assert 1 == error.count("\n")
    assert f"{named} " in error
    assert "Type: make demo" in error
    assert [name] == sa.inspect(engine).get_table_names(schema)
    assert ["id"] == [column["name"] for column in sa.inspect(engine).get_columns(name, schema)]


WRONG = {
    "foo": "not a database URL",
    "postgresql+psycopg://u:secret@127.0.0.1:abc/name": "not a database URL",
    "oracle://u:secret@127.0.0.1/name": "none of PostgreSQL, MySQL, MariaDB and SQLite",
    "sqlite://": "in memory",
    "sqlite:////no/such/folder/demo.db": "unable to open database file",
    "postgresql+psycopg_async://u:secret@127.0.0.1/name": "asynchronous driver",
    "mysql+nosuch://u:secret@127.0.0.1/name": "mysql.nosuch",
    "mysql+pymysql://u:secret@127.0.0.1/": "names no database",
    "mysql+pymysql://u:secret@127.0.0.1/name?nosuch=1": "nosuch",
}


@pytest.mark.parametrize(("url", "reason"), WRONG.items())
def test_wrong_url(url: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A URL that cannot be used is answered by one line that says why and what to type."""
    code = demo.main([url])
    out, error = capsys.readouterr()

    assert (2, "") == (code, out)
    assert 1 == error.count("\n")
    assert error.startswith("demo: ")
    assert reason in error
    assert "Type: make demo" in error


@pytest.mark.parametrize("change", [{"port": 1}, {"database": "no_such_database"}])
def test_server_that_does_not_answer(database: Database, change: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A server or database that is not there is answered by one line, without the password, with a URL of its kind to type."""
    database.require("server")
    url = database.url.set(password="secret", **change)  # noqa: S106 - it is looked for in what is printed
    code = demo.main([url.render_as_string(hide_password=False)])
    out, error = capsys.readouterr()

    assert (2, "") == (code, out)
    assert 1 == error.count("\n")
    assert "does not answer" in error
    assert "secret" not in error
    assert f"Type: make demo DATABASE_URL={url.drivername}://user:password@localhost/name\n" in error
