"""One worker process for each place of a stretch of work, all killed while they stand there, and one that does what they left."""

import datetime as dt
import json
import signal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from proletarian_sa import default_tables, enqueue_many
from proletarian_sa.dialects import statements_for
from proletarian_sa.dialects.two_steps import TwoStepArchive
from tests.faults import invariants
from tests.faults.scene import PATIENCE, Scene, Worker
from tests.faults.traps import OVER
from tests.helpers import wait_until
from tests.queue_contents import archived
from tests.stress import tables
from tests.stress.test_many_processes import is_empty

AT_ONCE = 10
"""Processes: a server has only so many connections."""
LEASE = 2.0
"""Seconds: on a busy machine, too, a process that has claimed a job has begun it by then."""
NOT_YET = 3600.0
"""Seconds until a job is due that waits for the end of the processes."""
POLLING = 0.4
"""Seconds between the polls of a process that serves as many queues as there are places."""
ARCHIVE = "the archiving"
COMMIT = frozenset({"before COMMIT", "after COMMIT"})


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of a worker's work, with one kind of end.

    Attributes:
        fault: Its name in the table of the documentation.
        trap: The kind of its traps: see `tests.faults.traps.STRETCHES`.
        names: Traps with names, beside those that are counted.
        payload: Of the job.
        victim: Options of the processes that are killed, of `application.Options`.
        both: Likewise, of the process that goes on, too.
        meets: Places that must be among those of the stretch; ARCHIVE stands for those around and between its statements.
        meets_held: Instead, for held claims.
        stops: Whether the processes are asked to stop once the handler runs.
        status: What the archive says at the end.
        attempts: Likewise.
        runs: How often a job runs whose process is killed before its outcome, or claim, is committed, and after.
    """

    fault: str
    trap: str = "run"
    names: tuple[str, ...] = ()
    payload: Mapping[str, Any] = field(default_factory=dict)
    victim: Mapping[str, Any] = field(default_factory=dict)
    both: Mapping[str, Any] = field(default_factory=dict)
    meets: frozenset[str] = COMMIT
    meets_held: frozenset[str] | None = None
    stops: bool = False
    status: str = "success"
    attempts: int = 1
    runs: tuple[int, int] = (2, 1)


@dataclass(kw_only=True)
class Victim:
    """A process, the place where it stands or is to stand, its job, and another job that waits behind that."""

    worker: Worker
    point: int | str
    sign: Path
    place: str
    killer: uuid.UUID
    waiting: uuid.UUID


class Siege:
    """The processes of one stretch: `count`, `read`, `kill`, `wait`, `check`, in this order.

    Attributes:
        places: What its workers say, in their order: before and after each.
        done: How many of them come before the COMMIT that counts has been answered: of the outcome, or of the claim.
    """

    def __init__(self, scene: Scene, stretch: Stretch) -> None:
        self.scene = scene
        self.stretch = stretch
        self.places: list[str] = []
        self.done = 0
        self._victims: list[Victim] = []
        self._waiting: list[uuid.UUID] = []
        self._counter: Victim | None = None
        self._calm = scene.folder / f"calm {stretch.fault}"
        self._killed_at = dt.datetime.now(dt.UTC)
        self.one_writer = scene.kind == "sqlite"  # one that stands in a transaction keeps all others from writing

    def count(self) -> None:
        """Start the process that tells which places there are."""
        (self._counter,) = self._start([(0, "")])

    def read(self) -> None:
        """Find out which places there are."""
        assert self._counter is not None
        self._ask_to_stop(self._counter)
        self._wait_for_sign(self._counter)
        said = self._counter.sign.read_text()
        assert said.startswith(OVER), said
        self.places = json.loads(said.removeprefix(OVER))
        self.done = len(self.places)
        changes = [number for number, place in enumerate(self.places) if place.endswith((" job", "archived_job", "stress_effects"))]
        if changes and self.stretch.trap != "heartbeat" and "after COMMIT" in self.places[changes[-1] :]:
            self.done = self.places.index("after COMMIT", changes[-1])
        if self.one_writer and self.stretch.trap == "claim":
            # Python's driver opens no transaction for what begins with WITH: the claim is committed once its rows are fetched.
            # Where that is waited for, SQLAlchemy fetches them at once.
            self.done -= 1 if self.scene.driver is None else 2
        if self.stretch.victim:
            self._counter.worker.kill()  # else it would meet the job again

    def kill(self) -> None:
        """Kill a process at each of the places, then start the one that goes on."""
        points = self.points()
        step = 1 if self.one_writer else AT_ONCE
        for begin in range(0, len(points), step):
            self._kill(self._start(points[begin : begin + step]))
        self._killed_at = dt.datetime.now(dt.UTC)
        self._calm.touch()
        job = default_tables.job
        with self.scene.engine.begin() as connection:
            for job_id in self._waiting:  # one by one: several in a small table are looked for in all of it, and locks waited for
                connection.execute(sa.update(job).where(job.c.job_id == job_id).values(process_at=job.c.enqueued_at))
        queues = [self._queue(point) for point in (0, *(point for point, _ in points))]
        arguments = [argument for queue in ("default", *queues) for argument in ("--queue", queue)]
        worker = {"polling_interval": POLLING, "lease": PATIENCE}  # its own are not to lapse
        self.rescuer = self.scene.start(*arguments, worker=worker, ready=False, **self.stretch.both)

    def points(self) -> list[tuple[int | str, str]]:
        """Return where processes are to stand: after each thing that is said, which is before the next, and before the first."""
        counted = [(number, place) for number, place in enumerate(self.places, 1) if number == 1 or place.startswith("after ")]
        return [*counted, *((name, name) for name in self.stretch.names)]

    def _kill(self, victims: list[Victim]) -> None:
        for victim in victims:
            self._ask_to_stop(victim)
        for victim in victims:
            self._wait_for_sign(victim)
        for victim in victims:
            victim.worker.signal(signal.SIGKILL)
        for victim in victims:
            victim.worker.wait()

    def _start(self, points: list[tuple[int | str, str]]) -> list[Victim]:
        """Start a process for each point, on a queue of its own whose two jobs are there already."""
        started = []
        for point, place in points:
            queue = self._queue(point)
            sign = self.scene.folder / f"sign {queue}"
            payload = {name: str(self._calm) if value == "calm" else value for name, value in self.stretch.payload.items()}
            rows: list[dict[str, Any]] = [
                {"job_type": "killer", "queue": queue, "payload": payload},
                # Due later: so a claim ends there, and locks no row of the next queue, not for a moment.
                {"job_type": "work", "queue": queue, "payload": {}, "process_in": NOT_YET},
            ]
            with self.scene.engine.begin() as connection:
                killer, waiting = enqueue_many(connection, rows)
            self.scene.jobs += [killer, waiting]
            self._waiting.append(waiting)
            worker = self.scene.start(
                "--queue",
                queue,
                ready=False,
                point=f"{self.stretch.trap}:{point}" if isinstance(point, int) else point,
                sign=str(sign),
                worker={"lease": LEASE},
                **{**self.stretch.both, **self.stretch.victim},
            )
            started.append(Victim(worker=worker, point=point, place=place, killer=killer, waiting=waiting, sign=sign))
        self._victims += [victim for victim in started if victim.place]
        return started

    def _queue(self, point: int | str) -> str:
        return f"{self.stretch.fault} {point}"

    def _ask_to_stop(self, victim: Victim) -> None:
        if self.stretch.stops:
            self.scene.wait(lambda: victim.sign.exists() or self.scene.told("JobStarted", job_id=victim.killer))
            victim.worker.signal(signal.SIGTERM)

    def _wait_for_sign(self, victim: Victim) -> None:
        try:
            wait_until(lambda: victim.sign.exists() or victim.worker.ended.is_set(), timeout=PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{victim.place}: {error}: {victim.worker.text()[-3000:]}") from error

    def killed(self) -> list[uuid.UUID]:
        """Return the jobs that were in hand of processes that were killed."""
        return [victim.killer for victim in self._victims]

    def effectless(self) -> list[uuid.UUID]:
        """Return the jobs that write nothing through `job.session`."""
        return [] if self.stretch.payload.get("effect", True) else self._all()

    def _all(self) -> list[uuid.UUID]:
        return [*self.killed(), *([self._counter.killer] if self._counter else [])]

    def failed(self) -> list[uuid.UUID]:
        """Return the jobs that fail for good."""
        return self._all() if self.stretch.status == "failure" else []

    def check(self) -> None:
        """Compare what became of each job with what is promised for the place."""
        rows = {row.job_id: row for row in archived(self.scene.engine)}
        runs = invariants.marks(self.scene.engine, tables.runs)

        def fate(job_id: uuid.UUID) -> tuple[Any, ...]:
            row = rows[job_id]
            return row.status, row.attempts, row.crashes or 0, runs[str(job_id)]

        stood = [victim.sign.read_text() for victim in self._victims]
        expected = [self._expected(victim) for victim in self._victims]
        actual = [(victim.place, *fate(victim.killer)) for victim in self._victims]

        assert [victim.place for victim in self._victims] == stood, f"not where they were to stand: {stood}, of {self.places}"
        assert set() == self._meets() - set(self.places), f"{self._meets() - set(self.places)} should be among {self.places}"
        wrong = [f"{found}, not {wanted}" for found, wanted in zip(actual, expected, strict=True) if found != wanted]
        assert not wrong, "\n".join([*wrong, *self.places])
        others = {fate(victim.waiting) for victim in self._victims}
        assert {("success", 1, 0, 1)} == others, f"nobody else is to be hurt: {others}"

    def _expected(self, victim: Victim) -> tuple[Any, ...]:
        """Return where a process was killed, and the status, attempts, crashes and runs of its job at the end."""
        stretch = self.stretch
        done = isinstance(victim.point, int) and victim.point > self.done
        runs = 1 if victim.place == "started" else stretch.runs[done]
        leased = done if stretch.trap == "claim" else not done
        crashes = int(leased and self.scene.claim == "leased")
        return victim.place, stretch.status, stretch.attempts, crashes, runs

    def _meets(self) -> set[str]:
        stretch = self.stretch
        held = self.scene.claim == "held" and stretch.meets_held is not None
        places = set(stretch.meets_held or () if held else stretch.meets)
        if ARCHIVE in places:
            two = isinstance(statements_for(self.scene.engine.dialect, default_tables), TwoStepArchive)
            statements = ["INSERT archived_job", "DELETE job"] if two else ["DELETE job, INSERT archived_job"]
            places -= {ARCHIVE}
            places |= {f"{when} {statement}" for statement in statements for when in ("before", "after")}
        return places

    def measure(self) -> None:
        """Keep a line for the table in the documentation."""
        rows = {row.job_id: row for row in archived(self.scene.engine)}
        last = max(rows[job_id].finished_at for job_id in self.killed())
        self.scene.measured(self.stretch.fault, max(0.0, (last - self._killed_at).total_seconds()), self.killed())


def besiege(scene: Scene, *stretches: Stretch) -> None:
    """Kill a process at each place of these stretches, let another go on, and check what became of everything."""
    sieges = [Siege(scene, stretch) for stretch in stretches]
    for siege in sieges:
        siege.count()
        if siege.one_writer:
            siege.read()
    for siege in sieges:
        if not siege.one_writer:
            siege.read()
        siege.kill()
    wait_until(lambda: is_empty(scene.engine), timeout=PATIENCE, pause=0.1)
    scene.check_alive(*(siege.rescuer for siege in sieges))

    for siege in sieges:
        siege.check()
        siege.measure()
    killed = [job_id for siege in sieges for job_id in siege.killed()]
    failed = [job_id for siege in sieges for job_id in siege.failed()]
    effectless = [job_id for siege in sieges for job_id in siege.effectless()]
    scene.check(lost={str(job_id): 1 for job_id in killed}, failed=failed, effectless=effectless)
