"""Sign people up together with a job, and change their row together with that job's completion."""

import logging
import os
import uuid

from sqlalchemy import String, create_engine
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

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    name: Mapped[str] = mapped_column(String(100))
    credit: Mapped[int] = mapped_column(default=0)


def sign_up(session: Session, user_id: uuid.UUID, name: str) -> uuid.UUID:
    """Add a user and the job that gives them their credit, both in the caller's transaction; return the job's id."""
    session.add(User(id=user_id, name=name))
    return enqueue(session, "give-credit", user_id, queue=QUEUE)


@jobs.handler("give-credit", retry=RetryStrategy(retries=1))
def give_credit(user_id: uuid.UUID, job: RunningJob) -> None:
    """Give the credit through the job's own session; the first attempt crashes after that."""
    job.session.get_one(User, user_id).credit += 10
    job.session.flush()
    if job.attempts == 1:
        raise RuntimeError("crashed after the UPDATE")


def look(title: str, user_id: uuid.UUID, job_id: uuid.UUID) -> None:
    """Print what is in the database."""
    with Session(engine) as session:
        user = session.get(User, user_id)
        queued, archived = session.get(Job, job_id), session.get(ArchivedJob, job_id)
    job = f"{queued.attempts} attempts so far" if queued else archived.status if archived else "none"
    print(f"{title:<27} user: {f'{user.name}, credit {user.credit}' if user else 'none'}; job: {job}")


def main() -> None:
    """Commit, roll back, crash, and succeed."""
    # The crash would be logged with its traceback.
    logging.getLogger("proletarian_sa").addHandler(logging.NullHandler())
    create_all(engine)
    Base.metadata.create_all(engine)

    rolf = uuid.uuid4()
    with Session(engine) as session:
        rolfs_job = sign_up(session, rolf, "Rolf")
        session.rollback()
    look("after the rollback", rolf, rolfs_job)

    ada = uuid.uuid4()
    with Session(engine) as session:
        adas_job = sign_up(session, ada, "Ada")
        session.commit()
    look("after the commit", ada, adas_job)

    process_next_job(engine, jobs, queue=QUEUE)
    look("after the run that crashed", ada, adas_job)
    process_next_job(engine, jobs, queue=QUEUE)
    look("after the run that did not", ada, adas_job)


if __name__ == "__main__":
    main()
