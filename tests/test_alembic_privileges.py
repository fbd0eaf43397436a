"""Least privilege: a role that migrates in a schema made for it, and a role of workers that does not own the tables."""

from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import JobTables, check_tables, enqueue, process_next_job, versions
from tests.alembic_projects import Project, init
from tests.queue_contents import archived, queued
from tests.roles import bare_role, printed, run
from tests.second_version import second_tables, second_version  # noqa: F401 - a fixture
from tests.test_tables import tables_there

pytestmark = pytest.mark.long

MIGRATE = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX"
DENIED = r"denied"


@pytest.fixture
def schema(database: Any, engine: sa.Engine) -> str:
    """Make the schema beforehand, as an administrator."""
    database.require("roles", "schemas")
    if engine.dialect.name != "postgresql":
        return str(database.create_schema())
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA proletarian")
    return "proletarian"


@pytest.fixture
def migrator(database: Any, engine: sa.Engine, schema: str) -> sa.Engine:
    """Make a role that may create tables in the schema and use them, and can make no schema and no database."""
    if engine.dialect.name == "postgresql":
        name = database.url.database
        return bare_role(
            database, f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {{role}}", f"REVOKE CREATE ON DATABASE {name} FROM {{role}}"
        )
    return bare_role(database, *(f"GRANT {MIGRATE} ON {place}.* TO {{role}}" for place in (schema, database.url.database)))


@pytest.fixture
def project(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, migrator: sa.Engine, schema: str) -> Project:
    """Make a project that migrates as that role, with Alembic's own table in the queue's schema."""
    project = init(tmp_path / "app", "generic", migrator.url)
    monkeypatch.chdir(project.folder)
    for option in ("connection=connection,", "url=url,"):
        project.replace(project.env, option, f"{option} version_table_schema={schema!r},")
    return project


@pytest.fixture(params=["owner", "administrator"])
def granter(request: pytest.FixtureRequest, engine: sa.Engine, migrator: sa.Engine, schema: str) -> sa.Engine | None:
    """Return who gives rights: the migrating role, to which the schema belongs, or None, an administrator."""
    if request.param == "administrator":
        return None
    if engine.dialect.name != "postgresql":
        pytest.skip("no owners of schemas")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER SCHEMA {schema} OWNER TO {migrator.url.username}")
    return migrator


def worker_by_grants(database: Any, schema: str, by: sa.Engine | None) -> sa.Engine:
    """Make a role without rights, and let somebody run what `proletarian-sa grants` prints for it."""
    worker = bare_role(database)
    run(database, printed("--url", database.url_text, "--schema", schema, "--role", str(worker.url.username)), by)
    if worker.dialect.name == "postgresql":
        return worker
    # A connection begins in a database, on which a user must have a right: here, the queue's own.
    return sa.create_engine(worker.url.set(database=schema), poolclass=sa.NullPool)


def serve(worker: sa.Engine, tables: JobTables) -> None:
    """Enqueue, fail, retry, succeed and archive as the workers' role."""
    check_tables(worker, tables=tables)
    with worker.begin() as connection:
        enqueue(connection, "greet", tables=tables)
        enqueue(connection, "fail", tables=tables)

    def handle(job_type: str, payload: Any) -> None:
        if job_type == "fail":
            raise LookupError(job_type)

    assert process_next_job(worker, handle, tables=tables)
    assert process_next_job(worker, handle, tables=tables)


def test_the_role_can_make_no_schema(migrator: sa.Engine):
    """The role of these tests has not the right that it is to do without."""
    with migrator.connect() as connection, pytest.raises(sa.exc.DBAPIError, match=DENIED):
        connection.exec_driver_sql("CREATE SCHEMA another_schema_of_tests")


def test_migrating_in_a_schema_made_beforehand(project: Project, engine: sa.Engine, schema: str):
    """Up, down and up again need no right to create schemas or databases, online."""
    project.write("--schema", schema)
    for _ in range(2):
        project.alembic("upgrade", "head")
        check_tables(engine, tables=JobTables(schema=schema))
        project.alembic("downgrade", "base")
        assert {"alembic_version"} == tables_there(engine, schema)


def test_without_the_schema_the_server_says_what_is_missing(project: Project, engine: sa.Engine, schema: str):
    """Where the schema is not there either, the role is refused by name of what it lacks, and nothing is made."""
    project.write("--schema", f"{schema}_2")
    with pytest.raises(sa.exc.DBAPIError, match=DENIED):
        project.alembic("upgrade", "head")

    assert set() == tables_there(engine, schema) - {"alembic_version"}


def test_the_script_for_a_role_without_that_right(
    project: Project, engine: sa.Engine, database: Any, migrator: sa.Engine, schema: str
):
    """Offline the role can run it all; where schemas take a right on the database, without the line that creates ours."""
    project.write("--schema", schema)
    script = project.alembic("upgrade", "head", sql=True)
    line = next(line for line in script.splitlines() if line.startswith("CREATE SCHEMA"))
    if engine.dialect.name == "postgresql":
        with pytest.raises(migrator.dialect.loaded_dbapi.Error, match=DENIED):
            run(database, script, migrator)
        script = script.replace(f"{line}\n", "")
    run(database, script, migrator)
    check_tables(engine, tables=JobTables(schema=schema))
    project.alembic("upgrade", "head")
    project.alembic("downgrade", "base")

    assert f"CREATE SCHEMA IF NOT EXISTS {schema};" == line.replace("`", "")
    assert {"alembic_version"} == tables_there(engine, schema)


def test_workers_on_tables_of_the_migrating_role(
    project: Project, engine: sa.Engine, database: Any, schema: str, granter: sa.Engine | None
):
    """`proletarian-sa grants`, run by the owner of schema and tables or by an administrator, is all that workers need."""
    project.write("--schema", schema)
    project.alembic("upgrade", "head")
    tables = JobTables(schema=schema)
    worker = worker_by_grants(database, schema, granter)
    serve(worker, tables)

    assert ["failure", "success"] == sorted(row.status for row in archived(engine, tables))
    assert [] == queued(engine, tables)
    with worker.connect() as connection, pytest.raises(sa.exc.DBAPIError, match=r"denied|must be owner"):
        tables.job.drop(connection)


@pytest.mark.usefixtures("second_version")
def test_workers_keep_their_rights_through_a_second_version(
    project: Project, engine: sa.Engine, database: Any, schema: str, monkeypatch: pytest.MonkeyPatch
):
    """The migrating role upgrades the tables, and goes back, and the workers' rights are still all that they need."""
    with monkeypatch.context() as patch:
        patch.delitem(versions.VERSIONS, 2)
        project.write("--schema", schema)
        project.alembic("upgrade", "head")
        worker = worker_by_grants(database, schema, None)
        serve(worker, JobTables(schema=schema))
    project.write("--schema", schema)
    project.alembic("upgrade", "head")
    serve(worker, second_tables(schema=schema))
    project.alembic("downgrade", "-1")
    with monkeypatch.context() as patch:
        patch.delitem(versions.VERSIONS, 2)
        serve(worker, JobTables(schema=schema))

    assert 6 == len(archived(engine, JobTables(schema=schema)))
