"""Put the two tables on the application's own declarative base, under names of its own."""

import os
import uuid

from sqlalchemy import ForeignKey, String, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from proletarian_sa import ArchivedJobMixin, JobMixin, JobRegistry, JobTables, process_next_job

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///own_tables.db"))
if engine.dialect.name == "sqlite":  # which looks at foreign keys only when it is told to
    event.listen(engine, "connect", lambda connection, _record: connection.execute("PRAGMA foreign_keys=ON"))
jobs = JobRegistry()


class Base(DeclarativeBase):
    """The application's own declarative base."""


class Task(JobMixin, Base):
    """A job that waits or runs."""

    __tablename__ = "example_task"
    __job_schema__ = None  # where the application's other tables are


class FinishedTask(ArchivedJobMixin, Base):
    """A job that is over."""

    __tablename__ = "example_finished_task"
    __job_schema__ = None


tables = JobTables(job=Task, archived_job=FinishedTask)


class Report(Base):
    """Something of the application's that refers to the job that makes it."""

    __tablename__ = "example_report"

    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(100))
    # The finish of a job deletes its row: a foreign key without this would forbid that.
    task_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey(Task.job_id, ondelete="SET NULL"))
    task: Mapped[Task | None] = relationship()


@jobs.handler("make-report")
def make_report(title: str) -> None:
    """Make a report."""
    print(f"making {title}")


def main() -> None:
    """Add a report and its job, and run it."""
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        report = Report(title="Sales 2024", task=Task(job_type="make-report", payload="Sales 2024"))
        session.add(report)
        session.flush()
        report_id, task_id = report.id, report.task_id
    look(report_id)

    process_next_job(engine, jobs, tables=tables)  # QueueWorker and enqueue take tables=, too

    look(report_id)
    with Session(engine) as session:
        finished = session.get_one(FinishedTask, task_id)
        print(f"{finished.__tablename__}: {finished.job_type}, {finished.status}")


def look(report_id: int) -> None:
    """Print which job the report waits for."""
    with Session(engine) as session:
        task = session.get_one(Report, report_id).task
        print(f"the report waits for: {f'{task.__tablename__}, {task.job_type}, {task.state}' if task else 'nothing'}")


if __name__ == "__main__":
    main()
