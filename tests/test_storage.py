"""How PostgreSQL stores the table of queued jobs: with room for what claims write, unless the application says otherwise."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from sqlalchemy.orm import DeclarativeBase

from proletarian_sa import ArchivedJobMixin, JobMixin, JobTables, create_all, default_tables, enqueue_many
from proletarian_sa.cli import main
from proletarian_sa.dialects import statements_for
from tests.catalogue import storage
from tests.checking import check

if TYPE_CHECKING:
    from tests.servers.database import Database

ROOM = "fillfactor=35"
HOT = "SELECT pg_stat_get_xact_tuples_hot_updated('proletarian.job'::regclass)"


def stored(engine: sa.Engine, name: str = "job", schema: str | None = "proletarian") -> list[str]:
    """Return the storage parameters of a table."""
    with engine.connect() as connection:
        return storage(connection, name, schema)


def own(**options: Any) -> JobTables:
    """Return models of an application's own, whose table of jobs has these options."""

    class Base(DeclarativeBase):
        pass

    class Task(JobMixin, Base):
        __table_args__ = options

    class DoneTask(ArchivedJobMixin, Base):
        pass

    return JobTables(job=Task, archived_job=DoneTask)


def test_only_queued_jobs_are_given_room(database: Database, engine: sa.Engine) -> None:
    """The table of queued jobs has room in its pages; the archive, whose rows nobody changes, has all of them full."""
    database.require("storage_parameters")
    create_all(engine)

    assert [ROOM] == stored(engine)
    assert [] == stored(engine, "archived_job")


def test_a_claim_touches_no_index(database: Database, queue_engine: sa.Engine) -> None:
    """All that a claim writes finds room in the pages of the rows themselves, be these as short as they can."""
    database.require("storage_parameters")
    statements, lease = statements_for(queue_engine.dialect, default_tables), dt.timedelta(minutes=1)
    with queue_engine.begin() as connection:
        enqueue_many(connection, [{"job_type": "tick"}] * 1000)
    with queue_engine.begin() as connection:
        claimed = statements.claim(connection, queue="default", token="w" * 50, lease=lease, limit=500)

        assert (500, 500) == (len(claimed), connection.exec_driver_sql(HOT).scalar())


@pytest.mark.parametrize("metadata", ["create_all", "copied"])
def test_however_the_models_are_created(database: Database, engine: sa.Engine, metadata: str) -> None:
    """The application's own `metadata.create_all` gives it room, under a name of its own and in a copy of the MetaData, too."""
    database.require("storage_parameters")
    tables = JobTables(schema=None, job_table='j %s "x', archived_job_table="done")
    copy = sa.MetaData()
    for table in (tables.job, tables.archived_job):
        table.to_metadata(copy)
    (tables.job.metadata if metadata == "create_all" else copy).create_all(engine)

    assert [ROOM] == stored(engine, tables.job.name, None)


def test_the_applications_settings_win(database: Database, engine: sa.Engine) -> None:
    """What `__table_args__` says about storage is all that is set."""
    database.require("storage_parameters")
    try:
        tables = own(postgresql_with={"autovacuum_enabled": True})
    except sa.exc.ArgumentError:
        pytest.skip("no postgresql_with for tables in this SQLAlchemy")
    create_all(engine, tables=tables)

    assert ["autovacuum_enabled=true"] == [option.lower() for option in stored(engine)]


def test_what_is_set_later_stays(database: Database, engine: sa.Engine) -> None:
    """Nothing of ours takes back what somebody has set: not `create_all`, and `check` finds no fault with it."""
    database.require("storage_parameters")
    create_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE proletarian.job RESET (fillfactor)")
    create_all(engine)

    assert [] == stored(engine)
    assert 0 == check(database.url).exit_code


@pytest.mark.parametrize("dialect", ["mysql", "mariadb", "sqlite"])
def test_other_databases_are_told_nothing(dialect: str) -> None:
    """Only PostgreSQL's text has storage parameters."""
    text = CliRunner().invoke(main, ["ddl", "--dialect", dialect]).stdout

    assert "CREATE TABLE" in text
    assert "fillfactor" not in text
