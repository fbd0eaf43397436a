"""Autogenerate finds the tables whatever they, their schema, their ids and the project's constraints are called."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import JobTables, create_all, default_tables, drop_all, enqueue, process_next_job
from tests import autogenerating
from tests.autogenerating import MODELS, REGISTERED, SETTINGS, Project, of_the_app, version_of
from tests.catalogue import catalogue
from tests.strategies import Numbers, Octets, OnlyNew, Some, Words

pytestmark = pytest.mark.long

app = autogenerating.app  # a fixture

PAIR = """
pair = JobTables(schema={schema!r}, job_table={job!r}, archived_job_table={archived!r})
target_metadata = register(Base.metadata, tables=pair)
"""
CONVENTIONS = {
    "usual": {
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    },
    "renaming": {"ix": "ix_%(table_name)s_%(constraint_name)s", "pk": "%(table_name)s_key"},
}


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (("own", "q_job", "q_done"), "plain"),
        (("own", "Job's tâble", "the $archive % of; it"), "all"),
        ((None, "job", "archived_job"), "all"),
    ],
    ids=["own", "odd", "none"],
)
def test_names_of_ones_own(
    app: Project, database: Any, monkeypatch: pytest.MonkeyPatch, names: tuple[str | None, str, str], settings: str
) -> None:
    """Tables of other names, in another schema or in none, are written, found and left alone as the default ones."""
    schema, job, archived = names
    if schema and database.schemas:
        schema = database.create_schema()
        monkeypatch.setenv("APP_SCHEMAS", schema)
    of_the_app(app)
    app.configure(MODELS, PAIR.format(schema=schema, job=job, archived=archived), SETTINGS[settings])
    options = ["--schema", schema or "", "--job-table", job, "--archived-job-table", archived]

    assert app.commanded(*options) == app.proposed()
    app.upgraded()
    assert 1 == version_of(app.engine, JobTables(schema=schema, job_table=job, archived_job_table=archived))
    assert app.is_quiet()


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_naming_conventions_leave_our_names_alone(app: Project, convention: str) -> None:
    """Whatever the project calls its constraints and indexes, ours have the names that the statements use."""
    metadata = f"Base.metadata = sa.MetaData(naming_convention={CONVENTIONS[convention]!r})"
    app.configure(MODELS.replace("metadata = sa.MetaData()", metadata.removeprefix("Base.")), REGISTERED, SETTINGS["types"])
    app.upgraded()
    names = {name for table in catalogue(app.engine, default_tables).values() for name, *_ in table["indexes"]}

    assert {"job_queue_process_at", "job_unique_key", "archived_job_finished_at"} == names
    assert app.is_quiet()


@pytest.mark.parametrize("settings", ["plain", "all"])
def test_the_default_schema_by_its_name(app: Project, database: Any, settings: str) -> None:
    """JobTables(schema=…) with the schema that the connection uses anyway, which Alembic calls None."""
    database.require("schemas")
    with app.engine.connect() as connection:
        schema = connection.dialect.default_schema_name
    app.configure(MODELS, PAIR.format(schema=schema, job="job", archived="archived_job"), SETTINGS[settings])
    app.upgraded()

    assert app.is_quiet()
    assert {"job", "archived_job"} < set(sa.inspect(app.engine).get_table_names())


def test_the_search_path(app: Project, database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tables' schema is the first in the search path, so that Alembic finds them under no schema."""
    if app.engine.dialect.name != "postgresql":
        pytest.skip("no search path")
    schema = database.create_schema()
    url = database.url.update_query_dict({"options": f"-csearch_path={schema}"})
    monkeypatch.setenv("APP_DATABASE_URL", url.render_as_string(hide_password=False))
    for settings in ("plain", "types"):
        app.configure(MODELS, PAIR.format(schema=schema, job="job", archived="archived_job"), SETTINGS[settings])
        if settings == "plain":
            app.upgraded()
        assert app.is_quiet()
    assert {"job", "archived_job"} < set(sa.inspect(app.engine).get_table_names(schema=schema))


def test_a_version_table_in_another_schema(app: Project, database: Any) -> None:
    """Where Alembic keeps its own table does not matter, nor whether that is our schema."""
    schema = database.create_schema()
    app.configure(
        MODELS,
        PAIR.format(schema=schema, job="job", archived="archived_job"),
        f"options |= {{'version_table_schema': {schema!r}}}",
    )
    app.upgraded()

    assert app.is_quiet()
    assert {"job", "archived_job", "alembic_version"} == set(sa.inspect(app.engine).get_table_names(schema=schema))


def test_ids_of_the_database(app: Project) -> None:
    """Tables with numbered ids are written as by `--job-ids database`."""
    of_the_app(app)
    app.configure(MODELS, "target_metadata = register(Base.metadata, tables=JobTables(job_ids=DatabaseIds()))", SETTINGS["all"])

    assert app.commanded("--job-ids", "database") == app.proposed()
    app.upgraded()
    assert app.is_quiet()


class AsText(OnlyNew):
    """UUIDs as text, on every database."""

    column_type = sa.Uuid(native_uuid=False)


OWN_IDS = {"words": Words, "numbers": Numbers, "octets": Octets, "some": Some, "text": AsText}


@pytest.mark.parametrize("ids", OWN_IDS)
def test_ids_of_ones_own(app: Project, ids: str) -> None:
    """Ids of any type have a column of that type, numbered only where the database is to do that."""
    app.configure(
        MODELS,
        f"from tests.test_autogenerate_names import OWN_IDS\npair = JobTables(job_ids=OWN_IDS[{ids!r}]())",
        "target_metadata = register(Base.metadata, tables=pair)",
        SETTINGS["types"],
    )
    app.upgraded()
    tables = JobTables(job_ids=OWN_IDS[ids]())
    by_revision = catalogue(app.engine, tables)

    assert app.is_quiet()
    drop_all(app.engine, tables=tables)
    create_all(app.engine, tables=tables)
    assert catalogue(app.engine, tables) == by_revision


def test_jobs_run_in_the_tables(app: Project) -> None:
    """The tables that autogenerate has made serve jobs, under a convention that would rename their indexes, too."""
    metadata = f"metadata = sa.MetaData(naming_convention={CONVENTIONS['renaming']!r})"
    app.configure(MODELS.replace("metadata = sa.MetaData()", metadata), REGISTERED)
    app.upgraded()
    with app.engine.begin() as connection:
        enqueue(connection, "greet")
    seen: list[str] = []
    process_next_job(app.engine, lambda job_type, _payload: seen.append(job_type))

    assert ["greet"] == seen
