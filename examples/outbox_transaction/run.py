"""Sign somebody up together with a job, and change their row together with its completion."""

import logging
import os

from sqlalchemy import String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from proletarian_sa import ArchivedJob, Job, JobRegistry, RetryStrategy, RunningJob, create_all, enqueue, process_next_job

QUEUE = "outbox_transaction"
engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///outbox_transaction.db"))
jobs = JobRegistry()


class Base(DeclarativeBase):
    """The application's own declarative base."""


class User(Base):
    """Somebody who has signed up."""

    __tablename__ = "example_user"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    credit: Mapped[int] = mapped_column(default=0)


def sign_up(session: Session, name: str) -> tuple[User, Job]:
    """Add a user and the job that gives them their credit, in the caller's transaction."""
    user = User(name=name)
    session.add(user)
    session.flush()  # the database makes the user's id
    job = Job(job_type="give-credit", payload=user.id, queue=QUEUE)
    session.add(job)  # the same as: enqueue(session, "give-credit", user.id, queue=QUEUE)
    return user, job
