"""`proletarian-sa grants`: what is printed, and what is refused."""

import subprocess

import pytest
import sqlalchemy as sa

from proletarian_sa import JobTables, create_all
from proletarian_sa.cli import main
from tests.native_client import native_client
from tests.roles import printed, refused, set_password

POSTGRESQL = """\
-- Gives rights on the tables of proletarian-sa. To be run by the owner of the tables or an administrator, in the \
database that has the tables.

-- It has no password yet. In psql: \\password "worker"
DO $create$
BEGIN
    CREATE ROLE "worker" LOGIN;
EXCEPTION WHEN duplicate_object THEN
    RAISE NOTICE 'the role is there already';
END
$create$;

-- "worker", for workers, and applications that enqueue, read and run jobs: no DDL, and no TRUNCATE, which spares no running job
-- to reach the tables
GRANT USAGE ON SCHEMA proletarian TO "worker";
-- to enqueue; to claim, prolong, retry and put back; to take out what is finished
GRANT SELECT, INSERT, UPDATE, DELETE ON proletarian.job TO "worker";
-- to archive; UPDATE replaces a row of the same job id
GRANT SELECT, INSERT, UPDATE ON proletarian.archived_job TO "worker";
"""
MYSQL = """\
-- Gives rights on the tables of proletarian-sa. To be run by an administrator.

-- It is locked until it has a password: ALTER USER `web`@`%` IDENTIFIED BY 'a password' ACCOUNT UNLOCK;
CREATE USER IF NOT EXISTS `web`@`%` ACCOUNT LOCK;

-- `web`@`%`, for applications that enqueue and do nothing else
-- to enqueue; to read back the new job's id and times, as SQLAlchemy does after a flush: no payload, and no archive
GRANT INSERT, SELECT (job_id, enqueued_at, process_at) ON app.job TO `web`@`%`;
"""
BOTH = ("--role", "worker", "--enqueue-role", "web")


def statements(*arguments: str) -> list[str]:
    """Return the lines that are no comments."""
    return [line for line in printed(*arguments).splitlines() if line and not line.startswith("--")]


def test_the_text_is_for_reading():
    """Each right stands under a comment that says why; a role is made without a password, and says how it gets one."""
    assert POSTGRESQL == printed("--dialect", "postgresql", "--role", "worker", "--create-role")
    assert MYSQL == printed("--dialect", "mysql", "--database", "app", "--enqueue-role", "web", "--create-role")
    mariadb = printed("--dialect", "mariadb", "--database", "app", "--enqueue-role", "web", "--create-role")
    assert "use_insertmanyvalues=False" in mariadb
    assert statements("--dialect", "mysql", *BOTH) == statements("--dialect", "mariadb", *BOTH)


def test_the_least_rights():
    """An enqueue-only role gets no right on the archive, and on the jobs none to read a payload, change or delete."""
    assert [
        'GRANT USAGE ON SCHEMA proletarian TO "web";',
        'GRANT INSERT, SELECT (job_id, enqueued_at, process_at) ON proletarian.job TO "web";',
    ] == statements("--dialect", "postgresql", "--enqueue-role", "web")
    assert [
        "GRANT SELECT, INSERT, UPDATE, DELETE ON job TO `worker`@`%`;",
        "GRANT SELECT, INSERT, DELETE ON archived_job TO `worker`@`%`;",
        "GRANT INSERT, SELECT (job_id, enqueued_at, process_at) ON job TO `web`@`%`;",
    ] == statements("--dialect", "mysql", *BOTH)


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb"])
def test_revoking_is_the_opposite(dialect: str):
    """`--revoke` takes away what was given and no more, in the opposite order; with `--create-role` the roles go, too."""
    given = statements("--dialect", dialect, "--role", "worker")
    taken = statements("--dialect", dialect, "--role", "worker", "--revoke")
    dropped = statements("--dialect", dialect, "--role", "worker", "--revoke", "--create-role")

    assert [line.replace("GRANT", "REVOKE").replace(" TO ", " FROM ") for line in reversed(given)] == taken
    assert taken == dropped[:-1]
    assert {"postgresql": 'DROP ROLE IF EXISTS "worker";'}.get(dialect, "DROP USER IF EXISTS `worker`@`%`;") == dropped[-1]


def test_where_the_tables_lie():
    """Schema and tables are named as in `JobTables`: the default schema is PostgreSQL's alone; a URL names dialect and database."""
    own = ("--job-table", "tasks", "--archived-job-table", "Old Tasks", "--role", "w")
    assert ['GRANT SELECT, INSERT, UPDATE, DELETE ON tasks TO "w";', 'GRANT SELECT, INSERT, UPDATE ON "Old Tasks" TO "w";'] == (
        statements("--dialect", "postgresql", "--schema", "", *own)
    )
    assert 'GRANT USAGE ON SCHEMA q TO "w";' == statements("--dialect", "postgresql", "--schema", "q", *own)[0]
    assert (
        "GRANT SELECT, INSERT, DELETE ON q.`Old Tasks` TO `w`@`10.%`;"
        == (statements("--dialect", "mysql", "--schema", "q", "--database", "app", "--host", "10.%", *own)[-1])
    )
    assert (
        "GRANT SELECT, INSERT, UPDATE, DELETE ON shop.tasks TO `w`;"
        == (statements("--url", "mariadb+pymysql://admin:secret@db/shop", "--host", "", *own)[0])
    )
    assert (
        "GRANT SELECT, INSERT, UPDATE, DELETE ON other.job TO `w`@`%`;"
        == (statements("--url", "mysql://db/shop", "--database", "other", "--role", "w")[0])
    )
    assert statements("--dialect", "postgresql", "--role", "w") == (
        statements("--url", "postgresql+psycopg://admin:secret@db/shop", "--role", "w")
    )


def test_an_account_without_a_host_is_a_role():
    """On MySQL and MariaDB an empty host makes roles, which accounts can be given."""
    role = ("--dialect", "mysql", "--role", "w", "--host", "", "--create-role")
    assert "CREATE ROLE IF NOT EXISTS `w`;" == statements(*role)[0]
    assert "DROP ROLE IF EXISTS `w`;" == statements(*role, "--revoke")[-1]


REFUSED = {
    "SQLite has no roles: file permissions rule there.": ["--dialect", "sqlite", "--role", "w"],
    "SQLite has no roles": ["--url", "sqlite+aiosqlite:///jobs.db", "--role", "w"],
    "There are no grants for 'oracle'. Give --dialect postgresql, mysql or mariadb.": ["--dialect", "oracle", "--role", "w"],
    "Give a role for workers, --role NAME, or": ["--dialect", "mysql"],
    "Give either --dialect NAME or --url URL.": ["--role", "w"],
    "Give either --dialect NAME or --url": ["--dialect", "mysql", "--url", "mysql://db/app", "--role", "w"],
    "--url is no SQLAlchemy URL": ["--url", "db:secret", "--role", "w"],
    "'public' is everybody on PostgreSQL, not a role.": ["--dialect", "postgresql", "--role", "public"],
    "--database is for MySQL and MariaDB. On PostgreSQL, run": ["--dialect", "postgresql", "--database", "a", "--role", "w"],
    "--role needs a name.": ["--dialect", "mysql", "--role", ""],
    "--job-table needs a name.": ["--dialect", "mysql", "--role", "w", "--job-table", ""],
    "--enqueue-role 'a\\nDROP TABLE job' has a control": ["--dialect", "mysql", "--enqueue-role", "a\nDROP TABLE job"],
    "--host 'a\\r' has a control": ["--dialect", "mysql", "--role", "w", "--host", "a\r"],
    "--schema 'a\\u2028' has a control": ["--dialect", "postgresql", "--role", "w", "--schema", "a\u2028"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_printed(message: str):
    """A database without roles, a missing role, a name that would end a comment: refused with what to type, and nothing printed."""
    said = " ".join(refused(*REFUSED[message]).split())

    assert message in said
    assert "secret" not in said


HOSTILE = ["\"`';DROP x;--", "%s:n$create$\\ж"]  # MySQL's names have at most 32 characters


@pytest.mark.parametrize("suffix", HOSTILE, ids=["quotes", "percent"])
def test_any_names_in_the_native_client(database, suffix: str):
    """Names that must be quoted are: the text runs unchanged in the database's own client, twice, and gives rights to that role."""
    role = database.new_role(suffix)
    client = native_client(database)
    if client is None:
        pytest.skip("no native client")
    tables = JobTables(job_table=f"job{suffix}", archived_job_table=f"done{suffix}")
    create_all(database.create_engine(), tables=tables)
    names = ("--job-table", tables.job.name, "--archived-job-table", tables.archived_job.name)
    text = printed("--url", database.url_text, "--create-role", "--role", role, "--enqueue-role", role, *names)
    for _ in range(2):
        subprocess.run(client, input=text, text=True, encoding="utf-8", check=True, capture_output=True)
    set_password(database, role)

    with database.create_engine_as(role).begin() as connection:
        assert [] == connection.execute(sa.select(tables.job)).all()
        assert 0 == connection.execute(sa.delete(tables.job)).rowcount


def test_the_command_is_listed():
    """`proletarian-sa --help` names it."""
    assert "grants" in main.commands
