"""Two sets of tables in one process and one database, and the application's own `Job` beside them."""

import subprocess
import sys
import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from proletarian_sa import (
    ArchivedJobMixin,
    JobMixin,
    JobTables,
    TablesForeign,
    create_all,
    enqueue,
    enqueue_many,
    events,
    process_next_job,
)
from tests.observing import add
from tests.queue_contents import archived, queued, queued_ids, run_due

JOBS = 30


def two_sets(database: Any, layout: str) -> list[JobTables]:
    """Return two sets that share either their names or their schema."""
    if layout == "one schema":
        return [JobTables(job_table=f"{name}_job", archived_job_table=f"{name}_archived_job") for name in ("mail", "report")]
    return [JobTables(schema=database.create_schema()) for _ in range(2)]


@pytest.mark.parametrize("layout", ["one schema", "two schemas"])
def test_no_worker_runs_the_jobs_of_the_other_set(database: Any, engine: sa.Engine, work: Any, layout: str):
    """Name clash of two sets: their workers, under one queue name and at the same time, run the jobs of their own set only."""
    sets = two_sets(database, layout)
    ids: list[set[uuid.UUID]] = []
    for tables in sets:
        create_all(engine, tables=tables)
        with Session(engine) as session, session.begin():
            rows = [{"job_type": "work"}] * JOBS
            ids.append({*enqueue_many(session, rows, tables=tables), enqueue(session, "work", tables=tables)})
    ran: list[list[uuid.UUID]] = [[], []]
    recorders = []
    for tables, seen in zip(sets, ran, strict=True):
        worker, recorder = work(lambda job, seen=seen: seen.append(job.job_id), engine=engine, tables=tables)
        recorders.append(recorder)
        worker.start()
    for recorder in recorders:
        recorder.wait_for(events.JobSucceeded, count=JOBS + 1)

    assert ids == [set(seen) for seen in ran]
    for tables, expected in zip(sets, ids, strict=True):
        assert [] == queued(engine, tables)
        assert expected == {row.job_id for row in archived(engine, tables)}


def test_two_sets_in_one_transaction(database: Any, engine: sa.Engine):
    """Jobs of both sets belong to one transaction, may have one id, and are queried together; one set may have no tables yet."""
    mail, report = two_sets(database, "one schema")
    create_all(engine, tables=mail)
    add(engine, tables=mail)
    assert 1 == len(run_due(engine, tables=mail))
    create_all(engine, tables=report)
    job_id = uuid.uuid4()
    with Session(engine) as session:
        session.add_all([mail.Job(job_type="mail", job_id=job_id), report.Job(job_type="report", job_id=job_id)])
        session.flush()
        both = sa.select(mail.Job.job_type, report.Job.job_type).join(report.Job, mail.Job.job_id == report.Job.job_id)
        assert [("mail", "report")] == [tuple(row) for row in session.execute(both)]
        assert "report" == session.get_one(report.Job, job_id).job_type
        session.rollback()
    assert [] == queued(engine, mail) + queued(engine, report)

    add(engine, tables=report)
    assert None is process_next_job(engine, print, tables=mail)
    assert 1 == len(queued_ids(engine, report))


def test_models_of_ones_own_in_the_way_of_another_table(engine: sa.Engine):
    """Where the application has a table of that name already, models on its base are told which line of theirs to change."""

    class Base(DeclarativeBase):
        pass

    class Task(JobMixin, Base):
        __job_schema__ = None

    class DoneTask(ArchivedJobMixin, Base):
        __job_schema__ = None

    foreign = sa.Table("job", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    foreign.create(engine)
    with pytest.raises(TablesForeign, match=r"Task\.__tablename__ = 'queue_job', or another __job_schema__"):
        create_all(engine, tables=JobTables(job=Task, archived_job=DoneTask))


APPLICATION = """
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, configure_mappers, mapped_column, relationship

class Base(DeclarativeBase):
    metadata = sa.MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_name)s", "pk": "pk_%(table_name)s"})

class Company(Base):
    __tablename__ = "company"
    id: Mapped[int] = mapped_column(primary_key=True)
    jobs: Mapped[list["Job"]] = relationship("Job", back_populates="company")

class Job(Base):
    __tablename__ = "job"
    id: Mapped[int] = mapped_column(primary_key=True)
    company_id: Mapped[int] = mapped_column(sa.ForeignKey("company.id"), index=True)
    company: Mapped["Company"] = relationship("Company", back_populates="jobs")

class ArchivedJob(Base):
    __tablename__ = "archived_job"
    id: Mapped[int] = mapped_column(primary_key=True)
"""
LIBRARY = """
import proletarian_sa
other = proletarian_sa.JobTables(schema=None, job_table="queue_job", archived_job_table="queue_archived_job")
"""
CHECKS = """
configure_mappers()
assert Job is not proletarian_sa.Job is not other.Job
assert {"company", "job", "archived_job"} == set(Base.metadata.tables)
assert "pk_job" == Job.__table__.primary_key.name and proletarian_sa.Job.__table__.primary_key.name is None
assert Company.jobs.property.mapper.class_ is Job
proletarian_sa.Job(job_type="x"), other.Job(job_type="x"), Job(id=1)
"""


@pytest.mark.parametrize("order", [(APPLICATION, LIBRARY), (LIBRARY, APPLICATION)], ids=["before", "after"])
def test_the_order_of_imports(order: tuple[str, str]):
    """Name clash with the application: whichever is imported first, its `Job`, named in its relationships, and ours are apart."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "".join(order) + CHECKS], capture_output=True, text=True, check=False
    )

    assert (0, "") == (done.returncode, done.stderr)


def test_a_class_named_job_on_both_sides(engine: sa.Engine):
    """An application with a `Job` of its own puts ours on the same base under another name: its relationships find its own."""

    class Base(DeclarativeBase):
        metadata = sa.MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_name)s"})

    class Company(Base):
        __tablename__ = "company"
        id: Mapped[int] = mapped_column(primary_key=True)
        jobs: Mapped[list[Any]] = sa.orm.relationship("Job")

    class Job(Base):
        __tablename__ = "job"
        id: Mapped[int] = mapped_column(primary_key=True)
        company_id: Mapped[int] = mapped_column(sa.ForeignKey("company.id"), index=True)

    class QueueJob(JobMixin, Base):
        __tablename__ = "queue_job"
        __job_schema__ = None

    class QueueArchivedJob(ArchivedJobMixin, Base):
        __tablename__ = "queue_archived_job"
        __job_schema__ = None

    tables = JobTables(job=QueueJob, archived_job=QueueArchivedJob)
    Base.metadata.create_all(engine)
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        session.add_all([Company(id=1, jobs=[Job(id=1)]), QueueJob(job_type="tick")])

    assert 1 == len(run_due(engine, tables=tables))
    there = {index["name"] for index in sa.inspect(engine).get_indexes("queue_job")}
    assert {"queue_job_queue_process_at", "queue_job_unique_key"} == there
