"""Enqueue and run jobs in a process with a time zone, or a clock, of its own.

    python -m tests.programs.elsewhere '{"url": …, "zone": …, "run": "queue to empty", "enqueue": "queue to fill"}'

Prints what it enqueued and ran, as this process reads it back through the API.
"""

import datetime as dt
import json
import sys
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import Job, RunningJob, enqueue, process_next_job

FIXED = dt.datetime(2040, 7, 1, 12, 0, 0, 123456, tzinfo=dt.timezone(dt.timedelta(hours=-7)))
"""A due time, in a zone of its own."""


def use_zone(engine: sa.Engine, zone: str) -> None:
    """Give all sessions of an engine a time zone: `+09:00` is that much east of Greenwich."""
    if engine.dialect.name == "sqlite":
        return
    # PostgreSQL reads a bare offset the other way round, as POSIX does.
    statement = (
        f"SET TIME ZONE INTERVAL '{zone}' HOUR TO MINUTE" if engine.dialect.name == "postgresql" else f"SET time_zone = '{zone}'"
    )

    def set_zone(raw: Any, _record: Any) -> None:
        cursor = raw.cursor()
        cursor.execute(statement)
        cursor.close()
        raw.commit()

    sa.event.listen(engine, "connect", set_zone)


def texts(job: Job | RunningJob) -> dict[str, Any]:
    """Return what a job says, as JSON can carry it."""
    times = {"enqueued_at": job.enqueued_at.isoformat(), "process_at": job.process_at.isoformat()}
    return {"job_id": str(job.job_id), "job_type": job.job_type, **times}


def fill(engine: sa.Engine, queue: str) -> list[dict[str, Any]]:
    """Enqueue a job of each kind of due time, through the model and the connection, and read them back."""
    now = dt.datetime.now().astimezone()  # this process's clock and zone
    with Session(engine) as session, session.begin():
        session.add(Job(job_type="now", queue=queue))
        session.add(Job(job_type="in an hour", queue=queue, process_in=3600))
        session.add(Job(job_type="past", queue=queue, process_at=now - dt.timedelta(days=1)))
        session.add(Job(job_type="fixed", queue=queue, process_at=FIXED))
        enqueue(session.connection(), "now", queue=queue)
        enqueue(session.connection(), "in an hour", queue=queue, process_in=3600)
        enqueue(session.connection(), "fixed", queue=queue, process_at=FIXED)
    with Session(engine) as session:
        return [texts(job) for job in session.scalars(sa.select(Job).where(Job.queue == queue))]


def empty(engine: sa.Engine, queue: str) -> list[dict[str, Any]]:
    """Run what is due."""
    ran: list[dict[str, Any]] = []

    def handler(job: RunningJob) -> None:
        ran.append(texts(job))

    while process_next_job(engine, handler, handler_mode="advanced", queue=queue):
        pass
    return ran


def main() -> None:
    """Do what the argument says."""
    options = json.loads(sys.argv[1])
    engine = sa.create_engine(options["url"])
    use_zone(engine, options["zone"])
    ran = empty(engine, options["run"]) if "run" in options else []
    enqueued = fill(engine, options["enqueue"]) if "enqueue" in options else []
    json.dump({"ran": ran, "enqueued": enqueued}, sys.stdout)
    engine.dispose()


if __name__ == "__main__":
    main()
