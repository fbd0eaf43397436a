"""The application whose worker the stress tests run: `proletarian-sa worker tests.stress.application:make_worker`.

Its options are JSON in the environment variable STRESS_OPTIONS.
"""

import json
import os
import signal
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from proletarian_sa import JobRegistry, QueueWorker, RunningJob, events
from tests.stress import tables

VARIABLE = "STRESS_OPTIONS"
THREADS = 4
_FREQUENT = (events.JobsClaimed, events.JobStarted, events.JobSucceeded)


@dataclass(frozen=True)
class Options:
    """What a worker process is told.

    Attributes:
        url: The database, with its password.
        log: The file to append remarkable events to, one JSON object a line.
    """

    url: str
    log: str

    def environment(self) -> dict[str, str]:
        """Return the variables of a process that is to have these options."""
        return {**os.environ, VARIABLE: json.dumps(asdict(self))}


def make_worker() -> QueueWorker:
    """Build the worker, as a user's application factory would."""
    options = Options(**json.loads(os.environ[VARIABLE]))
    log = Log(options.log)
    threading.excepthook = lambda died: log.write("ThreadDied", str(died.exc_value))
    signal.signal(signal.SIGUSR1, lambda *_: log.write("Threads", sorted(thread.name for thread in threading.enumerate())))
    engine = sa.create_engine(options.url, pool_size=THREADS + 3)
    return QueueWorker(engine, make_jobs(options.url), worker_threads=THREADS, polling_interval=0.05, on_event=log.event)


def make_jobs(url: str) -> JobRegistry:
    """Build the handlers, with an engine of their own for the rows that tell of each run."""
    jobs = JobRegistry()
    marks = tables.patient_engine(url, isolation_level="AUTOCOMMIT", pool_size=THREADS)

    @jobs.handler("work")
    def work(payload: dict[str, Any], job: RunningJob) -> None:
        mark_run(marks, job)
        time.sleep(payload["milliseconds"] / 1000)
        if payload["effect"]:
            job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})

    return jobs


def mark_run(marks: sa.Engine, job: RunningJob) -> None:
    """Tell of a run, whatever becomes of it."""
    with marks.connect() as connection:
        connection.execute(sa.insert(tables.runs), {"job_id": str(job.job_id)})


class Log:
    """A file that several processes append to, each line at once."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, name: str, text: object, job_id: object = None) -> None:
        """Append a line."""
        of = None if job_id is None else str(job_id)
        line = {"process": os.getpid(), "name": name, "text": text, "job_id": of, "at": time.time()}
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def event(self, event: events.Event) -> None:
        """Append an event, unless it is one of each job's ordinary ones."""
        if not isinstance(event, _FREQUENT):
            self.write(type(event).__name__, str(event), getattr(event, "job_id", None))
