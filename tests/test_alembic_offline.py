"""What `alembic upgrade head --sql` prints, fed to the database's own client, is what the online run would have done."""

# ruff: noqa: F811 - fixtures are imported

from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import DatabaseIds, JobTables, check_tables, default_tables, enqueue, versions
from proletarian_sa.installed import installed_version
from tests.alembic_projects import Project, app, executed  # noqa: F401 - a fixture among them
from tests.catalogue import catalogue
from tests.checking import check
from tests.native_client import feed
from tests.queue_contents import queued
from tests.second_version import second_tables, second_version  # noqa: F401 - a fixture
from tests.test_tables import default_schema, tables_there

pytestmark = pytest.mark.long

CASES = [
    ([], "default_tables", default_tables),
    (["--job-ids", "database"], "JobTables(job_ids=DatabaseIds())", JobTables(job_ids=DatabaseIds())),
    (
        ["--schema", "", "--job-table", "50% $job", "--archived-job-table", "дело"],
        "JobTables(schema=None, job_table='50% $job', archived_job_table='дело')",
        JobTables(schema=None, job_table="50% $job", archived_job_table="дело"),
    ),
]


def parts(script: str) -> list[str]:
    """Return the statements of a script, each with its end."""
    return [f"{statement};\n" for statement in script.split(";\n") if statement.strip()]


def forget(engine: sa.Engine) -> None:
    """Drop Alembic's own table, which a script makes without asking."""
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS alembic_version")


@pytest.mark.parametrize("case", CASES, ids=["uuid", "database", "names"])
def test_after_the_script_the_online_run_does_nothing(
    app: Project, engine: sa.Engine, database: Any, case: tuple[list[str], str, JobTables]
):
    """The script makes all of it: the online run executes no DDL, and both `check` commands agree."""
    options, registered, tables = case
    app.write(*options)
    app.register(registered)
    feed(database, app.alembic("upgrade", "head", sql=True))
    by_script = catalogue(engine, tables)
    with executed() as statements:
        app.alembic("upgrade", "head")

    assert [] == statements
    assert "No new upgrade operations detected." in app.alembic("check")
    assert 0 == check(database.url_text, *options).exit_code
    app.alembic("downgrade", "base")
    app.alembic("upgrade", "head")
    assert by_script == catalogue(engine, tables)


def test_a_script_for_the_way_back(app: Project, engine: sa.Engine, database: Any):
    """`downgrade head:base --sql` takes away what is ours, with its jobs, and nothing else; twice."""
    app.write()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE beside (id INTEGER)")
    for _ in range(2):
        feed(database, app.alembic("upgrade", "head", sql=True))
        with engine.begin() as connection:
            enqueue(connection, "greet")
        feed(database, app.alembic("downgrade", "head:base", sql=True))

        assert {"beside"} == tables_there(engine) - {"alembic_version"}
        assert set() == tables_there(engine, default_schema(engine)) - {"alembic_version", "beside"}
        with executed() as statements:
            app.alembic("upgrade", "head")
        assert statements
        check_tables(engine)
        app.alembic("downgrade", "base")
        forget(engine)


def test_a_script_that_stopped_anywhere(app: Project, engine: sa.Engine, database: Any):
    """After any part of the script the online run makes the rest; where DDL is transactional, all."""
    app.write()
    script = parts(app.alembic("upgrade", "head", sql=True))
    app.alembic("upgrade", "head")
    whole = catalogue(engine, JobTables())
    for length in range(1, len(script), 2):
        app.alembic("downgrade", "base")
        forget(engine)
        feed(database, "".join(script[:length]))
        app.alembic("upgrade", "head")

        assert whole == catalogue(engine, JobTables()), script[length]


def two_revisions(app: Project, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Write the revision of each version, and return their ids."""
    with monkeypatch.context() as patch:
        patch.delitem(versions.VERSIONS, 2)
        first = app.write()
    second = app.write()
    return first.name.split("_")[0], second.name.split("_")[0]


def version_of(engine: sa.Engine) -> int:
    """Return which version of the tables is there."""
    with engine.connect() as connection:
        return installed_version(connection, second_tables())


@pytest.mark.usefixtures("second_version")
def test_a_script_between_two_versions(app: Project, engine: sa.Engine, database: Any, monkeypatch: pytest.MonkeyPatch):
    """Scripts lead up and down between two versions with jobs in the tables, and the online run has nothing left to do."""
    first, second = two_revisions(app, monkeypatch)
    app.alembic("upgrade", first)
    with engine.begin() as connection:
        enqueue(connection, "greet")
    feed(database, app.alembic("upgrade", f"{first}:{second}", sql=True))
    assert 2 == version_of(engine)
    with executed() as statements:
        app.alembic("upgrade", "head")
    assert [] == statements
    feed(database, app.alembic("downgrade", f"{second}:{first}", sql=True))

    assert 1 == version_of(engine)
    assert 1 == len(queued(engine))


@pytest.mark.usefixtures("second_version")
def test_a_script_between_two_versions_that_stopped_anywhere(
    app: Project,
    engine: sa.Engine,
    database: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    """After any part of the script that upgrades the tables the online run finishes it; likewise on the way back."""
    first, second = two_revisions(app, monkeypatch)
    up = parts(app.alembic("upgrade", f"{first}:{second}", sql=True))
    down = parts(app.alembic("downgrade", f"{second}:{first}", sql=True))
    app.alembic("upgrade", first)
    for length in range(1, max(len(up), len(down)), 2):
        feed(database, "".join(up[:length]))
        app.alembic("upgrade", "head")
        assert 2 == version_of(engine), up[length]
        feed(database, "".join(down[:length]))
        app.alembic("downgrade", first)
        assert 1 == version_of(engine), down[length]
