"""The worker: half of the runs fail. Stop it with Ctrl-C, and it prints a summary.

Usage: python -m examples.b_failures.worker [SEED]
"""

import logging
import os
import random
import sys
from collections import Counter

from sqlalchemy import String, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from proletarian_sa import ExponentialBackoff, JobRegistry, QueueWorker, RetryStrategy, RunningJob, create_all

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///b_failures.db"))
jobs = JobRegistry()
counts = Counter[str]()
seed = sys.argv[1] if sys.argv[1:] else "1"


class Base(DeclarativeBase):
    """The application's own declarative base."""


class FailedOrder(Base):
    """An order that somebody has to look at."""

    __tablename__ = "example_failed_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
    reason: Mapped[str] = mapped_column(String(200))


class BusyError(Exception):
    """The shop is busy, and says when to come again."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"busy, come again in {retry_after} s")
        self.retry_after = retry_after


@jobs.handler("order")
def order(number: int, job: RunningJob) -> None:
    """Order something from a shop that is busy, or broken, half of the time: for one seed always at the same runs."""
    counts["runs"] += 1
    counts["retries"] += job.attempts > 1
    luck = random.Random(f"{seed} {number} {job.attempts}").random()
    if luck < 0.25:  # noqa: PLR2004 - a quarter
        raise BusyError(retry_after=0.3)
    if luck < 0.5:  # noqa: PLR2004 - another quarter
        raise ConnectionError("broken")
    print(f"order {number}, attempt {job.attempts}: done")


def again(job: RunningJob, exception: BaseException) -> RetryStrategy | None:
    """Return how to go on after this failure: as the shop says, else with growing delays."""
    print(f"order {job.payload}, attempt {job.attempts}: {exception}")
    if isinstance(exception, BusyError):
        return RetryStrategy(retries=2, delays=[exception.retry_after])
    return RetryStrategy(retries=2, backoff=ExponentialBackoff(first=0.1, cap=60))


def give_up(job: RunningJob, exception: BaseException) -> None:
    """Write down what has failed for good: in the transaction that archives the job."""
    counts["failures"] += 1
    job.session.add(FailedOrder(number=job.payload, reason=str(exception)))


def print_summary() -> None:
    """Say what came of it all."""
    print(f"{counts['runs']} runs, {counts['retries']} of them retries; {counts['failures']} failures")
    with Session(engine) as session:
        print(f"rows in example_failed_order: {session.scalar(select(func.count()).select_from(FailedOrder))}")


if __name__ == "__main__":
    # Each failure is logged with its traceback; here a line is enough.
    logging.getLogger("proletarian_sa").addHandler(logging.NullHandler())
    create_all(engine)
    Base.metadata.create_all(engine)
    worker = QueueWorker(
        engine,
        jobs,
        queue="b_failures",
        retry=again,
        failed_job=give_up,
        on_shutdown=print_summary,
        install_signal_handlers=True,
    )
    print("taking orders")
    worker.run()
