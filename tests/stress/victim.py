"""A worker that stands still at a named point, once, until it is killed: `python -m tests.stress.victim URL POINT SIGN LEASE`.

It creates the file SIGN when it has come to the point.
"""

import sys
import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import JobRegistry, QueueWorker, RunningJob, default_tables, events
from tests.stress import tables
from tests.stress.application import THREADS, mark_run

NAME = "victim"
KILLER = "killer"
POINTS = ("claimed", "before the handler", "in the handler", "archived")


class Trap:
    """Stands still at the point, and says so."""

    def __init__(self, point: str, sign: str) -> None:
        self._point = point
        self._sign = Path(sign)

    def reach(self, point: str) -> None:
        """Do not return, if this is the point."""
        if point == self._point:
            self._sign.touch()
            threading.Event().wait()

    def event(self, event: events.Event) -> None:
        """Take note of where the worker is."""
        if isinstance(event, events.JobStarted) and event.job_type == KILLER:
            self.reach("before the handler")


def make_jobs(marks: sa.Engine, trap: Trap | None = None) -> JobRegistry:
    """Build handlers that leave their marks, on an engine in autocommit; those of the killer walk into the trap."""
    jobs = JobRegistry()

    def work(_payload: object, job: RunningJob) -> None:
        mark_run(marks, job)
        if trap is not None and job.job_type == KILLER:
            trap.reach("in the handler")
            job.session.info["killer"] = True
        job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})

    for job_type in ("work", KILLER):
        jobs.handler(job_type)(work)
    return jobs


def main(url: str, point: str, sign: str, lease: str) -> None:
    """Run the worker until it is killed."""
    engine = sa.create_engine(url)
    trap = Trap(point, sign)

    def before_commit(session: Session) -> None:
        if session.info.get("killer") and not session.in_nested_transaction():
            trap.reach("archived")

    def make_session() -> Session:
        session = Session(engine)
        sa.event.listen(session, "before_commit", before_commit)
        return session

    def on_event(event: Any) -> None:
        trap.event(event)
        if isinstance(event, events.JobsClaimed) and killer_is_queued(engine):
            trap.reach("claimed")

    QueueWorker(
        engine,
        make_jobs(tables.patient_engine(url, isolation_level="AUTOCOMMIT"), trap),
        # The claim is for all of them; elsewhere one alone has others waiting behind the killer.
        worker_threads=THREADS if point == "claimed" else 1,
        polling_interval=0.02,
        lease=float(lease),
        session_factory=make_session,
        worker_id=NAME,
        on_event=on_event,
    ).run()


def killer_is_queued(engine: sa.Engine) -> bool:
    """Return whether the killer has been claimed: the claim that has just been committed is then its."""
    with engine.connect() as connection:
        job = default_tables.job.c
        query = sa.select(job.job_id).where(job.job_type == KILLER, job.claimed_by.is_not(None))
        return connection.execute(query).first() is not None


if __name__ == "__main__":
    main(*sys.argv[1:])
