"""`proletarian-sa ddl`: the text makes the tables that `create_all` makes, in the database's own client."""

from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from proletarian_sa import DatabaseIds, JobTables, check_tables, create_all, default_tables, drop_all, enqueue
from proletarian_sa.cli import main
from proletarian_sa.version import __version__
from tests.catalogue import catalogue
from tests.native_client import feed
from tests.queue_contents import queued_ids
from tests.roles import bare_role

DIALECTS = ["postgresql", "mysql", "mariadb", "sqlite"]
HOSTILE = ["\"`';DROP x;--", "%s:n$create$\\ж", "a  b, \t(c"]


def ddl(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["ddl", *arguments])


def printed(database: Any, *arguments: str) -> str:
    """Return what the command prints for a database."""
    result = ddl("--dialect", database.url.get_backend_name(), *arguments)
    assert 0 == result.exit_code, result.output
    return result.stdout


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("uninstall", [False, True], ids=["install", "uninstall"])
def test_the_text_is_for_reading(dialect: str, *, uninstall: bool):
    """The first line has the version and the client to run it by; each statement is terminated; the end is a line's end."""
    text = ddl("--dialect", dialect, *(["--uninstall"] if uninstall else [])).stdout
    head, *statements = text.split("\n\n")

    assert head.startswith(f"-- {'Drops' if uninstall else 'Creates'} the tables of proletarian-sa {__version__} on ")
    assert {"postgresql": "psql -v ON_ERROR_STOP=1", "sqlite": "sqlite3 -bail"}.get(dialect, f"{dialect} DATABASE") in head
    assert all(line.startswith("-- ") for line in head.splitlines())
    assert all(statement.rstrip("\n").endswith(";") for statement in statements)
    assert text.endswith(";\n")


@pytest.mark.parametrize(("job_ids", "strategy"), [("uuid", None), ("database", DatabaseIds())], ids=["uuid", "database"])
def test_it_makes_what_create_all_makes(database, engine, job_ids, strategy):
    """Column by column and index by index, with the options of the tables, whoever makes the ids; a second run changes nothing."""
    tables = JobTables(job_ids=strategy)
    for _ in range(2):
        feed(database, printed(database, "--job-ids", job_ids))
    by_client = catalogue(engine, tables)
    drop_all(engine, tables=tables)
    create_all(engine, tables=tables)

    assert catalogue(engine, tables) == by_client


@pytest.mark.parametrize("suffix", HOSTILE, ids=["quotes", "percent", "spaces"])
def test_any_names(database, engine, suffix):
    """Names that must be quoted are: the tables are those that `JobTables` finds, and the same text of them is dropped."""
    tables = JobTables(job_table=f"job{suffix}", archived_job_table=f"done{suffix}")
    names = ("--job-table", tables.job.name, "--archived-job-table", tables.archived_job.name)
    for _ in range(2):
        feed(database, printed(database, *names))
    by_client = catalogue(engine, tables)
    with engine.begin() as connection:
        enqueue(connection, "tick", tables=tables)
    for _ in range(2):
        feed(database, printed(database, *names, "--uninstall"))
    create_all(engine, tables=tables)

    assert catalogue(engine, tables) == by_client
    assert set() == queued_ids(engine, tables)


def test_a_schema_of_ones_own(database, engine):
    """`--schema` names where the tables lie; the schema is made unless it is there, and stays with what else is in it."""
    schema = database.create_schema()
    tables = JobTables(schema=schema)
    with engine.begin() as connection:
        connection.execute(sa.schema.DropSchema(schema))
    for _ in range(2):
        feed(database, printed(database, "--schema", schema))
    check_tables(engine, tables=tables)
    other = sa.Table("other", sa.MetaData(), sa.Column("id", sa.Integer), schema=schema)
    other.create(engine)
    feed(database, printed(database, "--schema", schema, "--uninstall"))

    assert ["other"] == sa.inspect(engine).get_table_names(schema=schema)


def test_a_schema_with_a_hostile_name(database, engine):
    """A schema's name is quoted wherever it stands, in dollar quotes, too."""
    database.require("schemas", "transactional_ddl")
    tables = JobTables(schema="'q\"$create$")
    for _ in range(2):
        feed(database, printed(database, "--schema", "'q\"$create$"))

    check_tables(engine, tables=tables)


def test_a_role_that_may_not_make_schemas(database, engine):
    """Where the schema is there, a role needs no right to make one: the text asks first."""
    database.require("transactional_ddl")
    with bare_role(
        database, "CREATE SCHEMA proletarian", "GRANT USAGE, CREATE ON SCHEMA proletarian TO {role}"
    ).connect() as connection:
        connection.exec_driver_sql(printed(database))
        connection.commit()

    check_tables(engine)


def test_without_a_schema(database, engine):
    """`--schema ''`: the tables lie where the connection looks first."""
    feed(database, printed(database, "--schema", ""))

    assert {"job", "archived_job"} == set(sa.inspect(engine).get_table_names())


def test_schemas_fall_away_where_there_are_none():
    """On SQLite every schema falls away, as with `JobTables`."""
    assert ddl("--dialect", "sqlite").stdout == ddl("--dialect", "sqlite", "--schema", "q").stdout


def test_a_rerun_keeps_jobs_and_adds_what_is_missing(database, queue_engine):
    """What is there stays with its jobs; a table that is missing comes with its index."""
    with queue_engine.begin() as connection:
        kept = enqueue(connection, "tick")
        default_tables.archived_job.drop(connection)
    feed(database, printed(database))

    whole = catalogue(queue_engine, default_tables)
    assert {kept} == queued_ids(queue_engine)
    assert ["archived_job_finished_at"] == [index[0] for index in whole["archived_job"]["indexes"]]


REFUSED = {
    "There is no DDL for 'oracle'. Give --dialect postgresql, mysql, mariadb or sqlite.": ["--dialect", "oracle"],
    "Both tables are called 'archived_job'": ["--dialect", "mysql", "--job-table", "archived_job"],
    "job_table must have 1 to 255 characters; '' has 0.": ["--dialect", "mysql", "--job-table", ""],
    "'ulid' is not one of 'uuid', 'database'": ["--dialect", "mysql", "--job-ids", "ulid"],
    "Missing option '--dialect'": [],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_printed(message: str):
    """An unknown dialect, a name that cannot be one: code 2, what to type, and nothing printed."""
    result = ddl(*REFUSED[message])

    assert (2, "") == (result.exit_code, result.stdout)
    assert message in result.stderr
