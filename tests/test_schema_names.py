"""Where the tables lie: in a schema of ours, in the application's database, or where the application maps them."""

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from proletarian_sa import ArchivedJob, Job, JobTables, create_all, default_tables, drop_all, enqueue, enqueue_many
from tests.queue_contents import archived, queued_ids, run_due
from tests.test_tables import default_schema, tables_there

MAP = "schema_translate_map"


class AppBase(DeclarativeBase):
    """The application's own models."""


class Thing(AppBase):
    """A table in the schema of a tenant."""

    __tablename__ = "thing"
    __table_args__ = {"schema": "tenant"}  # noqa: RUF012 - as SQLAlchemy spells it

    id: Mapped[int] = mapped_column(primary_key=True)


class Plain(AppBase):
    """A table without a schema."""

    __tablename__ = "plain"

    id: Mapped[int] = mapped_column(primary_key=True)


def second_schema(database: Any, engine: sa.Engine) -> str:
    """Return the name of a second schema, that engine's connections can reach: created, or a file attached."""
    if database.schemas:
        return str(database.create_schema())
    path = database.url.database.replace("test.db", "second.db")
    sa.event.listen(engine, "connect", lambda raw, _record: raw.execute("ATTACH ? AS second", (path,)))
    engine.dispose()
    return "second"


@pytest.fixture
def second(database: Any, engine: sa.Engine) -> str:
    """Make a second schema."""
    return second_schema(database, engine)


def use_everything(engine: sa.Engine, **options: Any) -> None:
    """Add, call, query, update and run on an engine, and check that all of it was about the same tables."""
    with Session(engine) as session:
        if options:
            session.connection(execution_options=options)
        ids = {enqueue(session, "called"), *enqueue_many(session, [{"job_type": "many"}])}
        enqueue_many(session, iter([{"job_type": "streamed"}]))
        job = Job(job_type="added", queue="mine")
        session.add(job)
        session.flush()
        ids.add(job.job_id)
        ids.add(enqueue(session.connection(), "core"))
        assert ids < set(session.scalars(sa.select(Job.job_id)))
        session.execute(sa.update(Job).where(Job.queue == "mine").values(queue="default"))
        nested = sa.select(Job.job_id).where(Job.job_id.in_(sa.select(Job.job_id).where(Job.job_type == "added")))
        assert [job.job_id] == session.scalars(nested).all()
        assert "default" == session.get_one(Job, job.job_id, populate_existing=True).queue
        session.commit()


def test_an_engine_that_nobody_configured(engine: sa.Engine):
    """Everything works on a plain engine: MetaData.create_all, adding, calling, queries, a worker, drop_all."""
    schema = default_schema(engine)
    if schema:
        with engine.begin() as connection:
            connection.execute(sa.schema.CreateSchema(schema))
    default_tables.job.metadata.create_all(engine)
    default_tables.job.metadata.create_all(engine)
    assert {"job", "archived_job"} == tables_there(engine, schema)

    use_everything(engine)
    ran = run_due(engine)
    assert 5 == len(ran)
    with Session(engine) as session:
        assert {job.job_id for job in ran} == set(session.scalars(sa.select(ArchivedJob.job_id)))
    drop_all(engine)
    assert set() == tables_there(engine, schema)


def test_the_applications_map_on_the_engine(database: Any, engine: sa.Engine, second: str):
    """A map that knows nothing of us leaves our tables where they are, given with the engine or derived from it."""
    create_all(engine)
    mapped = engine.execution_options(**{MAP: {"tenant": second}})
    AppBase.metadata.create_all(mapped)
    use_everything(mapped)
    assert 5 == len(run_due(mapped))
    assert 5 == len(archived(engine))
    with Session(mapped) as session, session.begin():
        session.add_all([Thing(id=1), Job(job_type="beside")])
    assert ["thing"] == list(tables_there(engine, second))
    assert 1 == len(run_due(mapped))

    configured = database.create_engine(execution_options={MAP: {"tenant": None}})
    Thing.__table__.create(configured)
    with Session(configured) as session, session.begin():
        session.add_all([Thing(id=2), Job(job_type="beside")])
    assert 1 == len(run_due(configured))
    assert "thing" in tables_there(engine)


@pytest.mark.parametrize("given", [{"tenant": "second"}, {"tenant": None}, {None: "second"}], ids=["schema", "nothing", "default"])
def test_the_applications_map_on_a_connection(engine: sa.Engine, second: str, given: dict[str | None, str | None]):
    """A map of a connection, or of a session's connection, leaves our tables where they are, whatever it maps."""
    create_all(engine)
    mapping = {key: second if value == "second" else value for key, value in given.items()}
    with engine.connect().execution_options(**{MAP: mapping}) as connection:
        ids = {enqueue(connection, "core"), *enqueue_many(connection, [{"job_type": "many"}])}
        assert ids == set(connection.scalars(sa.select(default_tables.job.c.job_id)))
        connection.commit()
    assert ids == queued_ids(engine)
    assert 2 == len(run_due(engine))

    use_everything(engine, **{MAP: mapping})
    assert 5 == len(run_due(engine))
    assert set() == tables_there(engine, second)


@pytest.mark.parametrize("given", [{"tenant": "second"}, {"tenant": None}, {None: "second"}], ids=["schema", "nothing", "default"])
def test_the_applications_map_on_a_statement(engine: sa.Engine, second: str, given: dict[str | None, str | None]):
    """A map of a single statement leaves our tables where they are, whatever it maps."""
    create_all(engine)
    mapping = {key: second if value == "second" else value for key, value in given.items()}
    options = {MAP: mapping}
    with Session(engine) as session:
        job_id = enqueue(session, "tick")
        session.flush()
        assert [job_id] == session.scalars(sa.select(Job.job_id).execution_options(**options)).all()
        assert [job_id] == [job.job_id for job in session.scalars(sa.select(Job), execution_options=options)]
        session.execute(sa.update(Job).values(queue="other").execution_options(**options))
        assert ["other"] == session.scalars(sa.select(Job.queue)).all()
        session.execute(sa.delete(Job), execution_options=options)
        session.commit()

    assert set() == queued_ids(engine)


def test_the_applications_own_mapping_of_our_schema_wins(engine: sa.Engine, second: str):
    """Whoever maps the schema `proletarian` decides where the tables lie: for creating, enqueueing and the worker."""
    mapped = engine.execution_options(**{MAP: {"proletarian": second}})
    create_all(mapped)
    create_all(mapped)
    use_everything(mapped)

    assert {"job", "archived_job"} == tables_there(engine, second)
    assert set() == tables_there(engine, default_schema(engine))
    assert 5 == len(run_due(mapped))
    create_all(engine)
    assert [] == archived(engine)
    assert 5 == len(archived(mapped))
    drop_all(mapped)
    assert set() == tables_there(engine, second)
    assert {"job", "archived_job"} == tables_there(engine, default_schema(engine))


def test_a_map_to_the_same_name_means_what_it_says(database: Any):
    """Mapping our schema to its own name asks for that schema also where it would fall away."""
    if database.schemas:
        pytest.skip("no schema that belongs to one test alone under a fixed name")
    engine = database.create_engine()
    path = database.url.database.replace("test.db", "ours.db")
    sa.event.listen(engine, "connect", lambda raw, _record: raw.execute("ATTACH ? AS proletarian", (path,)))
    mapped = engine.execution_options(**{MAP: {"proletarian": "proletarian"}})
    create_all(mapped)
    create_all(mapped)
    use_everything(mapped)

    assert 5 == len(run_due(mapped))
    assert {"job", "archived_job"} == tables_there(engine, "proletarian")
    assert set() == tables_there(engine)


def test_statements_of_the_applications_own(engine: sa.Engine, second: str):
    """An application that maps None on some connections and nothing on others may run the same statement on both.

    SQLAlchemy refuses that once both have a map, so ours must not be one.
    """
    create_all(engine)
    Plain.__table__.create(engine)
    tenant = engine.execution_options(**{MAP: {None: second}})
    Plain.__table__.create(tenant)
    query = sa.select(Plain.id)
    for number, first in enumerate([(engine, tenant), (tenant, engine), (engine, tenant)]):
        for here in first:
            with Session(here) as session, session.begin():
                session.add(Plain(id=10 * (number + 1) + (here is tenant)))
                enqueue(session, "beside")
            with here.connect() as connection:
                assert {here is tenant} == {bool(value % 2) for value in connection.scalars(query)}

    assert 6 == len(run_due(tenant))
    assert ["plain"] == list(tables_there(engine, second))


def test_an_explicit_schema_is_honoured(engine: sa.Engine, second: str):
    """A schema of the caller's choice is used where there are schemas, on MySQL and MariaDB too; on SQLite it falls away."""
    tables = JobTables(schema=second)
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        session.add(tables.Job(job_type="added"))
        enqueue(session.connection(), "core", tables=tables)

    honoured = engine.dialect.name != "sqlite"
    assert {"job", "archived_job"} == tables_there(engine, second if honoured else None)
    assert set() == tables_there(engine, None if honoured else second)
    assert 2 == len(run_due(engine, tables=tables))
    mapped = engine.execution_options(**{MAP: {"tenant": second}})
    with Session(mapped) as session, session.begin():
        session.add(tables.Job(job_type="mapped"))
        enqueue(session.connection(), "mapped", tables=tables)
    assert 2 == len(run_due(mapped, tables=tables))
    drop_all(mapped, tables=tables)
    assert set() == tables_there(engine, second if honoured else None)


def test_a_forgotten_connection_goes_back_at_once(database: Any):
    """A connection that the application drops without closing is back in its pool at once, as without us."""
    engine = database.create_engine()
    connection: sa.Connection | None = engine.connect()
    alive = weakref.ref(connection)
    gc.disable()
    try:
        del connection
        assert None is alive()
    finally:
        gc.enable()


def test_without_a_schema_the_connection_decides(engine: sa.Engine):
    """`schema=None`: the tables lie where the connection looks first."""
    tables = JobTables(schema=None)
    create_all(engine, tables=tables)
    with engine.begin() as connection:
        enqueue(connection, "tick", tables=tables)

    assert {"job", "archived_job"} == tables_there(engine)
    assert 1 == len(run_due(engine, tables=tables))


@contextlib.contextmanager
def search_path(engine: sa.Engine, path: str) -> Iterator[sa.Connection]:
    """Yield a connection that looks in other schemas first."""
    with engine.connect() as connection:
        connection.exec_driver_sql(f"SET search_path TO {path}")
        yield connection


def test_the_search_path_of_a_tenant(database: Any, queue_engine: sa.Engine):
    """search_path: neither a tenant's table of the same name first in the search path nor an empty path leads anywhere else."""
    if queue_engine.dialect.name != "postgresql":
        pytest.skip("no search path")
    tenant = database.create_schema()
    with queue_engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {tenant}.job (id int)")
    for path in (tenant, "''"):
        with search_path(queue_engine, path) as connection:
            with Session(connection) as session:
                ids = {enqueue(session, "tick"), *enqueue_many(session, [{"job_type": "many"}])}
                session.commit()
                assert ids == set(session.scalars(sa.select(Job.job_id)))
            connection.commit()
        pathed = database.create_engine(connect_args={"options": f"-c search_path={path}"})
        assert ids == {job.job_id for job in run_due(pathed)}

    followed = JobTables(schema=None)
    with search_path(queue_engine, tenant) as connection:
        connection.exec_driver_sql(f"DROP TABLE {tenant}.job")
        create_all(connection, tables=followed)
        enqueue(connection, "tick", tables=followed)
        connection.commit()
    assert {"job", "archived_job"} == tables_there(queue_engine, tenant)


class OtherBase(DeclarativeBase):
    """An application that has jobs of its own."""

    metadata = sa.MetaData(naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_name)s"})


class Company(OtherBase):
    """What offers jobs."""

    __tablename__ = "company"

    id: Mapped[int] = mapped_column(primary_key=True)
    jobs: Mapped[list["Vacancy"]] = sa.orm.relationship("Job", back_populates="company")


class Vacancy(OtherBase):
    """Mapped under the name `Job` to a table `job`."""

    __tablename__ = "job"

    id: Mapped[int] = mapped_column(primary_key=True)
    company_id: Mapped[int] = mapped_column(sa.ForeignKey("company.id"), index=True)
    company: Mapped[Company] = sa.orm.relationship(back_populates="jobs")


OtherBase.registry._class_registry["Job"] = OtherBase.registry._class_registry.pop("Vacancy")


def test_an_application_with_a_job_of_its_own(engine: sa.Engine):
    """Name clash with the application: a class `Job` and a table `job` of the application's live beside ours."""
    tables = default_tables if default_schema(engine) else JobTables(job_table="queue_job", archived_job_table="queue_archived_job")
    OtherBase.metadata.create_all(engine)
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        session.add(Company(id=1, jobs=[Vacancy(id=1), Vacancy(id=2)]))
        session.add(tables.Job(job_type="publish", payload=1))
    with Session(engine) as session:
        assert 2 == len(session.get_one(Company, 1).jobs)
        assert ["publish"] == session.scalars(sa.select(tables.Job.job_type)).all()

    assert [1] == [job.payload for job in run_due(engine, tables=tables)]
