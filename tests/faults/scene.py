"""Worker processes on one database, and what became of them and of their jobs."""

import itertools
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from proletarian_sa import enqueue_many
from tests.faults import invariants, results
from tests.faults.application import Options
from tests.helpers import PATIENCE, wait_until
from tests.queue_contents import archived, queued
from tests.stress import tables
from tests.stress.processes import REPOSITORY

LEASE = 1.0
"""Seconds; what is in hand of a process that was killed runs again after that."""
ALONE = 10.0
"""Seconds that a worker is given for a job while all others stand still."""
FACTORY = "tests.faults.application:make_worker"
ON_LOOP = "tests.faults.async_application"
"""The module whose `main` runs an `AsyncQueueWorker`."""
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")
"""How a line of the log begins that is no line of a traceback."""


class Nursery:
    """The process off which workers are forked; see `tests.faults.nursery`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._numbers = itertools.count(1)
        self._workers: dict[int, Worker] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            facts = json.loads(line)
            worker = self._workers[facts["number"]]
            if "pid" in facts:
                worker.pids.put(facts["pid"])
            else:
                worker.code = facts["code"]
                worker.ended.set()

    def start(self, options: Options, output: Path, *arguments: str) -> "Worker":
        """Start a worker, and return when its process is there."""
        if options.driver is not None:
            return self.run(output, *arguments, module=ON_LOOP, environment=options.environment())
        return self.run(output, "worker", FACTORY, *arguments, environment=options.environment())

    def run(
        self, output: Path, *arguments: str, module: str | None = None, environment: Mapping[str, str] | None = None
    ) -> "Worker":
        """Start the command `proletarian-sa`, or the `main` of a module, and return when its process is there."""
        number = next(self._numbers)
        worker = self._workers[number] = Worker(output)
        wanted = {
            "number": number,
            "environment": dict(environment or {}),
            "output": str(output),
            "arguments": arguments,
            "module": module,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        worker.pid = worker.pids.get(timeout=PATIENCE)
        return worker

    def close(self) -> None:
        """Kill what is left, and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Worker:
    """A worker process.

    Attributes:
        output: The file with all that it says: its log.
        code: Its exit code, once it has `ended`; -9 is SIGKILL.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.pids: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.pid = 0
        self.code: int | None = None
        self.ended = threading.Event()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it by SIGKILL, and return when it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self, timeout: float = PATIENCE) -> int:
        """Ask it to stop by SIGTERM, and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Return its exit code when it has ended, or fail."""
        assert self.ended.wait(timeout), f"{self.pid} has not ended within {timeout} s: {self.text()[-3000:]}"
        assert self.code is not None
        return self.code

    def text(self) -> str:
        """Return all that it has said."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def lines(self) -> list[str]:
        """Return the lines of its log; those of tracebacks belong to the line before."""
        return [line for line in self.text().splitlines() if LOG_LINE.match(line)]

    def cpu_seconds(self) -> float:
        """Return how long it has used a processor."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Scene:
    """A database with the queue's tables and those of the marks, the worker processes on it, and their jobs.

    Attributes:
        engine: The way of the test itself to the database.
        jobs: The ids of all jobs enqueued through the scene.
        driver: The driver for asyncio of its workers, which are AsyncQueueWorkers then.
    """

    def __init__(
        self, nursery: Nursery, engine: sa.Engine, kind: str, claim: str, folder: Path, *, driver: str | None = None
    ) -> None:
        self.engine = engine
        self.driver = driver
        self.kind = kind
        self.claim = claim
        self.folder = folder
        self.jobs: list[uuid.UUID] = []
        self.workers: list[Worker] = []
        self._nursery = nursery
        tables.metadata.create_all(engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in self.workers:
            if not worker.ended.is_set():
                worker.kill()

    @property
    def url(self) -> str:
        """The database, with its password."""
        return self.engine.url.render_as_string(hide_password=False)

    def start(
        self, *arguments: str, worker: Mapping[str, Any] | None = None, url: str | None = None, ready: bool = True, **options: Any
    ) -> Worker:
        """Start a worker process: `worker`, options of QueueWorker; `options`, others of `application.Options`.

        Args:
            arguments: Of the command.
            worker: On top of the scene's claim and a short lease; `worker_threads` is the concurrency of an AsyncQueueWorker.
            url: Another way to the database than the scene's own.
            ready: Whether to wait until it polls.
            options: See `application.Options`; the runs are marked by the scene's own way.
        """
        number = len(self.workers)
        given = {"claim": self.claim, "lease": LEASE, **(worker or {})}
        if self.driver is not None:
            given["concurrency"] = given.pop("worker_threads", 1)
        made = Options(url=url or self.url, log=str(self.log), worker=given, driver=self.driver, **{"marks": self.url, **options})
        started = self._nursery.start(made, self.folder / f"output{number}", *arguments)
        self.workers.append(started)
        if ready:
            self.wait(lambda: started.ended.is_set() or self.told("WorkerStarted", process=started.pid))
            assert not started.ended.is_set(), started.text()
        return started

    def add(self, count: int = 1, job_type: str = "work", queue: str = "default", **payload: Any) -> list[uuid.UUID]:
        """Enqueue jobs in one transaction, and return their ids."""
        rows = [{"job_type": job_type, "queue": queue, "payload": payload}] * count
        with self.engine.begin() as connection:
            ids = enqueue_many(connection, rows)
        self.jobs += ids
        return ids

    @property
    def log(self) -> Path:
        """The file with the events of all workers."""
        return self.folder / "events"

    def told(self, name: str | None = None, process: int | None = None, job_id: uuid.UUID | None = None) -> list[dict[str, Any]]:
        """Return the events that the workers have told, of a kind, a process, a job."""
        whole = self.log.read_text().rpartition("\n")[0] if self.log.exists() else ""
        found = [json.loads(line) for line in whole.splitlines()]
        return [
            line
            for line in found
            if name in {None, line["name"]}
            and process in {None, line["process"]}
            and (job_id is None or line["job_id"] == str(job_id))
        ]

    def wait(self, predicate: Callable[[], Any], timeout: float = PATIENCE) -> Any:
        """Return the predicate's first true value; if it does not come, fail with all that the workers have said."""
        try:
            return wait_until(predicate, timeout=timeout, pause=0.02)
        except AssertionError as error:
            said = "\n".join(f"--- {worker.pid}, {worker.code}:\n{worker.text()[-3000:]}" for worker in self.workers)
            raise AssertionError(f"{error}\n{said}\n{queued(self.engine)}") from error

    def wait_for_end(self, ids: Iterable[uuid.UUID] | None = None, timeout: float = PATIENCE) -> float:
        """Return, in seconds from now, when these jobs, by default all, are archived."""
        begin, wanted = time.monotonic(), set(self.jobs if ids is None else ids)
        self.wait(lambda: wanted <= {row.job_id for row in archived(self.engine)}, timeout)
        return time.monotonic() - begin

    def in_hand(self) -> dict[str, int]:
        """Return which jobs a worker has in hand now, held or leased: these may have run without a word, once each."""
        begun = {line["job_id"] for line in self.told("JobStarted")}
        claimed = {str(row.job_id) for row in queued(self.engine) if row.claimed_by is not None}
        waiting = {str(row.job_id) for row in queued(self.engine)}
        return dict.fromkeys(claimed | (begun & waiting), 1)

    def check(self, **facts: Any) -> None:
        """Check the invariants: see `invariants.check`, which takes the facts. No worker may be silent: see `check_alive`.

        A worker may tell of a run that came to nothing after another has done the job: that is waited for.
        """
        with suppress(AssertionError):
            wait_until(lambda: not invariants.unexplained(self.engine, self.told(), facts.get("lost")), pause=0.1)
        invariants.check(self.engine, self.jobs, self.told(), **facts)

    def check_alive(self, *workers: Worker) -> None:
        """Let each of these workers, by default all that have not ended, do a job while all others stand still."""
        alive = [worker for worker in workers or self.workers if not worker.ended.is_set()]
        for worker in alive:
            others = [other for other in alive if other is not worker]
            self.wait(lambda worker=worker, others=others: self._does_a_job(worker, others))

    def _does_a_job(self, worker: Worker, others: list[Worker]) -> bool:
        """Return whether it was this worker that did a job; another may have come to a stop with it, or a lock, in its hand."""
        added: list[uuid.UUID] = []
        for other in others:
            other.signal(signal.SIGSTOP)
        try:
            added = self.add(1)
            wait_until(lambda: self._doers(added), timeout=ALONE, pause=0.02)
        except (AssertionError, sa.exc.OperationalError):  # the latter: SQLite, and one that has stopped in the middle of a write
            return False
        finally:
            for other in others:
                other.signal(signal.SIGCONT)
            self.wait(lambda: not added or self._doers(added))
        return worker.pid in self._doers(added)

    def _doers(self, job_ids: list[uuid.UUID]) -> set[int]:
        """Return the processes that have done these jobs."""
        return {line["process"] for job_id in job_ids for line in self.told("JobSucceeded", job_id=job_id)}

    def measured(self, fault: str, recovered: float, ids: Iterable[uuid.UUID] | None = None) -> None:
        """Keep a line for the table in the documentation: of jobs in hand when the fault came, by default all.

        Args:
            fault: What happened, in the words of the table.
            recovered: Seconds from the end of the fault, or from the kill, until the jobs it hit were recorded.
            ids: The jobs it hit.
        """
        hit = {str(job_id) for job_id in (self.jobs if ids is None else ids)}
        runs = invariants.marks(self.engine, tables.runs)
        rows = [row for row in archived(self.engine) if str(row.job_id) in hit]
        results.record(
            fault=fault,
            database=self.kind if self.driver is None else f"{self.kind}, {self.driver.partition('+')[2]}",
            claim=self.claim,
            recovered=recovered,
            attempts=max(row.attempts for row in rows),
            runs=max(runs[job_id] for job_id in hit),
            lines=sum(len(worker.lines()) for worker in self.workers),
        )
