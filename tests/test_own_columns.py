"""Columns, table arguments and mapper arguments of the application's own: added to ours, or refused with what to change."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, declared_attr, mapped_column

from proletarian_sa import ArchivedJobMixin, JobMixin, JobTables, create_all, enqueue
from tests.queue_contents import archived, run_due


def new_base() -> type[Any]:
    """Return a base with a registry of its own."""

    class Base(DeclarativeBase):
        pass

    return Base


@pytest.mark.parametrize("as_dict", [False, True])
def test_table_arguments_of_ones_own(engine: sa.Engine, as_dict: bool):
    """The application's `__table_args__` are added to ours: its indexes, constraints and options beside those of the library."""

    class Base(DeclarativeBase):
        pass

    class Task(JobMixin, Base):
        __job_schema__ = None
        __table_args__ = (
            {"comment": "ours", "info": {"app": 1}}
            if as_dict
            else (sa.Index("task_by_type", "job_type"), sa.CheckConstraint("attempts < 100", name="few"), {"info": {"app": 1}})
        )

    class DoneTask(ArchivedJobMixin, Base):
        __job_schema__ = None

    tables = JobTables(job=Task, archived_job=DoneTask)
    create_all(engine, tables=tables)
    with engine.begin() as connection:
        enqueue(connection, "tick", tables=tables)

    assert 1 == len(run_due(engine, tables=tables))
    there = {index["name"] for index in sa.inspect(engine).get_indexes("job")}
    assert {"job_queue_process_at", "job_unique_key"} | (set() if as_dict else {"task_by_type"}) == there
    assert (1, "InnoDB") == (tables.job.info["app"], tables.job.dialect_options["mysql"]["engine"])


def test_mapper_arguments_of_ones_own(engine: sa.Engine):
    """`eager_defaults` fetches at the flush what the database's clock has said."""

    class Base(DeclarativeBase):
        pass

    class Task(JobMixin, Base):
        __job_schema__ = None
        __mapper_args__ = {"eager_defaults": True}  # noqa: RUF012 - as SQLAlchemy spells it
        region: Mapped[str] = mapped_column(sa.String(10), server_default="eu")

    class DoneTask(ArchivedJobMixin, Base):
        __job_schema__ = None

    tables = JobTables(job=Task, archived_job=DoneTask)
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        job = Task(job_type="tick")
        session.add(job)
        session.flush()
        loaded = sa.inspect(job).dict
        assert "eu" == loaded["region"]
        assert dt.UTC is loaded["process_at"].tzinfo

    assert 1 == len(run_due(engine, tables=tables))


def refused() -> dict[str, tuple[Callable[[type[Any]], type[Any]], str]]:
    """Return, by name, what makes a model that cannot serve, and what is said of it."""

    def wrong_order(base: type[Any]) -> type[Any]:
        return type("Task", (base, JobMixin), {"__tablename__": "task"})

    def no_mixin(base: type[Any]) -> type[Any]:
        columns = {"id": mapped_column(sa.Integer, primary_key=True)}
        return type("Task", (base,), {"__tablename__": "task", **columns})

    def version(base: type[Any]) -> type[Any]:
        version_id = mapped_column(sa.Integer, nullable=False)
        return type("Task", (JobMixin, base), {"version_id": version_id, "__mapper_args__": {"version_id_col": version_id}})

    def schema(base: type[Any]) -> type[Any]:
        return type("Task", (JobMixin, base), {"__table_args__": {"schema": "mine"}})

    def computed(base: type[Any]) -> type[Any]:
        table_args = declared_attr.directive(lambda _cls: {"comment": "computed"})
        return type("Task", (JobMixin, base), {"__table_args__": table_args})

    def long_name(base: type[Any]) -> type[Any]:
        return type("Task", (JobMixin, base), {"__tablename__": "t" * 64})

    def key(base: type[Any]) -> type[Any]:
        return type("Task", (JobMixin, base), {"tenant": mapped_column("tenant_id", sa.Integer, key="tenant")})

    return {
        "wrong order": (wrong_order, r"stands before JobMixin. Give the mixin first: class Task\(JobMixin, …\)"),
        "no mixin": (no_mixin, r"Task is not made with JobMixin: class Task\(JobMixin, Base\)"),
        "version": (version, "Task has a version_id_col.*Leave it out of __mapper_args__"),
        "schema": (schema, r"Task.__table_args__ has schema, which the library sets.*__job_schema__"),
        "computed": (computed, r"Task.__table_args__ must be a tuple or a dict"),
        "long name": (long_name, r"Task.__tablename__ 't+' has 64 bytes in UTF-8.*Give a shorter one"),
        "key": (key, r"job.tenant_id has the key 'tenant'. Leave key= out of mapped_column"),
    }


@pytest.mark.parametrize("case", refused())
def test_what_cannot_serve_is_refused(case: str):
    """A model that would fail later is refused when it is made, or made a `JobTables` of, with what to change."""
    make, message = refused()[case]
    base = new_base()
    done = type("DoneTask", (ArchivedJobMixin, base), {})
    with pytest.raises((TypeError, ValueError), match=message):
        JobTables(job=make(base), archived_job=done)


@pytest.mark.parametrize(
    ("column", "in_job", "extra"),
    [
        (
            lambda: mapped_column(sa.Integer, nullable=False),
            False,
            "job has no 'extra' for archived_job",
        ),
        (
            lambda: mapped_column(sa.Integer, sa.Computed("attempts + 1", persisted=True)),
            True,
            "archived_job.extra is computed by the database",
        ),
        (lambda: mapped_column(sa.Integer, default=1), False, "Give it to both models, or with a server_default"),
        (lambda: mapped_column(sa.Integer, nullable=False, server_default="1"), False, 1),
        (lambda: mapped_column(sa.Integer, sa.Computed("attempts + 1", persisted=True)), False, 2),
        (lambda: mapped_column(sa.Integer, nullable=True), False, None),
    ],
    ids=["must be given", "computed twice", "default", "server default", "computed", "nullable"],
)
def test_columns_of_the_archive(engine: sa.Engine, column: Any, in_job: bool, extra: Any):
    """A column that only the archive has needs a value for every job; where no job could be archived the tables are refused."""
    base = new_base()
    task = type("Task", (JobMixin, base), {"__job_schema__": None, **({"extra": column()} if in_job else {})})
    done = type("DoneTask", (ArchivedJobMixin, base), {"__job_schema__": None, "extra": column()})
    if isinstance(extra, str):
        with pytest.raises(TypeError, match=extra):
            JobTables(job=task, archived_job=done)
        return
    tables = JobTables(job=task, archived_job=done)
    create_all(engine, tables=tables)
    with engine.begin() as connection:
        enqueue(connection, "tick", tables=tables)

    assert 1 == len(run_due(engine, tables=tables))
    assert [extra] == [row.extra for row in archived(engine, tables)]
