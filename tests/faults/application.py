"""The application of the worker processes: `proletarian-sa worker tests.faults.application:make_worker`.

Its options are JSON in the environment variable FAULT_OPTIONS; see `Options`.
"""

import json
import os
import signal
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from proletarian_sa import JobInterrupted, JobRegistry, QueueWorker, RetryStrategy, RunningJob, backoff, events
from tests.faults.traps import Trap
from tests.stress import tables
from tests.stress.application import Log, mark_run

VARIABLE = "FAULT_OPTIONS"
PATIENCE = 120.0
"""Seconds that a handler waits for its file before it fails."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a worker process is told.

    Attributes:
        url: The database, with its password.
        log: The file that each event is appended to, one JSON object a line.
        worker: Options of `QueueWorker`, such as claim, lease, worker_threads.
        engine: Options of `create_engine` for the worker's engine.
        marks: The database for the marks of runs, by a way that is not disturbed; `url` by default.
        point: Where the process stands still, once, for good: see `traps`.
        sign: The file that is made then.
        longest_pause: The cap of the back-off, seconds; None: as it is.
        retries: How often a job that fails is tried again, at once.
    """

    url: str
    log: str
    worker: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    marks: str | None = None
    point: str | None = None
    sign: str | None = None
    longest_pause: float | None = None
    retries: int = 0

    def environment(self) -> dict[str, str]:
        """Return the variables of a process that is to have these options."""
        return {VARIABLE: json.dumps(asdict(self))}


def make_worker() -> QueueWorker:
    """Build the worker, as a user's application factory would."""
    options = Options(**json.loads(os.environ[VARIABLE]))
    if options.longest_pause is not None:
        shorten_pauses(options.longest_pause)
    log = Log(options.log)
    threading.excepthook = lambda died: log.write("ThreadDied", str(died.exc_value))
    signal.signal(signal.SIGUSR1, lambda *_: log.write("Threads", sorted(thread.name for thread in threading.enumerate())))
    engine = sa.create_engine(options.url, **options.engine)
    trap = Trap(engine, options.point, options.sign)

    def on_event(event: events.Event) -> None:
        log.write(type(event).__name__, str(event), getattr(event, "job_id", None))
        events_log(event)
        trap.event(event)

    jobs = make_jobs(options.marks or options.url, trap)
    given = {"polling_interval": 0.05, "retry": RetryStrategy(retries=options.retries) if options.retries else None}
    return QueueWorker(
        engine, jobs, failed_job=note_failure, session_factory=trap.session_factory(), on_event=on_event, **(given | options.worker)
    )


def events_log(event: events.Event) -> None:
    """Log as a worker does that has no sink of its own: the log is what is counted."""
    from proletarian_sa.log import log_event  # noqa: PLC0415 - not before the process has set up logging

    log_event(event)


def shorten_pauses(cap: float) -> None:
    """Let the pauses of a long outage grow no longer than this."""
    backoff.backoff.__kwdefaults__["cap"] = cap


def make_jobs(url: str, trap: Trap) -> JobRegistry:
    """Build the handlers, with an engine of their own for the rows that tell of each run.

    The payload says what a job does, in this order: `wait`, a file to wait for; `milliseconds` to sleep; `effect`, whether it writes
    through `job.session`, true unless said otherwise; `ends`: `success`, `failure`, `interrupt`, or `flaky`, a failure at its first run.
    """
    jobs = JobRegistry()
    marks = tables.patient_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def work(payload: dict[str, Any], job: RunningJob) -> None:
        mark_run(marks, job)
        trap.handler(job)
        if "wait" in payload:
            wait_for_file(Path(payload["wait"]), job)
        time.sleep(payload.get("milliseconds", 0) / 1000)
        if payload.get("effect", True):
            job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})
        ends = payload.get("ends", "success")
        if ends == "failure" or (ends == "flaky" and job.attempts == 1):
            raise LookupError("the job's own reason")
        if ends == "interrupt" and job.wait(PATIENCE):
            raise JobInterrupted

    for job_type in ("work", "killer"):
        jobs.handler(job_type)(work)
    return jobs


def wait_for_file(file: Path, job: RunningJob) -> None:
    """Wait until the file is there; whether the job is asked to stop makes no difference."""
    deadline = time.monotonic() + PATIENCE
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} has not come")
        job.wait(0.01) and time.sleep(0.01)


def note_failure(job: RunningJob, _exception: BaseException) -> None:
    """Leave an effect of the failure, in the transaction that archives the job."""
    job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})
