"""`proletarian-sa check`: each difference is named, and what it says to type mends it."""

import datetime as dt
import re
import shlex
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from proletarian_sa import DatabaseIds, JobTables, TablesForeign, check_tables, create_all, default_tables
from proletarian_sa.cli import main
from tests.checking import EVERYWHERE, MYSQL, NUMBERED, add, check, differences, make, place
from tests.native_client import feed
from tests.queue_contents import queued, queued_ids
from tests.roles import bare_role


@pytest.mark.parametrize("job_ids", ["uuid", "database"])
def test_what_create_all_makes_fits(database, engine, job_ids):
    """Tables of this version fit: code 0, whoever makes the ids, and the password is not shown."""
    create_all(engine, tables=NUMBERED if job_ids == "database" else default_tables)
    result = check(database.url, "--job-ids", job_ids)

    assert (0, "") == (result.exit_code, result.stderr), result.output
    assert f"The tables in {engine.url!r} fit proletarian-sa " in result.stdout


def test_names_of_ones_own_fit(database, engine):
    """Names that must be quoted, and a schema, are found."""
    schema = database.create_schema()
    create_all(engine, tables=JobTables(schema=schema, job_table="j '\"%ж", archived_job_table="A;"))
    result = check(database.url, "--schema", schema, "--job-table", "j '\"%ж", "--archived-job-table", "A;")

    assert 0 == result.exit_code, result.output


NOT_NULL_TIME = {"postgresql": "TIMESTAMP WITH TIME ZONE", "mysql": "DATETIME(6)", "mariadb": "DATETIME(6)", "sqlite": "DATETIME"}
COLUMNS = {
    "length": (EVERYWHERE, "queue VARCHAR(255)", "queue VARCHAR(100)", "queue: the type is VARCHAR(100), must be VARCHAR(255)."),
    "family": (EVERYWHERE, "crashes INTEGER", "crashes BIGINT", "crashes: the type is BIGINT, must be INTEGER."),
    "sign": (MYSQL, "crashes INTEGER", "crashes INTEGER UNSIGNED", "crashes: the type is INTEGER UNSIGNED, must be INTEGER."),
    "zone": (
        ("postgresql",),
        "process_at TIMESTAMP WITH TIME ZONE",
        "process_at TIMESTAMP",
        "process_at: the type is TIMESTAMP WITHOUT TIME ZONE, must be TIMESTAMP WITH TIME ZONE.",
    ),
    "fraction": (MYSQL, "process_at DATETIME(6)", "process_at DATETIME", "process_at: the type is DATETIME, must be DATETIME(6)."),
    "short text": (MYSQL, "payload LONGTEXT", "payload TEXT", "payload: the type is TEXT, must be LONGTEXT."),
    "collation": (
        MYSQL,
        "queue VARCHAR(255)",
        "queue VARCHAR(255) COLLATE utf8mb4_general_ci",
        "queue: the collation is utf8mb4_general_ci, must be utf8mb4_bin.",
    ),
    "charset": (
        MYSQL,
        "headers LONGTEXT",
        "headers LONGTEXT CHARACTER SET latin1",
        "headers: the collation is latin1_swedish_ci, must be utf8mb4_bin.",
    ),
    "null": (EVERYWHERE, "attempts INTEGER NOT NULL", "attempts INTEGER", "attempts: NULL must not be allowed."),
    "not null": (
        EVERYWHERE,
        "claimed_by VARCHAR(255)",
        "claimed_by VARCHAR(255) DEFAULT 'x' NOT NULL",
        "claimed_by: NULL must be allowed.",
    ),
    "missing column": (EVERYWHERE, "    crashes INTEGER,\n", "", "crashes: there is no such column."),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_a_difference_is_named_and_mended(database, engine, case):
    """One line for each table says what is and what must be; what stands below it mends it, and keeps the jobs."""
    dialects, old, new, line = COLUMNS[case]
    if database.url.get_backend_name() not in dialects:
        pytest.skip(f"no such difference: {case}")
    make(database, old, new)
    kept = set() if case == "not null" else {add(engine)}
    found = differences(database)
    feed(database, "\n".join(found.values()))
    beside = {"x_before"} if database.server else {"job_before", "archived_job_before"}

    expected = [f"{place(database).removesuffix('job')}{name}.{line}" for name in ("job", "archived_job")]
    assert expected == list(found)
    assert 0 == check(database.url).exit_code
    assert kept == queued_ids(engine)
    assert set(sa.inspect(engine).get_table_names()) <= {"job", "archived_job"} | beside


def test_what_one_statement_mends_is_typed_once(database, engine):
    """Two differences of one column have one cure where the database alters columns, or tables, as a whole."""
    make(database, "queue VARCHAR(255) NOT NULL", "queue VARCHAR(100)")
    kept = {add(engine)}
    found = differences(database)
    feed(database, "\n".join(found.values()))

    assert 4 == len(found)
    assert (4 if database.transactional_ddl else 2) == len([cure for cure in found.values() if cure])
    assert 0 == check(database.url).exit_code
    assert kept == queued_ids(engine)


def test_times_without_a_zone_become_utc(database, engine):
    """On PostgreSQL times without a zone are taken for UTC, whatever the zone of the session in which they are mended."""
    database.require("transactional_ddl")
    make(database, "process_at TIMESTAMP WITH TIME ZONE", "process_at TIMESTAMP")
    add(engine)
    noon = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
    feed(database, "UPDATE proletarian.job SET process_at = '2030-01-01 12:00';")
    feed(database, "\n".join(["SET timezone = 'Asia/Tokyo';", *differences(database).values()]))

    assert [noon] == [row.process_at for row in queued(engine)]


def test_another_storage_engine(database, queue_engine):
    """On MySQL and MariaDB a table of an engine without transactions is told and mended."""
    if database.url.get_backend_name() not in MYSQL:
        pytest.skip("no storage engines")
    with queue_engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE archived_job ENGINE = MyISAM")
    found = differences(database)
    feed(database, "\n".join(found.values()))

    assert ["archived_job: the storage engine is MyISAM, must be InnoDB."] == list(found)
    assert 0 == check(database.url).exit_code


@pytest.mark.parametrize("job_ids", ["uuid", "database"])
def test_a_missing_table_is_named_with_the_command(database, engine, job_ids):
    """The line below a missing table is the command whose output makes it."""
    tables = JobTables(job_table="jobs", job_ids=DatabaseIds() if job_ids == "database" else None)
    arguments = ("--job-table", "jobs", *(["--job-ids", "database"] if job_ids == "database" else []))
    if not database.server:
        Path(database.url.database).touch()
    found = differences(database, *arguments)
    commands = set(found.values())
    (command,) = [command for command in commands if command]
    words = command.partition(" | ")[0].split()
    feed(database, CliRunner().invoke(main, words[1:]).stdout)

    where = place(database).removesuffix("job")
    advice = f"With Alembic: {shlex.join(['proletarian-sa', 'revision', *arguments])}, then alembic upgrade head. Without:"
    assert [f"{where}{name}: there is no such table. {advice}" for name in ("jobs", "archived_job")] == list(found)
    assert ["proletarian-sa", "ddl", "--dialect", database.url.get_backend_name(), *arguments] == words
    check_tables(engine, tables=tables)
    assert 0 == check(database.url, *arguments).exit_code


def test_a_missing_primary_key(database, engine):
    """Without its primary key a table does not fit; what is typed makes it."""
    make(database, ",\n    PRIMARY KEY (job_id)", "")
    kept = {add(engine)}
    found = differences(database)
    feed(database, "\n".join(found.values()))

    assert f"{place(database)}: the primary key is missing, must be (job_id)." == next(iter(found))
    assert 0 == check(database.url).exit_code
    assert kept == queued_ids(engine)


def test_another_primary_key(database, engine):
    """A primary key over other columns is told, and replaced."""
    make(database, "PRIMARY KEY (job_id)", "PRIMARY KEY (job_id, attempts)")
    found = differences(database)
    feed(database, "\n".join(found.values()))

    assert f"{place(database)}: the primary key is (job_id, attempts), must be (job_id)." == next(iter(found))
    assert 0 == check(database.url).exit_code


NUMBERING = {
    "postgresql": (" GENERATED BY DEFAULT AS IDENTITY", " NOT NULL"),
    "mysql": (" AUTO_INCREMENT", ""),
    "mariadb": (" AUTO_INCREMENT", ""),
    "sqlite": (" AUTOINCREMENT", ""),
}


def test_ids_that_the_database_does_not_number(database, engine):
    """Where the database must number the jobs and does not, what is typed lets it, beyond the numbers of both tables."""
    make(database, *NUMBERING[database.url.get_backend_name()], "--job-ids", "database")
    facts = {"queue": "q", "job_type": "t", "payload": "1", "attempts": 0}
    with engine.begin() as connection:
        connection.execute(NUMBERED.job.insert(), {"job_id": 7, **facts})
        done = {"job_id": 70, **facts, "status": "success", "finished_at": sa.func.current_timestamp()}
        connection.execute(NUMBERED.archived_job.insert().values(done))
    found = differences(database, "--job-ids", "database")
    feed(database, "\n".join(found.values()))
    new = add(engine, NUMBERED)

    assert [f"{place(database)}.job_id: the database does not number the rows, and must."] == list(found)
    assert 0 == check(database.url, "--job-ids", "database").exit_code
    assert {7, 71} == queued_ids(engine, NUMBERED) == {7, new}


def test_numbers_are_not_given_again_by_a_table_made_anew(database, engine):
    """A mended table goes on counting where it was, though the jobs are gone."""
    make(database, "queue VARCHAR(255)", "queue VARCHAR(100)", "--job-ids", "database")
    first = add(engine, NUMBERED)
    with engine.begin() as connection:
        connection.execute(NUMBERED.job.delete())
    feed(database, "\n".join(differences(database, "--job-ids", "database").values()))

    assert first + 1 == add(engine, NUMBERED)


@pytest.mark.parametrize("columns", [["attempts"], ["queue", "payload", "crashes", "headers"]], ids=["one", "several"])
def test_a_foreign_table_is_told_as_check_tables_does(database, queue_engine, columns):
    """A table of that name without the columns of old is not ours, in the same words, and nothing says how to change it."""
    with queue_engine.begin() as connection:
        for table in (default_tables.job, default_tables.archived_job):
            table.drop(connection)
            schema = place(database).removesuffix("job").rstrip(".") or None
            kept = [sa.Column(c.name, c.type, primary_key=c.primary_key) for c in table.c if c.name not in columns]
            sa.Table(table.name, sa.MetaData(), *kept, schema=schema).create(connection)
    found = differences(database)
    with pytest.raises(TablesForeign) as caught:
        check_tables(queue_engine)

    assert str(caught.value) == next(iter(found))
    assert {""} == set(found.values())


def test_other_ids_are_told_as_check_tables_does(database, queue_engine):
    """Numbers where the tables have UUIDs, or the reverse."""
    found = differences(database, "--job-ids", "database")
    with pytest.raises(TablesForeign) as caught:
        check_tables(queue_engine, tables=NUMBERED)

    assert str(caught.value) == next(iter(found))


def test_a_role_that_may_not_look(database, queue_engine):
    """Where looking takes a right, nothing is said to be missing without it: the message is that about rights, code 1."""
    database.require("roles")
    result = check(bare_role(database).url)
    if database.transactional_ddl:  # PostgreSQL's catalogue is open to all
        assert 0 == result.exit_code
        return

    assert (1, "") == (result.exit_code, result.stdout), result.output
    assert "lacks a right" in result.stderr


def test_a_schema_that_may_not_be_used(database, queue_engine):
    """On PostgreSQL a table on the search path, in a schema that the role may not use, is not said to be missing."""
    database.require("transactional_ddl")
    url = bare_role(database).url.update_query_dict({"options": "-csearch_path=proletarian"})
    result = check(url, "--schema", "")

    assert (1, "") == (result.exit_code, result.stdout), result.output
    assert "The table job is in the schema proletarian, on which it has no USAGE" in " ".join(result.stderr.split())


def test_a_server_that_cannot_be_reached(database):
    """Without a server behind the URL: code 1, a message without a traceback and without the password."""
    database.require("server")
    result = check(database.url.set(port=1, password="se(ret"))  # noqa: S106 - of nobody

    assert (1, "", SystemExit) == (result.exit_code, result.stdout, type(result.exception))
    assert re.search(r"Error: .*:\*\*\*@.* cannot be asked. Is the server running, .+ right\? .+", result.stderr)
    assert "se(ret" not in result.stderr


REFUSED = {
    "There is no file '/nowhere/jobs.db'.": ["sqlite:////nowhere/jobs.db"],
    "'sqlite+aiosqlite' is an async driver: give 'sqlite'.": ["sqlite+aiosqlite:///jobs.db"],
    "proletarian-sa runs on postgresql, mysql, mariadb and sqlite, not on 'oracle'.": ["oracle://u:secret@db/app"],
    "--url is no SQLAlchemy URL, such as postgresql+psycopg://localhost/app": ["db:secret"],
    "--url is no SQLAlchemy URL, such as postgresql": ["nothing://u:secret@db/app"],
    "Install the driver: pip install 'proletarian-sa[postgresql]'": ["postgresql+pg8000://u:secret@db/app"],
    "Both tables are called 'job'": ["sqlite://", "--archived-job-table", "job"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_wrong_command_line(message: str):
    """A URL that leads nowhere, or to nothing of ours, and names that cannot be: code 2 and what to type."""
    result = check(*REFUSED[message])

    assert (2, "") == (result.exit_code, result.stdout)
    assert message in " ".join(result.stderr.split())
    assert "secret" not in result.stderr


def test_looking_makes_nothing(tmp_path):
    """A SQLite file that is not there is not made."""
    path = tmp_path / "jobs.db"
    result = check(f"sqlite:///{path}")

    assert 2 == result.exit_code
    assert not path.exists()
