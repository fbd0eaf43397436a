"""Autogenerate with registered tables: what `proletarian-sa revision` writes, or nothing."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from alembic_ext.proletarian_sa.body import Names, versions_written
from proletarian_sa import create_all, default_tables, enqueue
from tests import autogenerating
from tests.autogenerating import MODELS, REGISTERED, SETTINGS, Project, of_the_app, version_of
from tests.catalogue import catalogue
from tests.second_version import second_version  # noqa: F401 - a fixture

pytestmark = pytest.mark.long

app = autogenerating.app  # a fixture


@pytest.mark.parametrize("settings", SETTINGS)
def test_not_installed_yields_what_the_command_writes(app: Project, settings: str) -> None:
    """Endless diffs: autogenerate writes the operations of `proletarian-sa revision`, with its mark; after that nothing."""
    of_the_app(app)
    app.configure(MODELS, REGISTERED, SETTINGS[settings])
    says = app.check()
    written = app.proposed()

    assert "('proletarian_sa_tables', 'proletarian', 'job', 'archived_job', 0, 1)" in says
    assert app.commanded() == written
    path = app.upgraded()
    assert {"upgrade": 1} == versions_written(path.read_text(encoding="utf-8"), Names())
    assert 1 == version_of(app.engine)
    assert app.is_quiet(times=2)


def test_downgrade_and_up_again(app: Project) -> None:
    """What autogenerate has written leads back, with jobs in the tables, and up again."""
    app.configure(MODELS, REGISTERED)
    app.upgraded()
    for _ in range(2):
        with app.engine.begin() as connection:
            enqueue(connection, "greet")
        app.run("downgrade", "base")

        assert ["alembic_version"] == sa.inspect(app.engine).get_table_names()
        app.run("upgrade", "head")
    assert app.is_quiet()


@pytest.mark.parametrize("settings", ["plain", "all"])
def test_an_older_version_yields_what_the_command_writes(app: Project, settings: str, request: pytest.FixtureRequest) -> None:
    """With tables of version 1 autogenerate writes what the command would, to version 2; downgrade leads back to version 1."""
    app.configure(MODELS, REGISTERED, SETTINGS[settings])
    app.upgraded()
    first = catalogue(app.engine, default_tables)
    request.getfixturevalue("second_version")
    says = app.check()
    written = app.proposed()

    assert "('proletarian_sa_tables', 'proletarian', 'job', 'archived_job', 1, 2)" in says
    assert app.commanded() == written
    app.upgraded()
    assert 2 == version_of(app.engine)
    assert app.is_quiet()
    app.run("downgrade", "-2")
    assert first == catalogue(app.engine, default_tables)
    app.run("upgrade", "head")
    assert 2 == version_of(app.engine)


def test_tables_that_no_revision_has_made(app: Project) -> None:
    """Endless diffs: tables made by `create_all`, in a database that was then stamped, are what they must be."""
    of_the_app(app)
    create_all(app.engine)
    app.configure(MODELS, REGISTERED, SETTINGS["all"])
    app.run("stamp", "head")

    assert app.is_quiet()


def test_half_an_installation_is_made_whole(app: Project) -> None:
    """With one of the two tables there, autogenerate writes the installation, which makes the other."""
    of_the_app(app)
    create_all(app.engine)
    default_tables.archived_job.drop(app.engine)
    app.configure(MODELS, REGISTERED)

    assert app.commanded() == app.proposed()
    app.upgraded()
    assert app.is_quiet()


def test_several_metadata_and_several_pairs(app: Project) -> None:
    """A list of MetaData; two pairs in one database; a pair that is registered twice, or by two objects, is written once."""
    app.configure(
        MODELS,
        """
        class Other(DeclarativeBase):
            metadata = sa.MetaData()

        class Invoice(Other):
            __tablename__ = "invoice"
            id = mapped_column(sa.Integer, primary_key=True)

        second = JobTables(job_table="second", archived_job_table="second_done")
        register(Base.metadata)
        register(Base.metadata)
        register(Base.metadata, tables=JobTables())
        register(Other.metadata, tables=second)
        target_metadata = [Base.metadata, register(Other.metadata)]
        """,
        SETTINGS["schemas"],
    )
    text = app.upgraded().read_text(encoding="utf-8")

    assert 1 == text.count('"job", "archived_job"] from version 0 to version 1')
    assert 1 == text.count('"second", "second_done"] from version 0 to version 1')
    assert app.is_quiet()
    app.run("downgrade", "base")
    assert ["alembic_version"] == sa.inspect(app.engine).get_table_names()
