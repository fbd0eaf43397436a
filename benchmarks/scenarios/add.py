"""What `session.add(Job(…))` costs beside a plain model with as many columns and the same indexes."""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from uuid_utils import compat

from benchmarks.scenarios.queue import new_queue
from proletarian_sa import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.measure import Numbers


HAS_KEY = sa.text("unique_key IS NOT NULL")


class Base(DeclarativeBase):
    """The application's base."""


class Plain(Base):
    """A model as an application would write it, with the columns of a job."""

    __tablename__ = "plain"
    __table_args__ = (
        sa.Index("plain_queue_process_at", "queue", "process_at"),
        sa.Index("plain_key", "unique_key", unique=True, postgresql_where=HAS_KEY, sqlite_where=HAS_KEY),
    )

    plain_id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=compat.uuid7)
    queue: Mapped[str] = mapped_column(sa.String(255))
    job_type: Mapped[str] = mapped_column(sa.String(255))
    payload: Mapped[str] = mapped_column(sa.Text)
    attempts: Mapped[int]
    enqueued_at: Mapped[dt.datetime] = mapped_column(sa.DateTime(timezone=True), default=lambda: dt.datetime.now(dt.UTC))
    process_at: Mapped[dt.datetime] = mapped_column(sa.DateTime(timezone=True), default=lambda: dt.datetime.now(dt.UTC))
    claimed_by: Mapped[str | None] = mapped_column(sa.String(255))
    lease_until: Mapped[dt.datetime | None] = mapped_column(sa.DateTime(timezone=True))
    crashes: Mapped[int | None]
    last_error: Mapped[str | None] = mapped_column(sa.Text)
    unique_key: Mapped[str | None] = mapped_column(sa.String(255))
    headers: Mapped[str | None] = mapped_column(sa.Text)


def add(url: str, *, rows: int, per_commit: int, block: int = 10) -> Numbers:
    """Add rows of both kinds in turn, so many commits at a time, and return microseconds a row."""
    engine = new_queue(url)
    Base.metadata.create_all(engine)
    makers: dict[str, Callable[[int], object]] = {
        "job": lambda n: Job(job_type="work", payload={"n": n}),
        "plain": lambda n: Plain(queue="default", job_type="work", payload=json.dumps({"n": n}), attempts=0),
    }
    for make in makers.values():
        commit(engine, make, per_commit, block)
    numbers = dict.fromkeys((f"{name} {kind} µs/row" for name in makers for kind in ("wall", "CPU")), 0.0)
    commits = max(1, rows // per_commit // block)
    for turn in range(commits):
        # who comes first changes, so that neither is always the one after the other's commit
        for name in sorted(makers, reverse=bool(turn % 2)):
            begun, cpu = time.perf_counter(), time.process_time()
            commit(engine, makers[name], per_commit, block)
            numbers[f"{name} wall µs/row"] += (time.perf_counter() - begun) * 1e6
            numbers[f"{name} CPU µs/row"] += (time.process_time() - cpu) * 1e6
    return {name: value / (commits * block * per_commit) for name, value in numbers.items()}


def commit(engine: sa.Engine, make: Callable[[int], object], rows: int, times: int) -> None:
    """Commit so many rows, so many times."""
    for _ in range(times):
        with Session(engine) as session, session.begin():
            for n in range(rows):
                session.add(make(n))
