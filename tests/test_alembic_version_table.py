"""Alembic's own table in the queue's schema, on a database in which that schema is not there yet."""

# ruff: noqa: F811 - fixtures are imported

import re
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import JobTables, check_tables, enqueue
from tests.alembic_projects import Project, app, executed  # noqa: F401 - a fixture among them
from tests.native_client import feed
from tests.servers.database import new_name
from tests.test_tables import tables_there

pytestmark = pytest.mark.long


@pytest.fixture
def schema(database: Any, engine: sa.Engine) -> Iterator[str]:
    """Return the name of a schema that is not there."""
    database.require("schemas")
    if engine.dialect.name == "postgresql":
        yield "proletarian"
        return
    database.created_schemas.append(new_name())
    yield str(database.created_schemas[-1])
    with engine.begin() as connection:  # what is dropped after the test must be there
        connection.execute(sa.schema.CreateSchema(database.created_schemas[-1], if_not_exists=True))


@pytest.fixture
def project(app: Project, schema: str) -> Project:
    """Let the project have its version table in the queue's schema, and look at all schemas."""
    options = f"version_table_schema={schema!r}, include_schemas=True"
    app.replace(app.env, "connection=connection,", f"connection=connection, {options},")
    app.replace(app.env, "url=url,", f"url=url, {options},")
    app.write("--schema", schema)
    return app


def make_it_first(project: Project, schema: str) -> None:
    """Do in env.py what is advised: one line before each `run_migrations`."""
    text = project.env.read_text(encoding="utf-8")
    line = f'context.execute("CREATE SCHEMA IF NOT EXISTS {schema}")'
    text, count = re.subn(r"^( +)(context\.run_migrations\(\))", rf"\1{line}\n\1\2", text, flags=re.MULTILINE)
    assert 2 == count
    project.env.write_text(text, encoding="utf-8")


def test_without_the_schema_nothing_starts(project: Project, engine: sa.Engine, schema: str):
    """Alembic makes its table before it runs a revision: without the schema that is an error, and nothing is done."""
    with pytest.raises(sa.exc.DBAPIError, match=schema):
        project.alembic("upgrade", "head")
    assert set() == tables_there(engine) - {"alembic_version"}


def test_one_line_makes_it_first(project: Project, engine: sa.Engine, schema: str):
    """Version table inside the queue's schema: with CREATE SCHEMA before `run_migrations` in env.py one command does all, twice."""
    make_it_first(project, schema)
    project.register(f"JobTables(schema={schema!r})")
    for _ in range(2):
        project.alembic("upgrade", "head")
        check_tables(engine, tables=JobTables(schema=schema))
        assert {"job", "archived_job", "alembic_version"} == tables_there(engine, schema)
        project.alembic("upgrade", "head")
        project.alembic("downgrade", "base")
        assert {"alembic_version"} == tables_there(engine, schema)
    assert set() == tables_there(engine)


def test_nothing_is_proposed_about_it(project: Project, database: Any, schema: str):
    """Autogenerate, looking at all schemas, leaves Alembic's table in ours alone."""
    database.require("transactional_ddl")  # where schemas are databases, it would look at those of other tests
    make_it_first(project, schema)
    project.register(f"JobTables(schema={schema!r})")
    project.alembic("upgrade", "head")

    assert "No new upgrade operations detected." in project.alembic("check")


def test_the_same_offline(project: Project, engine: sa.Engine, database: Any, schema: str):
    """The same line puts the schema first in the script, after which the online run does nothing."""
    make_it_first(project, schema)
    feed(database, project.alembic("upgrade", "head", sql=True))
    check_tables(engine, tables=JobTables(schema=schema))
    with engine.begin() as connection:
        enqueue(connection, "greet", tables=JobTables(schema=schema))
    with executed() as statements:
        project.alembic("upgrade", "head")
    feed(database, project.alembic("downgrade", "head:base", sql=True))

    assert [f"CREATE SCHEMA IF NOT EXISTS {schema}"] == statements
    assert {"alembic_version"} >= tables_there(engine, schema)


def test_a_schema_made_beforehand(project: Project, engine: sa.Engine, database: Any, schema: str):
    """Without that line it is enough that the schema is there, online and offline."""
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    project.alembic("upgrade", "head")
    project.alembic("downgrade", "base")
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {schema}.alembic_version"))
    feed(database, project.alembic("upgrade", "head", sql=True))

    check_tables(engine, tables=JobTables(schema=schema))
