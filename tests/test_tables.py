"""The tables: created and dropped whole, with the columns and indexes that every claim relies on."""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import proletarian_sa
from proletarian_sa import (
    ArchivedJob,
    ArchivedJobMixin,
    Job,
    JobMixin,
    JobTables,
    TablesForeign,
    TablesMissing,
    check_tables,
    create_all,
    default_tables,
    drop_all,
    enqueue,
    enqueue_many,
    process_next_job,
)
from proletarian_sa.job_ids import UUIDv7
from tests.queue_contents import Base, User, archived, queued, queued_ids, run_due

JOB_COLUMNS = [
    *("job_id", "queue", "job_type", "payload", "attempts", "enqueued_at", "process_at"),
    *("claimed_by", "lease_until", "crashes", "last_error", "unique_key", "headers"),
]
ARCHIVED_COLUMNS = [
    *("job_id", "queue", "job_type", "payload", "attempts", "enqueued_at", "process_at", "status", "finished_at"),
    *("claimed_by", "crashes", "last_error", "unique_key", "headers"),
]
NULLABLE = {"claimed_by", "lease_until", "crashes", "last_error", "unique_key", "headers"}


def default_schema(engine: sa.Engine) -> str | None:
    """Return where the default tables lie: in a schema of their own where a database has schemas inside it."""
    return "proletarian" if engine.dialect.name == "postgresql" else None


def tables_there(engine: sa.Engine, schema: str | None = None) -> set[str]:
    """Return the names of the tables that other transactions see."""
    return set(sa.inspect(engine).get_table_names(schema=schema))


def test_creating_and_dropping_twice(engine: sa.Engine):
    """Install, uninstall: `create_all` leaves what is there, jobs included; `drop_all` takes both tables, gone already or not."""
    schema = default_schema(engine)
    create_all(engine)
    with engine.begin() as connection:
        job_id = enqueue(connection, "tick")
    create_all(engine)
    assert {job_id} == queued_ids(engine)
    assert {"job", "archived_job"} == tables_there(engine, schema)
    check_tables(engine)

    drop_all(engine)
    drop_all(engine)
    assert set() == tables_there(engine, schema)
    create_all(engine)
    assert [] == queued(engine)


def test_on_a_connection(engine: sa.Engine):
    """On a connection nothing is committed for the caller, and both work there twice as well."""
    with engine.connect() as connection:
        create_all(connection)
        create_all(connection)
        check_tables(connection)
        kept = enqueue(connection, "tick")
        connection.commit()
    assert {kept} == queued_ids(engine)

    with engine.connect() as connection:
        drop_all(connection)
        drop_all(connection)
        with pytest.raises(TablesMissing):
            check_tables(connection)
        connection.commit()
    assert set() == tables_there(engine, default_schema(engine))


def test_in_the_callers_transaction(engine: sa.Engine, database: Any):
    """What the caller rolls back was never created, nor dropped."""
    database.require("transactional_ddl")
    with engine.connect() as connection:
        create_all(connection)
        enqueue(connection, "tick")
        connection.rollback()
    assert set() == tables_there(engine, "proletarian")
    with pytest.raises(TablesMissing):
        check_tables(engine)

    create_all(engine)
    with engine.begin() as connection:
        kept = enqueue(connection, "tick")
    with engine.connect() as connection:
        drop_all(connection)
        connection.rollback()
    assert {kept} == queued_ids(engine)


def test_missing_tables_are_named_with_the_cure(engine: sa.Engine):
    """Without the tables the error names the table, the database without its password, and the command to type."""
    with pytest.raises(
        TablesMissing, match=r"There is no table .*job in .* Create the tables once.*create_all\(engine\)"
    ) as caught:
        check_tables(engine)

    password = engine.url.password
    assert password is None or f":{password}@" not in str(caught.value)


@pytest.mark.parametrize("name", ["job", "archived_job"])
def test_a_foreign_table_is_refused(engine: sa.Engine, name: str):
    """A table of the same name that is not ours is left alone; the error has the line that renames ours, and it works."""
    schema = default_schema(engine)
    foreign = sa.Table(name, sa.MetaData(), sa.Column("job_id", sa.Integer, primary_key=True), schema=schema)
    with engine.begin() as connection:
        if schema:
            connection.execute(sa.schema.CreateSchema(schema))
        foreign.create(connection)
        connection.execute(foreign.insert(), {"job_id": 7})

    for call in (create_all, drop_all):
        with pytest.raises(TablesForeign, match=rf"The table .*{name} in .* is not a table of proletarian-sa: .*payload") as caught:
            call(engine)
    assert {name} == tables_there(engine, schema)
    with engine.connect() as connection:
        assert [7] == list(connection.scalars(sa.select(foreign.c.job_id)))

    line = str(caught.value).partition("Rename ours: ")[2].partition(", and pass tables=tables")[0]
    scope: dict[str, Any] = {"JobTables": JobTables}
    exec(line, scope)  # noqa: S102 - the reader would type it
    tables = scope["tables"]
    create_all(engine, tables=tables)
    with engine.begin() as connection:
        enqueue(connection, "tick", tables=tables)
    assert 1 == len(run_due(engine, tables=tables))
    assert {name, "queue_job", "queue_archived_job"} == tables_there(engine, schema)


@pytest.mark.parametrize(
    ("job_table", "archived_job_table"),
    [
        ("queue_job", "queue_done"),
        ("My Jobs", "My Jobs (done)"),
        ("order", "group"),
        ("a`b\"c'd", "percent%s%"),
        ("жук", "жуки"),
    ],
    ids=["plain", "spaces", "keywords", "quotes", "unicode"],
)
def test_names_of_ones_own(engine: sa.Engine, job_table: str, archived_job_table: str):
    """`:job-table`, `:archived-job-table`: any names, whatever must be quoted in them: everything works on them."""
    tables = JobTables(job_table=job_table, archived_job_table=archived_job_table)
    create_all(engine, tables=tables)
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        session.add(tables.Job(job_type="added"))
        enqueue(session.connection(), "core", tables=tables)
        enqueue_many(session, [{"job_type": "many"}], tables=tables)
    assert {job_table, archived_job_table} == tables_there(engine, default_schema(engine))

    ran = run_due(engine, tables=tables)
    assert ["added", "core", "many"] == sorted(job.job_type for job in ran)
    assert 3 == len(archived(engine, tables))
    drop_all(engine, tables=tables)
    assert set() == tables_there(engine, default_schema(engine))


def test_two_queues_in_one_database(queue_engine: sa.Engine):
    """Two `JobTables` share nothing: each worker finds the jobs of its own, ids may coincide, and one drops its own only."""
    other = JobTables(job_table="other_job", archived_job_table="other_archived_job")
    create_all(queue_engine, tables=other)
    shared = UUIDv7().new()
    with Session(queue_engine) as session, session.begin():
        session.add(Job(job_type="mine", job_id=shared))
        session.add(other.Job(job_type="other", job_id=shared))

    assert ["mine"] == [job.job_type for job in run_due(queue_engine)]
    assert ["other"] == [job.job_type for job in run_due(queue_engine, tables=other)]
    assert [("mine", shared)] == [(row.job_type, row.job_id) for row in archived(queue_engine)]
    assert [("other", shared)] == [(row.job_type, row.job_id) for row in archived(queue_engine, other)]
    drop_all(queue_engine, tables=other)
    assert 1 == len(archived(queue_engine))


def models() -> tuple[type[JobMixin], type[ArchivedJobMixin], type[Any]]:
    """Make models on an application's base, which has conventions, and a class and a table named like ours."""

    class AppBase(DeclarativeBase):
        metadata = sa.MetaData(naming_convention={"ix": "ix_%(column_0_label)s", "pk": "pk_%(table_name)s"})

    class Task(JobMixin, AppBase):
        __tablename__ = "task"
        __job_schema__ = None
        note: Mapped[str | None] = mapped_column(sa.String(20))

    class DoneTask(ArchivedJobMixin, AppBase):
        __tablename__ = "done_task"
        __job_schema__ = None

    class Job(AppBase):
        __tablename__ = "job"
        id: Mapped[int] = mapped_column(primary_key=True)

    return Task, DoneTask, Job


def test_mixins_on_the_applications_base(engine: sa.Engine):
    """Models on the application's own base, with its conventions and a column of its own, make a full queue."""
    task_model, done_model, own_job_model = models()
    tables = JobTables(job=task_model, archived_job=done_model)
    own_job_model.metadata.create_all(engine)
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        task = task_model(job_type="added", payload=1)
        task.note = "remember"
        session.add_all([task, own_job_model(id=1)])
        enqueue(session, "called", 2, tables=tables)
    with Session(engine) as session:
        assert ["remember"] == session.scalars(sa.select(task_model.note).where(task_model.note.is_not(None))).all()

    assert [1, 2] == sorted(job.payload for job in run_due(engine, tables=tables))
    assert 2 == len(archived(engine, tables))
    assert {"job", "task", "done_task"} == tables_there(engine)
    assert [] == queued(engine, tables)


def test_models_and_names_do_not_mix():
    """Half a pair, names beside models, or models that have their `JobTables` are refused with what to do."""
    task_model, done_model, _ = models()
    with pytest.raises(TypeError, match="Give both models"):
        JobTables(job=task_model)
    with pytest.raises(TypeError, match="a model has its name in __tablename__"):
        JobTables(job=task_model, archived_job=done_model, job_table="task")
    tables = JobTables(job=task_model, archived_job=done_model)
    with pytest.raises(ValueError, match="Task belongs to a JobTables already"):
        JobTables(job=task_model, archived_job=done_model, max_payload=5)
    assert tables is task_model.job_tables
    with pytest.raises(TypeError, match="Give an Engine or a Connection, not str"):
        create_all("sqlite://")  # type: ignore[arg-type]


def test_a_program_that_knows_the_originals_columns_only(queue_engine: sa.Engine):
    """The original's seven and nine columns are enough to enqueue and to archive by name."""
    schema = default_schema(queue_engine)
    names = ["job_id", "queue", "job_type", "payload", "attempts", "enqueued_at", "process_at"]
    job = sa.table("job", *(sa.column(name, default_tables.job.c[name].type) for name in names), schema=schema)
    more = ["status", "finished_at"]
    done = sa.table(
        "archived_job", *(sa.column(name, default_tables.archived_job.c[name].type) for name in names + more), schema=schema
    )
    with Session(queue_engine) as session, session.begin():
        given = enqueue(session, "given")
    (template,) = queued(queue_engine)
    values = {name: getattr(template, name) for name in names}
    foreign = UUIDv7().new()
    with queue_engine.begin() as connection:
        connection.execute(sa.insert(job), values | {"job_id": foreign})
        connection.execute(
            sa.insert(done), values | {"job_id": UUIDv7().new(), "status": "success", "finished_at": template.process_at}
        )

    assert {given, foreign} == {ran.job_id for ran in run_due(queue_engine)}
    with Session(queue_engine) as session:
        assert 3 == len(session.scalars(sa.select(ArchivedJob)).all())


def test_the_unique_key_is_unique(queue_engine: sa.Engine):
    """The unique key of two queued jobs is refused by the database; any number of jobs have none."""
    Base.metadata.create_all(queue_engine)
    with Session(queue_engine) as session, session.begin():
        enqueue_many(session, [{"job_type": "none"}] * 3)
        job = Job(job_type="keyed")
        job.unique_key = "one"
        session.add(job)
    with Session(queue_engine) as session:
        job = Job(job_type="keyed")
        job.unique_key = "one"
        session.add(job)
        with pytest.raises(sa.exc.IntegrityError):
            session.flush()
        session.rollback()
        session.add(User(name="Ada"))
        session.commit()

    assert 4 == len(run_due(queue_engine))
    assert None is process_next_job(queue_engine, print)


def test_the_public_pair_is_the_default_one():
    """The module's `Job`, `ArchivedJob` and `enqueue` belong to the default tables."""
    assert (Job, ArchivedJob) == (default_tables.Job, default_tables.ArchivedJob)
    assert default_tables is Job.job_tables is ArchivedJob.job_tables
    assert (proletarian_sa.default_tables.job, "proletarian") == (Job.__table__, Job.__table__.schema)
    assert JOB_COLUMNS == list(default_tables.job.c.keys())
    assert ARCHIVED_COLUMNS == list(default_tables.archived_job.c.keys())
