"""The application of the worker processes: `proletarian-sa worker tests.faults.application:make_worker`.

Its options are JSON in the environment variable FAULT_OPTIONS; see `Options`.
"""

import json
import os
import pkgutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from proletarian_sa import JobInterrupted, JobRegistry, QueueWorker, RetryStrategy, RunningJob, backoff, events, health
from tests.faults.network import enter
from tests.faults.refusing import EveryStatement
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
        types: The job types that have a handler.
        more: A function, MODULE:NAME, that is given the registry, adds handlers, and returns more options of `QueueWorker`.
        longest_pause: The cap of the back-off, seconds; None: as it is.
        first_pause: Its first pause, seconds, which the cap does not shorten; None: as it is.
        network: The path of the network that it is to be in; None: the test's own.
        silent: After how many seconds a missing answer is told; None: as it is.
        statements: A file; while it is there, what it says is executed at the beginning of each transaction of the worker's engine.
        refuse: Whether the database refuses each statement of the worker's, the first times; see `refusing`.
        password: A file with the password for each new connection of the worker's engine.
        retries: How often a job that fails is tried again, at once.
        driver: The driver for asyncio of the worker's engine, as a URL names it; None: it is a `QueueWorker`. See
            `tests.faults.async_application`.
    """

    url: str
    log: str
    worker: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    marks: str | None = None
    point: str | None = None
    sign: str | None = None
    types: tuple[str, ...] = ("work", "killer")
    more: str | None = None
    longest_pause: float | None = None
    first_pause: float | None = None
    network: str | None = None
    silent: float | None = None
    statements: str | None = None
    password: str | None = None
    refuse: bool = False
    retries: int = 0
    driver: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the variables of a process that is to have these options."""
        return {VARIABLE: json.dumps(asdict(self))}


def make_worker() -> QueueWorker:
    """Build the worker, as a user's application factory would."""
    options, log = begin()
    engine = sa.create_engine(options.url, **options.engine)
    trap, given = prepare(engine, options, log)
    jobs = make_jobs(options.marks or options.url, trap, options.types)
    more = pkgutil.resolve_name(options.more)(jobs) if options.more else {}
    usual = {"session_factory": trap.session_factory(), "failed_job": note_failure}
    made = QueueWorker(engine, jobs, **(usual | given | more | options.worker))
    signal.signal(signal.SIGUSR2, lambda *_: log.write("Health", asdict(made.health)))
    return made


def begin() -> tuple[Options, Log]:
    """Read the options, and do to this process what they say of it."""
    options = Options(**json.loads(os.environ[VARIABLE]))
    if options.network is not None:
        enter(options.network)
    if options.longest_pause is not None:
        shorten_pauses(options.longest_pause)
    if options.first_pause is not None:
        shorten_pauses(options.first_pause)
        vars(backoff)["FIRST"] = options.first_pause
    if options.silent is not None:
        vars(health)["SILENT"] = options.silent
    log = Log(options.log)
    threading.excepthook = lambda died: log.write("ThreadDied", str(died.exc_value))
    signal.signal(signal.SIGUSR1, lambda *_: log.write("Threads", sorted(thread.name for thread in threading.enumerate())))
    return options, log


def prepare(engine: sa.Engine, options: Options, log: Log) -> tuple[Trap, dict[str, Any]]:
    """Do to the worker's engine what the options say of it; return its trap, and what any worker is given."""
    sa.event.listen(engine, "do_connect", lambda *_: log.write("Connecting", threading.current_thread().name))
    obey_files(engine, options)
    if options.refuse:
        EveryStatement(engine, partial(log.write, "Refused"))
    trap = Trap(engine, options.point, options.sign)

    def on_event(event: events.Event) -> None:
        log.write(type(event).__name__, str(event), getattr(event, "job_id", None))
        events_log(event)
        trap.event(event)

    retry = RetryStrategy(retries=options.retries) if options.retries else None
    return trap, {"polling_interval": 0.05, "retry": retry, "on_event": on_event}


def events_log(event: events.Event) -> None:
    """Log as a worker does that has no sink of its own: the log is what is counted."""
    from proletarian_sa.log import log_event  # noqa: PLC0415 - not before the process has set up logging

    log_event(event)


def shorten_pauses(cap: float) -> None:
    """Let the pauses of a long outage grow no longer than this."""
    backoff.backoff.__kwdefaults__["cap"] = cap


def obey_files(engine: sa.Engine, options: Options) -> None:
    """Let files of the test's say what happens on connections of the engine."""
    if options.statements is not None:
        statements = Path(options.statements)

        @sa.event.listens_for(engine, "begin")
        def execute(connection: sa.Connection) -> None:
            if statements.exists():
                cursor = connection.connection.cursor()
                for statement in statements.read_text().splitlines():
                    cursor.execute(statement)
                cursor.close()

    if options.password is not None:
        password = Path(options.password)

        @sa.event.listens_for(engine, "do_connect")
        def use_it(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
            parameters["password"] = password.read_text()


def make_jobs(url: str, trap: Trap, types: Sequence[str]) -> JobRegistry:
    """Build the handlers, with an engine of their own for the rows that tell of each run.

    The payload says what a job does, in this order: `opens`, whether it begins its transaction at once; `wait`, a file to wait for;
    `milliseconds` to sleep; `effect`, whether it writes through `job.session`, true unless said otherwise; `ends`: `success`,
    `failure`, `flaky`, a failure at its first run, or `interrupt`, when it is asked to stop, unless the file `calm` is there.
    """
    jobs = JobRegistry()
    marks = tables.patient_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def work(payload: dict[str, Any], job: RunningJob) -> None:
        mark_run(marks, job)
        trap.handler(job)
        if payload.get("opens"):
            job.session.connection()
        if "wait" in payload:
            tell_of_waiting(payload["wait"], job)
            wait_for_file(Path(payload["wait"]), job)
        time.sleep(payload.get("milliseconds", 0) / 1000)
        if payload.get("effect", True):
            job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})
        ends = payload.get("ends", "success")
        if ends == "failure" or (ends == "flaky" and job.attempts == 1):
            raise LookupError("the job's own reason")
        calm = "calm" in payload and Path(payload["calm"]).exists()
        if ends == "interrupt" and not calm and job.wait(PATIENCE):
            raise JobInterrupted

    for job_type in types:
        jobs.handler(job_type)(work)
    return jobs


def tell_of_waiting(file: str, job: RunningJob) -> None:
    """Make a file that tells that the handler waits for its own: see `asking.wait_for_handlers`."""
    Path(f"{file}.{job.job_id}").touch()


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
