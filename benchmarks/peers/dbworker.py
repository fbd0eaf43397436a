"""dbworker on SQLite: handlers run in processes, so its own table says when they are done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from dbworker import Coordinator, Finished
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

if TYPE_CHECKING:
    from benchmarks.measure import Numbers


class Base(DeclarativeBase):
    """The application's base."""


class Thing(Base):
    """What is to be worked on; the queue is whatever row has not been."""

    __tablename__ = "thing"
    thing_id: Mapped[int] = mapped_column(primary_key=True)


def work(_thing: Any, _session: Session) -> Finished:
    """Do nothing."""
    return Finished()


def drain(url: str, *, jobs: int, concurrency: int) -> Numbers:
    """Work off a full table by so many processes, from the start until all is finished."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")  # is kept in the file; synchronous is FULL by default
    coordinator = Coordinator(sessionmaker(engine), database_url=url)
    coordinator.transactional_worker(name="work", source=Thing, concurrency=concurrency)(work)
    Base.metadata.create_all(engine)
    coordinator.create_worker_tables()
    with engine.begin() as connection:
        connection.execute(sa.insert(Thing), [{"thing_id": n} for n in range(1, jobs + 1)])
    finished = sa.text("SELECT count(*) FROM work_work WHERE execution_status = 'finished'")
    coordinator.start()
    begun = time.perf_counter()
    while True:
        with engine.connect() as connection:
            if connection.scalar(finished) == jobs:
                break
        time.sleep(0.02)
    ended = time.perf_counter()
    coordinator.stop()
    return {"jobs/s": jobs / (ended - begun)}
