"""Projects of each of Alembic's templates: our command, the migrations, and autogenerate, in each the same."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import JobTables, check_tables, enqueue, process_next_job, versions
from tests.alembic_projects import SINGLE, Project, init, revise, url_for
from tests.catalogue import catalogue
from tests.checking import check
from tests.native_client import feed
from tests.second_version import second_version  # noqa: F401 - a fixture
from tests.test_tables import default_schema, tables_there

pytestmark = pytest.mark.long


@pytest.fixture
def multidb(tmp_path: Path, database: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Make a project of two databases: `engine1` is the test's, `engine2` a file."""
    project = init(tmp_path / "app", "multidb", database.url, sa.make_url("sqlite:///second.db"))
    monkeypatch.chdir(project.folder)
    return project


def names_there(engine: sa.Engine) -> set[str]:
    """Return the names of our tables and of Alembic's."""
    return tables_there(engine, default_schema(engine)) | tables_there(engine)


def second_engine(project: Project) -> sa.Engine:
    """Return an engine on the second database."""
    return sa.create_engine(f"sqlite:///{project.folder / 'second.db'}", poolclass=sa.NullPool)


@pytest.mark.parametrize("template", SINGLE)
def test_a_project_of_each_template(
    tmp_path: Path, database: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, template: str
):
    """Installed by one command and `alembic upgrade head`; `alembic check` and `proletarian-sa check` agree; down and up again."""
    project = init(tmp_path / "app", template, url_for(template, database))
    monkeypatch.chdir(project.folder)
    project.write()
    project.register()
    assert "" == project.alembic("current").strip()
    for _ in range(2):
        project.alembic("upgrade", "head")
        assert "No new upgrade operations detected." in project.alembic("check")
        assert 0 == check(database.url_text).exit_code
        with engine.begin() as connection:
            enqueue(connection, "greet")
        assert process_next_job(engine, lambda job_type, payload: None)
        project.alembic("downgrade", "base")
        assert {"alembic_version"} == names_there(engine)


@pytest.mark.parametrize("template", ["async", "pyproject_async"])
def test_autogenerate_in_an_async_project(
    tmp_path: Path, database: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, template: str
):
    """Autogenerate writes the same tables on an async driver, and nothing more once they are there."""
    project = init(tmp_path / "app", template, database.async_url)
    monkeypatch.chdir(project.folder)
    project.register()
    project.alembic("revision", "queue", autogenerate=True)
    project.alembic("upgrade", "head")
    check_tables(engine)

    assert "No new upgrade operations detected." in project.alembic("check")
    assert "there is nothing to write" in project.refused()


def test_two_databases_at_once(multidb: Project, engine: sa.Engine):
    """With both databases named one revision installs the tables in both, and takes them away from both."""
    multidb.write("--database", "engine1", "--database", "engine2")
    for _ in range(2):
        multidb.alembic("upgrade", "head")
        check_tables(engine)
        check_tables(second_engine(multidb))
        multidb.alembic("downgrade", "base")

        assert {"alembic_version"} == names_there(engine) == names_there(second_engine(multidb))


def test_one_database_first_and_the_other_later(multidb: Project, engine: sa.Engine):
    """Each database is installed once, whichever is first; naming one again is refused, and says which."""
    first = multidb.write("--database", "engine2")
    multidb.alembic("upgrade", "head")
    check_tables(second_engine(multidb))
    assert {"alembic_version"} == names_there(engine)
    again = multidb.refused("--database", "engine1", "--database", "engine2")
    second = multidb.write("--database", "engine1", "--database", "engine1")
    multidb.alembic("upgrade", "head")
    check_tables(engine)
    multidb.alembic("downgrade", "-1")

    assert f"by {first.name} (--database engine2): there is nothing to write." in again
    assert f"by {second.name} (--database engine1): there is nothing to write." in multidb.refused("--database", "engine1")
    assert {"alembic_version"} == names_there(engine)
    check_tables(second_engine(multidb))


@pytest.mark.usefixtures("second_version")
def test_two_databases_with_different_versions(multidb: Project, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch):
    """One revision upgrades the database that has the tables and installs them in the other: both end the same."""
    with monkeypatch.context() as patch:
        patch.delitem(versions.VERSIONS, 2)
        multidb.write("--database", "engine1")
    text = multidb.write("--database", "engine1", "--database", "engine2").read_text(encoding="utf-8")
    multidb.alembic("upgrade", "head")

    assert "from version 1 to version 2" in text
    assert "from version 0 to version 2" in text
    for one in (engine, second_engine(multidb)):
        assert "note" in {column["name"] for column in sa.inspect(one).get_columns("job", schema=default_schema(one))}


@pytest.mark.parametrize("wrong", [[], ["nosuch"], ["engine1", "nosuch"], [""], ["engine1,engine2"]])
def test_wrong_names_of_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: list[str]):
    """Without a name, or with a wrong one among them, the command lists the databases and writes nothing."""
    project = init(tmp_path / "app", "multidb")
    monkeypatch.chdir(project.folder)
    output = project.refused(*(f"--database={name}" for name in wrong))

    assert (
        "Error: The project has several databases. Say which get the tables, --database NAME, again for more: engine1, engine2."
        in output
    )


def test_a_database_named_in_a_project_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where there is one database, naming it is refused, and the option is what to leave out."""
    project = init(tmp_path / "app")
    monkeypatch.chdir(project.folder)

    assert "makes no function upgrade_app. Has the project one database? Then leave out --database." in project.refused(
        "--database", "app"
    )


def test_the_advice_for_several_databases(multidb: Project, engine: sa.Engine):
    """What the command prints to be added to env.py of the multidb template keeps `alembic check` quiet about both databases."""
    output = revise("--database", "engine1", "--database", "engine2").output
    advice = "".join(f"{line.strip()}\n" for line in output.splitlines() if line.startswith("    "))
    assert "register(target_metadata['engine2'])" in advice
    metadatas = "from sqlalchemy import MetaData\ntarget_metadata = {'engine1': MetaData(), 'engine2': MetaData()}\n"
    multidb.replace(multidb.env, "target_metadata = {}\n", f"{metadatas}{advice}")
    multidb.alembic("upgrade", "head")

    assert "No new upgrade operations detected." in multidb.alembic("check")


def test_several_databases_offline(multidb: Project, database: Any, engine: sa.Engine):
    """`--sql` writes one script for each database, which makes the tables there."""
    multidb.write("--database", "engine1", "--database", "engine2")
    multidb.alembic("upgrade", "head", sql=True)
    feed(database, Path("engine1.sql").read_text(encoding="utf-8"))
    with sqlite3.connect("second.db") as connection:
        connection.executescript(Path("engine2.sql").read_text(encoding="utf-8"))
    connection.close()
    before = catalogue(engine, JobTables())
    multidb.alembic("upgrade", "head")

    assert before == catalogue(engine, JobTables())
    check_tables(engine)
    check_tables(second_engine(multidb))
