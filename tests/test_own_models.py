"""Models on the application's own base, whatever that base makes of its classes, with columns of the application's own."""

import dataclasses
import datetime as dt
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    DeclarativeBase,
    DeclarativeBaseNoMeta,
    DeclarativeMeta,
    Mapped,
    MappedAsDataclass,
    Session,
    declarative_base,
    mapped_column,
    registry,
)

from proletarian_sa import ArchivedJobMixin, JobMixin, JobTables, create_all, enqueue, enqueue_many
from proletarian_sa.own_models import check_models
from tests.queue_contents import archived, queued, run_due

CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


def plain() -> type[Any]:
    """Return SQLAlchemy's own base."""

    class Base(DeclarativeBase):
        pass

    return Base


def without_metaclass() -> type[Any]:
    """Return the base for classes that have a metaclass of their own."""

    class Base(DeclarativeBaseNoMeta):
        pass

    return Base


def dataclass() -> type[Any]:
    """Return a base that makes dataclasses of its classes."""

    class Base(MappedAsDataclass, DeclarativeBase, kw_only=True):
        pass

    return Base


def dataclass_without_options() -> type[Any]:
    """Return one that leaves everything as it is."""

    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    return Base


def old_style() -> type[Any]:
    """Return the base of applications that are older than SQLAlchemy 2."""
    return declarative_base()


def strict() -> type[Any]:
    """Return a base like SQLModel's: a metaclass, a constructor and a `__setattr__` that know declared fields only."""

    class Meta(DeclarativeMeta):
        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
            namespace["fields"] = {key for key in namespace.get("__annotations__", {}) if not key.startswith("_")}
            return super().__new__(cls, name, bases, namespace, **options)

    class Strict:
        fields: set[str]

        def __init__(self, **data: Any) -> None:
            for name, value in data.items():
                setattr(self, name, value)

        def __setattr__(self, name: str, value: Any) -> None:
            if not name.startswith("_") and name not in self.fields:
                raise ValueError(f"no field {name!r}")
            super().__setattr__(name, value)

    return declarative_base(cls=Strict, metaclass=Meta, constructor=None)


def configured() -> type[Any]:
    """Return a base with types, names, a registry and a constructor of its own."""

    class Base(DeclarativeBase):
        registry = registry(
            metadata=sa.MetaData(naming_convention=CONVENTION),
            type_annotation_map={str: sa.String(7), int: sa.SmallInteger, dt.datetime: sa.Date, Annotated[str, "id"]: sa.CHAR(3)},
        )

        def __init__(self, **values: Any) -> None:
            self.made_by_base = True
            for name, value in values.items():
                assert hasattr(type(self), name), name
                setattr(self, name, value)

    return Base


BASES = [plain, without_metaclass, dataclass, dataclass_without_options, old_style, strict, configured]


def make_models(base: type[Any]) -> tuple[type[JobMixin], type[ArchivedJobMixin]]:
    """Return two models of an application, with columns of its own, one of which has a default."""

    class Task(JobMixin, base):
        __tablename__ = "task"
        __job_schema__ = None

        tenant_id: Mapped[int] = mapped_column(sa.Integer, default=7)
        note: Mapped[str | None] = mapped_column(sa.String(20), default=None)

    class DoneTask(ArchivedJobMixin, base):
        __tablename__ = "done_task"
        __job_schema__ = None

        tenant_id: Mapped[int] = mapped_column(sa.Integer)

    return Task, DoneTask


@pytest.mark.parametrize("make_base", BASES)
def test_every_base_makes_a_full_queue(engine: sa.Engine, make_base: Callable[[], type[Any]]):
    """On every kind of base jobs are made, enqueued, loaded, shown, changed by nobody, run and archived with their columns."""
    task, done = make_models(make_base())
    tables = JobTables(job=task, archived_job=done)
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        made = task(job_type="added", payload={"to": 1}, queue="q", tenant_id=1, note="remember")
        assert ({"to": 1}, 1, "remember", "due") == (made.payload, made.tenant_id, made.note, made.state)
        session.add(made)
        session.add(task(job_type="default", queue="q"))
        enqueue(session, "session", queue="q", tables=tables)
        enqueue(session.connection(), "core", queue="q", tables=tables)
        enqueue_many(session, [{"job_type": "many", "queue": "q", "process_in": 3600}], tables=tables)
    with Session(engine) as session:
        loaded = session.scalars(sa.select(task).where(task.note == "remember")).one()
        assert ("added", 1, {"to": 1}) == (loaded.job_type, loaded.tenant_id, loaded.payload)
        assert f"Task(job_id={made.job_id!r}, job_type='added', queue='q', attempts=0)" == repr(loaded)
        assert 2 == len({loaded, made})
        assert 1 == session.scalar(sa.select(sa.func.count()).where(task.is_scheduled))

    assert ["added", "core", "default", "session"] == sorted(job.job_type for job in run_due(engine, tables=tables, queue="q"))
    assert {"added": 1, "core": 7, "default": 7, "session": 7} == {row.job_type: row.tenant_id for row in archived(engine, tables)}
    with Session(engine) as session:
        assert {"to": 1} == session.scalars(sa.select(done).where(done.job_type == "added")).one().payload
    assert ["many"] == [row.job_type for row in queued(engine, tables)]


@pytest.mark.parametrize("make_base", BASES)
def test_a_wrong_keyword_is_refused(make_base: Callable[[], type[Any]]):
    """A keyword that is no column is a TypeError, or what the base's own constructor says of it, and nothing is half made."""
    task, done = make_models(make_base())
    JobTables(job=task, archived_job=done)
    with pytest.raises((TypeError, ValueError, AssertionError), match="no_such"):
        task(job_type="tick", no_such=1)
    with pytest.raises(TypeError, match="job_type"):
        task(payload=1)

    assert "tick" == task(job_type="tick").job_type


def test_the_bases_constructor_is_called():
    """The application's columns are given to its base's constructor, which may do more."""
    task, done = make_models(configured())
    JobTables(job=task, archived_job=done)
    job = task(job_type="tick", tenant_id=3)

    assert (True, 3) == (job.made_by_base, job.tenant_id)
    assert "success" == done(status="success").status


def test_a_dataclass_by_decorator(engine: sa.Engine):
    """`registry.mapped` works as it is; `registry.mapped_as_dataclass` needs init=False, and says so."""
    reg = registry()

    @reg.mapped
    class Plain(JobMixin):
        __tablename__ = "task"
        __job_schema__ = None
        tenant_id: Mapped[int] = mapped_column(default=7)

    @reg.mapped_as_dataclass(init=False, repr=False, eq=False)
    class Done(ArchivedJobMixin):
        __tablename__ = "done_task"
        __job_schema__ = None
        tenant_id: Mapped[int]

    @reg.mapped_as_dataclass(kw_only=True)
    class Other(JobMixin):
        __tablename__ = "other"
        tenant_id: Mapped[int] = mapped_column(default=7)

    with pytest.raises(TypeError, match=r"The dataclass Other has a constructor of its own.*Make it with init=False"):
        check_models((Other, JobMixin))
    tables = JobTables(job=Plain, archived_job=Done)
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        session.add(Plain(job_type="tick", tenant_id=9))

    assert 1 == len(run_due(engine, tables=tables))
    assert [9] == [row.tenant_id for row in archived(engine, tables)]


def test_an_abstract_class_between(engine: sa.Engine):
    """What several queues of an application share may stand in an abstract class: columns, table arguments, a schema, a name."""

    class Base(DeclarativeBase):
        metadata = sa.MetaData(naming_convention=CONVENTION)

    class Tenanted:
        tenant_id: Mapped[int] = mapped_column(default=7, index=True)

    class AppJob(JobMixin, Tenanted, Base):
        __abstract__ = True
        __job_schema__ = None
        __table_args__ = (sa.CheckConstraint("tenant_id > 0", name="tenant"),)

    class Mail(AppJob):
        __tablename__ = "mail"

    class Report(AppJob):
        __tablename__ = "report"
        __table_args__ = (sa.CheckConstraint("attempts < 9", name="few"), {"comment": "reports"})

    class Done(ArchivedJobMixin, Base):
        __abstract__ = True
        __job_schema__ = None

    class DoneMail(Done):
        __tablename__ = "done_mail"

    class DoneReport(Done):
        __tablename__ = "done_report"

    both = JobTables(job=Mail, archived_job=DoneMail), JobTables(job=Report, archived_job=DoneReport)
    for tables in both:
        create_all(engine, tables=tables)
        with engine.begin() as connection:
            enqueue(connection, tables.job.name, tables=tables)

    assert [["mail"], ["report"]] == [[job.job_type for job in run_due(engine, tables=tables)] for tables in both]
    assert {"ck_mail_tenant"} == names(Mail, sa.CheckConstraint)
    assert {"ck_report_few"} == names(Report, sa.CheckConstraint)
    assert "reports" == Report.__table__.comment
    assert {"mail_queue_process_at", "mail_unique_key", "ix_mail_tenant_id"} == {index.name for index in Mail.__table__.indexes}


def names(model: Any, kind: type[Any]) -> set[Any]:
    """Return the names of a table's constraints of a kind."""
    return {one.name for one in model.__table__.constraints if isinstance(one, kind)}


def test_a_constructor_of_ones_own(engine: sa.Engine):
    """A model may have a constructor that calls ours; what it sets is enqueued on sessions and connections alike."""

    class Base(DeclarativeBase):
        pass

    class Task(JobMixin, Base):
        __job_schema__ = None
        tenant_id: Mapped[int]

        def __init__(self, **options: Any) -> None:
            super().__init__(tenant_id=5, **options)
            self.headers = '{"trace": 1}'

    class DoneTask(ArchivedJobMixin, Base):
        __job_schema__ = None
        tenant_id: Mapped[int]

    tables = JobTables(job=Task, archived_job=DoneTask)
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        enqueue(session, "session", tables=tables)
        enqueue(session.connection(), "core", tables=tables)

    assert 2 == len(run_due(engine, tables=tables))
    assert {("session", 5, '{"trace": 1}'), ("core", 5, '{"trace": 1}')} == {
        (row.job_type, row.tenant_id, row.headers) for row in archived(engine, tables)
    }


def test_a_dataclass_base_knows_only_the_applications_fields():
    """On a base that makes dataclasses our columns are no fields, and equality and hash are those of objects."""
    task, _ = make_models(dataclass())

    assert ["tenant_id", "note"] == [field.name for field in dataclasses.fields(task)]
    assert object.__eq__ is task.__eq__
    assert object.__hash__ is task.__hash__
