"""What the soak does to one database and the processes on it, one blow after another, by a random number generator of its own."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.faults.application import Options
from tests.faults.own_server import OwnServer, family_of
from tests.faults.scene import Nursery, Worker
from tests.faults.soak_load import LEASE
from tests.helpers import wait_until

CREWS: dict[str, dict[str, Any]] = {
    "leased": {"claim": "leased", "worker_threads": 4},
    "held": {"claim": "held", "worker_threads": 3},
    "processes": {"claim": "leased", "worker_threads": 1, "executor": "process"},
}
"""The workers of each database, all on one queue."""
PRODUCERS = 2
PAUSE = 1.2
"""Seconds between two blows at one database, on average."""
STOP_TIMEOUT = 20.0
"""Seconds that a worker may take to stop."""
PATIENCE = 60.0
LIST_BACKENDS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()",
}
END_BACKEND = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}


@dataclass
class Start:
    """One start of a worker or producer.

    Attributes:
        number: Of all starts at this database.
        process: It.
        log: The events it tells, or a producer's ledger.
        again: Starts another one of its kind.
        killed: Whether it was ended without a word.
    """

    number: int
    crew: str
    process: Worker
    log: Path
    again: Callable[[], None]
    killed: bool = False
    stopped: bool = False


class Chaos:
    """A database, its workers and producers, and what befalls them.

    Attributes:
        did: How often which blow was struck.
        history: When which was struck: seconds of the epoch, and words.
        troubles: What went wrong that no blow explains.
    """

    def __init__(self, kind: str, url: str, server: OwnServer | None, *, nursery: Nursery, folder: Path, seed: str) -> None:
        self.kind, self.url, self.server = kind, url, server
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)
        self.did: Counter[str] = Counter()
        self.history: list[tuple[float, str]] = []
        self.troubles: list[str] = []
        self.workers: list[Start] = []
        self.producers: list[Start] = []
        self._nursery, self._folder, self._seed = nursery, folder, seed
        self._random = random.Random(seed)
        self._stop = folder / "stop"
        self._downs: list[tuple[float, float]] = []
        self._backends = "mysql" if kind in ("mysql", "mariadb") else kind.partition("-")[0]

    # Processes

    def start(self) -> None:
        """Start workers and producers, and return when each of them has begun."""
        for crew in CREWS:
            self.start_worker(crew)
        for _ in range(PRODUCERS):
            self.start_producer()
        wait_until(lambda: all(has_begun(start) for start in self.workers), timeout=PATIENCE, pause=0.1)
        wait_until(lambda: all(start.log.stat().st_size for start in self.producers), timeout=PATIENCE, pause=0.1)

    def start_worker(self, crew: str) -> None:
        """Start a worker; where rows cannot be locked all are leased."""
        number = len(self.workers)
        options = {**CREWS[crew], "lease": LEASE, "max_crashes": 100, "stop_timeout": STOP_TIMEOUT}
        if self.server is None:
            options["claim"] = "leased"
        log = self._folder / f"worker{number}"
        log.touch()
        made = Options(
            url=self.url,
            log=str(log),
            worker=options,
            types=(),
            more="tests.faults.soak_load:add_handlers",
            longest_pause=1.0,
            retries=5,
        )
        process = self._nursery.start(made, self._folder / f"output{number}")
        self.workers.append(Start(number, crew, process, log, lambda: self.start_worker(crew)))

    def start_producer(self) -> None:
        """Start a producer."""
        number = len(self.producers)
        ledger = self._folder / f"ledger{number}"
        ledger.touch()
        arguments = (self.url, str(ledger), str(self._stop), f"{self._seed} {number}")
        process = self._nursery.run(self._folder / f"producer{number}", *arguments, module="tests.faults.soak_load")
        self.producers.append(Start(number, "producer", process, ledger, self.start_producer))

    @staticmethod
    def alive(starts: list[Start]) -> list[Start]:
        """Return those that have not ended."""
        return [start for start in starts if not start.process.ended.is_set()]

    def supervise(self) -> None:
        """Start again what has ended, as a supervisor does, and take note of what should not have."""
        for start in [*self.workers, *self.producers]:
            if start.process.ended.is_set() and not start.stopped:
                start.stopped = True
                if not start.killed:
                    self.judge_end(start)
                start.again()

    def judge_end(self, start: Start) -> None:
        """Take note of a process that has ended by itself, unless it could not begin because its connection was lost."""
        lost = self._downs or self.did["backends ended"]
        if start.crew == "producer" or has_begun(start) or not lost:
            self.troubles.append(
                f"{start.crew} {start.number} has ended by itself, code {start.process.code}: {start.process.text()[-2000:]}"
            )
        else:
            self.did["refused starts"] += 1

    # Blows

    def strike(self) -> None:
        """Do one thing to somebody."""
        blows: dict[Callable[[], None], int] = {self.kill: 30, self.terminate: 12, self.stall: 12, self.kill_producer: 5}
        blows[self.kill_handlers] = 6
        if self.server is not None:
            blows |= {self.end_backend: 20, self.restart: 3}
        (blow,) = self._random.choices(list(blows), list(blows.values()))
        blow()
        self.supervise()

    def note(self, what: str, detail: str) -> None:
        """Remember a blow."""
        self.did[what] += 1
        self.history.append((time.time(), f"{what}: {detail}"))

    def pick(self, starts: list[Start]) -> Start | None:
        """Choose one of those that live; a worker with processes less often, since its start costs as much as many others."""
        alive = self.alive(starts)
        weights = [1 if start.crew == "processes" else 3 for start in alive]
        return self._random.choices(alive, weights)[0] if alive else None

    def kill(self) -> None:
        """End a worker by SIGKILL."""
        self._kill(self.pick(self.workers), "SIGKILL")

    def kill_producer(self) -> None:
        """End a producer likewise."""
        self._kill(self.pick(self.producers), "SIGKILL of a producer")

    def _kill(self, start: Start | None, what: str) -> None:
        if start is not None:
            start.killed = True
            with suppress(ProcessLookupError):
                start.process.kill()
            self.note(what, f"{start.crew} {start.number}")

    def terminate(self) -> None:
        """Ask a worker to stop, as a deployment does."""
        start = self.pick(self.workers)
        if start is None:
            return
        began = has_begun(start)
        self.note("SIGTERM", f"{start.crew} {start.number}")
        code = start.process.stop(STOP_TIMEOUT + PATIENCE)
        start.killed = not began  # before it listens to signals it ends as any program does
        if began and code:
            self.judge_end(start)
        start.stopped = True
        start.again()

    def stall(self) -> None:
        """Let a worker stand still for longer than a lease."""
        start = self.pick(self.workers)
        if start is not None:
            self.note("stalls", f"{start.crew} {start.number}")
            with self._standing_still(start):
                time.sleep(LEASE * self._random.uniform(1.1, 2.0))

    @contextmanager
    def _standing_still(self, start: Start) -> Iterator[None]:
        with suppress(ProcessLookupError):
            start.process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                start.process.signal(signal.SIGCONT)

    def kill_handlers(self) -> None:
        """End a process in which handlers run, of a worker that has begun: before that it gives up."""
        for start in self.alive(self.workers):
            if start.crew == "processes" and has_begun(start):
                for pid in family_of(start.process.pid)[1:]:
                    if b"spawn_main" in _command(pid):
                        self.note("SIGKILL of handlers", str(pid))
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)

    def end_backend(self) -> None:
        """End a connection, whosever it is."""
        with suppress(sa.exc.DBAPIError), self.engine.connect() as connection:
            backends = list(connection.exec_driver_sql(LIST_BACKENDS[self._backends]).scalars())
            if backends:
                number = self._random.choice(backends)
                connection.exec_driver_sql(END_BACKEND[self._backends].format(number))
                self.note("backends ended", str(number))

    def restart(self) -> None:
        """Stop the database in one of three ways, and start it again after a while."""
        assert self.server is not None
        how = self._random.choice(["fast", "immediate", "kill"])
        self.note("restarts", how)
        began = time.time()
        self.server.stop(how)
        time.sleep(self._random.uniform(0, 2.0))
        self.server.start()
        self._downs.append((began, time.time()))

    def run(self, until: Callable[[], bool]) -> None:
        """Strike until it is over."""
        while not until():
            time.sleep(self._random.uniform(0, 2 * PAUSE))
            try:
                self.strike()
            except Exception as error:  # noqa: BLE001 - told at the end
                self.troubles.append(f"a blow failed: {error!r}")

    # End

    def finish(self, is_empty: Callable[[], bool]) -> None:
        """Stop the producers, let the workers do what is left, each of them, and stop them."""
        self.supervise()
        self._stop.touch()
        for start in self.alive(self.producers):
            start.process.wait(PATIENCE)
            start.stopped = True
        deadline = time.monotonic() + 2 * PATIENCE
        while not is_empty() and time.monotonic() < deadline:
            self.supervise()
            time.sleep(0.1)
        for start in self.alive(self.workers):
            start.stopped = True
            code = start.process.stop(STOP_TIMEOUT + PATIENCE)
            if code:
                self.judge_end(start)
        self.check_left()

    def check_left(self) -> None:
        """Take note of processes that outlive their worker."""
        sessions = {start.process.pid for start in self.workers}
        deadline = time.monotonic() + PATIENCE
        while (left := [pid for pid in sessions if _session_lives(pid)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            self.troubles.append(f"processes of these workers are left: {left}")


def has_begun(start: Start) -> bool:
    """Return whether a worker has begun to work."""
    return "WorkerStarted" in start.log.read_text()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _session_lives(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def in_threads(chaoses: list[Chaos], do: Callable[[Chaos], None]) -> None:
    """Do something to all databases at the same time."""
    threads = [threading.Thread(target=do, args=(one,), name=one.kind) for one in chaoses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
