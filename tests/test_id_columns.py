"""The column `job_id` of models on the application's own base: it fits the strategy, or the tables are refused."""

import uuid
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

from proletarian_sa import (
    ArchivedJobMixin,
    ConstantIds,
    DatabaseIds,
    DatabaseNotSupported,
    JobIds,
    JobMixin,
    JobTables,
    UUIDv4,
    create_all,
    enqueue,
    enqueue_many,
)
from tests.observing import add
from tests.queue_contents import archived, queued_ids, run_due
from tests.strategies import Numbers, Words

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def models(job: Any = None, done: Any = None) -> tuple[type[JobMixin], type[ArchivedJobMixin]]:
    """Return models on a base of the application's, with what is to stand in both class bodies, or another in the archive's."""
    base = type("AppBase", (DeclarativeBase,), {})
    bodies = [dict(make()) for make in (job or dict, done or job or dict)]
    return (
        type("Task", (JobMixin, base), {"__tablename__": "task", "__module__": __name__, **bodies[0]}),
        type("DoneTask", (ArchivedJobMixin, base), {"__tablename__": "done_task", "__module__": __name__, **bodies[1]}),
    )


def declared(kind: Any, column_type: Any, *name: str, key: str = "job_id", **options: Any) -> Any:
    """Return what makes a class body with a primary key of its own."""

    def body() -> dict[str, Any]:
        column = mapped_column(*name, column_type, primary_key=True, **options)
        return {"__annotations__": {key: Mapped[kind]}, key: column}

    return body


def says(job_ids: JobIds, **more: Any) -> Any:
    """Return what makes a class body that says where ids come from."""
    return lambda: {"__job_ids__": job_ids, **more}


def goes_round(engine: sa.Engine, tables: JobTables, kind: type[Any]) -> None:
    """Enqueue in three ways, run, and find the ids in the archive."""
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        ids = [enqueue(session, "tick", tables=tables), *enqueue_many(session, [{"job_type": "tick"}] * 2, tables=tables)]
        session.add(job := tables.Job(job_type="tick"))
        session.flush()
        ids.append(job.job_id)

    assert {kind} == {type(job_id) for job_id in ids}
    assert set(ids) == queued_ids(engine, tables)
    assert set(ids) == {job.job_id for job in run_due(engine, tables=tables)}
    assert set(ids) == {row.job_id for row in archived(engine, tables)}
    assert max(ids) < add(engine, tables=tables) or kind is not int


def test_models_that_say_which_ids(engine: sa.Engine):
    """`__job_ids__` on both models is all that is needed: it makes the column, and `JobTables` makes its ids."""

    class AppBase(DeclarativeBase):
        pass

    class Task(JobMixin, AppBase):
        __tablename__ = "task"
        __job_ids__: ClassVar[JobIds] = DatabaseIds()
        note: Mapped[str | None] = mapped_column(sa.String(50))

    class DoneTask(ArchivedJobMixin, AppBase):
        __tablename__ = "done_task"
        __job_ids__ = Task.__job_ids__

    goes_round(engine, JobTables(job=Task, archived_job=DoneTask), int)


def test_models_that_are_dataclasses(engine: sa.Engine):
    """Models on a base that makes dataclasses take ids of the database's too, the column declared here or there."""

    class AppBase(MappedAsDataclass, DeclarativeBase):
        pass

    class Task(JobMixin, AppBase):
        __tablename__ = "task"
        __job_ids__: ClassVar[JobIds] = DatabaseIds()

    class DoneTask(ArchivedJobMixin, AppBase):
        __tablename__ = "done_task"
        job_id: Mapped[int] = mapped_column(INTEGER, primary_key=True, default=None)

    goes_round(engine, JobTables(job=Task, archived_job=DoneTask), int)


def test_models_with_table_arguments_of_their_own(engine: sa.Engine):
    """An application's `__table_args__` and ids of the database's go together: no number is given again."""
    job, done = models(says(DatabaseIds(), __table_args__={"comment": "ours"}))
    goes_round(engine, JobTables(job=job, archived_job=done), int)


def test_models_with_ids_of_another_type(engine: sa.Engine):
    """`__job_ids__` takes strategies of the application's own."""
    job, done = models(says(Words()))
    goes_round(engine, JobTables(job=job, archived_job=done), str)


def test_a_job_id_in_the_class_body(engine: sa.Engine):
    """A model may declare the column itself, to fit the strategy."""
    column, ids = declared(int, INTEGER), says(DatabaseIds())
    job, done = models(lambda: {**column(), **ids()})
    goes_round(engine, JobTables(job=job, archived_job=done), int)


def test_a_job_id_in_the_class_body_for_ids_of_the_applications(engine: sa.Engine):
    """So may one whose ids the application makes."""
    job, done = models(declared(int, sa.BigInteger()))
    goes_round(engine, JobTables(job=job, archived_job=done, job_ids=Numbers()), int)


def test_a_big_integer_in_the_class_body(engine: sa.Engine):
    """A plain BIGINT is numbered by servers; SQLite, which would not number it, says what to write."""
    job, done = models(declared(int, sa.BigInteger()))
    tables = JobTables(job=job, archived_job=done, job_ids=DatabaseIds())
    if engine.dialect.name != "sqlite":
        goes_round(engine, tables, int)
        return
    with pytest.raises(DatabaseNotSupported, match=r"INTEGER with AUTOINCREMENT, and task\.job_id is BIGINT.*__job_ids__ = Data"):
        create_all(engine, tables=tables)


def test_numbers_that_sqlite_would_give_again():
    """On SQLite an INTEGER without AUTOINCREMENT would get archived ids again: refused at enqueue, before anything is inserted."""
    job, done = models(declared(int, INTEGER))
    tables = JobTables(job=job, archived_job=done, job_ids=DatabaseIds())
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(DatabaseNotSupported, match=r"task\.job_id is INTEGER\. Leave job_id to"):
        enqueue(connection, "tick", tables=tables)
    engine.dispose()


def test_the_strategy_of_the_tables_wins():
    """`job_ids` given to `JobTables` makes the ids where the columns fit, whatever the models say."""
    job, done = models()
    tables = JobTables(job=job, archived_job=done, job_ids=UUIDv4())

    assert 4 == tables.Job(job_type="tick").job_id.version


DO_NOT_FIT: dict[str, tuple[Any, Any, JobIds | None, str]] = {
    "uuid columns, database ids": (
        None,
        None,
        DatabaseIds(),
        r"task\.job_id is .*, for UUID, but the ids of DatabaseIds are int",
    ),
    "int columns, uuids": (
        declared(int, sa.BigInteger()),
        None,
        None,
        r"task\.job_id is .*, for int, but the ids of UUIDv7 are UUID",
    ),
    "the archive alone": (
        says(DatabaseIds()),
        dict,
        None,
        r"done_task\.job_id is .*, for UUID, but the ids of DatabaseIds are int.*__job_ids__ = DatabaseIds\(\) for example",
    ),
    "another strategy": (says(DatabaseIds()), None, ConstantIds("x"), "for int, but the ids of ConstantIds are str"),
    "not numbered": (
        declared(int, sa.BigInteger(), autoincrement=False),
        None,
        DatabaseIds(),
        r"task\.job_id is BigInteger\(\), which no database numbers, but DatabaseIds leaves the ids to it",
    ),
    "another key": (
        declared(int, sa.Integer(), key="number"),
        None,
        None,
        "The primary key of 'task' must be the one column job_id, not .*Leave job_id to the mixin",
    ),
    "another name": (
        declared(uuid.UUID, sa.Uuid(), "id"),
        None,
        None,
        "The primary key of 'task' must be the one column job_id, not id",
    ),
}


@pytest.mark.parametrize(("job", "done", "job_ids", "message"), DO_NOT_FIT.values(), ids=DO_NOT_FIT)
def test_columns_that_do_not_fit_are_refused(job: Any, done: Any, job_ids: JobIds | None, message: str):
    """A column that cannot hold the strategy's ids is refused when the tables are put together; the models stay free."""
    task, done_task = models(job, done)
    with pytest.raises(ValueError, match=message):
        JobTables(job=task, archived_job=done_task, job_ids=job_ids)

    assert "job_tables" not in vars(task)
    assert "job_tables" not in vars(done_task)
