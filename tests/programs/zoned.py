"""An application's process in a time zone of its own, with database sessions in another.

    python -m tests.programs.zoned enqueue URL ZONE SOON
    python -m tests.programs.zoned work URL ZONE RETRY_DELAY

`enqueue` makes a job for now, one for SOON seconds from now and one for an hour from now, all from this process's local time, and
prints what it gave and what it reads back. `work` runs what is due until the one for soon has been done, which fails at first, and
prints when it ran what, by this process's clock. Times are printed in ISO format.
"""

import datetime as dt
import json
import sys
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import Job, QueueWorker, RetryStrategy, RunningJob, enqueue
from tests.helpers import wait_until
from tests.observing import PATIENCE
from tests.programs.elsewhere import use_zone


def fill(engine: sa.Engine, soon: float) -> dict[str, Any]:
    """Enqueue the three jobs in local time, through the model and the function, and read them back."""
    now = dt.datetime.now().astimezone()
    given = {"now": now, "soon": now + dt.timedelta(seconds=soon), "hour": now + dt.timedelta(hours=1)}
    with Session(engine) as session, session.begin():
        enqueue(session, "now")
        session.add(Job(job_type="soon", process_at=given["soon"]))
        enqueue(session.connection(), "hour", process_at=given["hour"])
    with Session(engine) as session:
        read = {job.job_type: job.process_at for job in session.scalars(sa.select(Job))}
    return {
        "zone": now.tzname(),
        "given": {name: moment.isoformat() for name, moment in given.items()},
        "read": {name: moment.isoformat() for name, moment in read.items()},
        "utc": sorted({str(moment.tzinfo) for moment in read.values()}),
    }


def work(engine: sa.Engine, retry_delay: float) -> dict[str, Any]:
    """Work until the job for soon has been done, at its second attempt."""
    runs: list[dict[str, Any]] = []

    def handler(job: RunningJob) -> None:
        times = {"ran": dt.datetime.now().astimezone(), "process_at": job.process_at, "enqueued_at": job.enqueued_at}
        runs.append({"job_type": job.job_type, "attempts": job.attempts, **{key: time.isoformat() for key, time in times.items()}})
        if job.job_type == "soon" and job.attempts == 1:
            raise ValueError

    def is_done() -> bool:
        return any(run["job_type"] == "soon" and run["attempts"] == 2 for run in runs)

    options = {"retry": RetryStrategy(retries=1, delays=[retry_delay]), "on_event": lambda _event: None}
    with QueueWorker(engine, handler, handler_mode="advanced", polling_interval=0.02, **options):
        wait_until(is_done, 2 * PATIENCE)
    return {"zone": dt.datetime.now().astimezone().tzname(), "runs": runs}


def main(role: str, url: str, zone: str, seconds: str) -> None:
    """Do what the arguments say."""
    engine = sa.create_engine(url)
    use_zone(engine, zone)
    json.dump({"enqueue": fill, "work": work}[role](engine, float(seconds)), sys.stdout)
    engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[1:])
