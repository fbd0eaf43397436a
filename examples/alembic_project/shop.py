"""The application: an order and the job of its receipt are added in one transaction.

Its tables are made by `alembic upgrade head`, the queue's like its own.
"""

import os

from sqlalchemy import String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from proletarian_sa import Job, JobRegistry, QueueWorker

DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///alembic_project.db")
jobs = JobRegistry()


class Base(DeclarativeBase):
    """The application's own declarative base."""


class Order(Base):
    """Something that somebody has ordered."""

    __tablename__ = "example_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(String(100))


@jobs.handler("send-receipt")
def send_receipt(order: dict[str, str]) -> None:
    """Send a receipt."""
    print(f"a receipt for {order['item']}", flush=True)


def make_worker() -> QueueWorker:
    """Return the worker: proletarian-sa worker shop:make_worker."""
    return QueueWorker(create_engine(DATABASE_URL), jobs)


def main() -> None:
    """Order tea."""
    with Session(create_engine(DATABASE_URL)) as session, session.begin():
        session.add(Order(item="tea"))
        session.add(Job(job_type="send-receipt", payload={"item": "tea"}))
    print("ordered tea")


if __name__ == "__main__":
    main()
