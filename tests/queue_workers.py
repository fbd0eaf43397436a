"""A worker's pieces without its threads, moved by a test one at a time; and faults in their commits."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from proletarian_sa import JobInterrupted, JobRegistry
from proletarian_sa.claimed import ClaimedJob
from proletarian_sa.finish import Recorder, Recording
from proletarian_sa.heartbeat import Heartbeats, InHand
from proletarian_sa.held import HeldClaims, HeldWatch
from proletarian_sa.own_connection import OwnConnection
from proletarian_sa.runtime import Runtime, build_runtime, prepare
from tests.observing import wait_for_end
from tests.queue_contents import User
from tests.queue_model import LEASE, MAX_CRASHES, RETRY, Behaviour, Claimed, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from proletarian_sa import JobTables, RunningJob
    from proletarian_sa.run import Decision

QUEUES = ("first", "second")
COMMON, RARE = "common", "rare"
"""Two job types: not every worker has a handler for the second."""


class Faults:
    """Fails one commit of an engine, before or after the database has done it."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._dbapi = engine.dialect.loaded_dbapi
        self._number: int | None = None  # of the connection whose commit has failed, at the server
        self._is_open: Callable[[], bool] = lambda: True
        self._kind: str | None = None
        self._left = 0
        sa.event.listen(engine, "commit", self._strike)

    @contextmanager
    def at(self, kind: str | None, commit: int = 1) -> Iterator[None]:
        """Strike at the n-th commit meanwhile, if there are as many: `refused` or `unanswered`, and `…, outage`."""
        self._kind, self._left, self._number = kind, commit, None
        try:
            yield
        finally:
            self._kind = None
            if self._number is not None and not self._is_open():
                wait_for_end(self._engine, self._number)  # a connection that was given up; its locks would be in the way

    @property
    def struck(self) -> bool:
        """Whether the last one has struck."""
        return self._left == 0

    def _strike(self, connection: sa.Connection) -> None:
        if self._kind is None:
            return
        self._left -= 1
        if self._left:
            return
        driver: Any = connection.connection.driver_connection
        if connection.dialect.name == "postgresql":
            self._number, self._is_open = driver.info.backend_pid, lambda: not driver.closed
        elif connection.dialect.name != "sqlite":
            self._number, self._is_open = driver.thread_id(), lambda: driver.open
        kind, self._kind = self._kind, None
        if kind.startswith("unanswered"):
            connection.connection.driver_connection.commit()
        if kind.endswith("outage"):
            raise sa.exc.TimeoutError("injected")
        error = self._dbapi.OperationalError(1213, "injected: deadlock")
        error.sqlite_errorcode = 5  # SQLITE_BUSY
        raise sa.exc.OperationalError("injected", {}, error)


@dataclass
class Environment:
    """One database, and how workers on it are made."""

    engine: sa.Engine
    tables: JobTables
    row_locks: bool

    def __post_init__(self) -> None:
        self.faults = Faults(self.engine)
        self.script: Callable[[RunningJob], None] | None = None

    def runtime(self, worker_id: str, queues: tuple[str, ...], types: tuple[str, ...], claim: Any) -> Runtime:
        """Return a new worker's runtime, with tokens of its own."""
        jobs = JobRegistry()
        for job_type in types:
            jobs.handler(job_type, retry=RETRY)(self._handle)
        options: dict[str, Any] = {"tables": self.tables, "claim": claim, "lease": LEASE, "max_crashes": MAX_CRASHES}
        runtime = build_runtime(self.engine, jobs, queue=queues, worker_id=worker_id, on_event=lambda _event: None, **options)
        return prepare(runtime)

    def _handle(self, payload: int, job: RunningJob) -> None:
        assert payload == job.payload
        assert self.script is not None, "a handler was called that should not have been"
        script, self.script = self.script, None
        script(job)


def behave(does: Behaviour, meanwhile: Callable[[], None] | None = None, *, first: bool = False) -> Callable[[RunningJob], None]:
    """Return a handler that does this; `meanwhile` happens after it has written, or `first`."""

    def script(job: RunningJob) -> None:
        if meanwhile is not None and first:
            meanwhile()
        if does.writes:
            job.session.add(User(name=str(job.payload)))
            job.session.flush()
        if meanwhile is not None and not first:
            meanwhile()
        if does.ends == "fail":
            raise LookupError(f"attempt {job.attempts} of {job.payload}")
        if does.ends == "interrupt":
            raise JobInterrupted

    return script


@dataclass
class Hand:
    """A leased job in a worker's hands, beside what must be true of it."""

    claim: Claimed
    in_hand: InHand
    valid_for: float = LEASE.total_seconds()
    lost: bool = False
    finishing: bool = False


@dataclass
class Finished:
    """What a handler has come to, on its way into the database."""

    hand: Hand
    recording: Recording
    verdict: Verdict
    repeated: bool = False


class LeasedWorker:
    """The pieces of `Crew`: a claimer, jobs in hand with their heartbeats, an outbox, a finisher."""

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self._make = make
        self.begin()

    def begin(self) -> None:
        """Start anew, with nothing in hand."""
        self.runtime = self._make()
        self.own = OwnConnection(self.runtime.engine)
        self.heartbeats = Heartbeats(self.runtime)
        self.recorder = Recorder(self.runtime)
        self.hands: list[Hand] = []
        self.outbox: list[Finished] = []
        self.done: list[Finished] = []

    def close(self) -> None:
        """Give the connections back."""
        self.own.close()
        self.recorder.close()
        self.heartbeats._own.close()

    def all_hands(self) -> list[Hand]:
        """Return the jobs whose handlers have not returned, and those whose outcomes are not recorded."""
        return self.hands + [one.hand for one in self.outbox]

    def hand_over(self, hand: Hand, decision: Decision, verdict: Verdict) -> None:
        """Put an outcome into the outbox."""
        self.hands.remove(hand)
        hand.in_hand.finishing = hand.finishing = True
        self.outbox.append(Finished(hand, Recording(decision), verdict))


class HeldWorker:
    """One thread's held claims; `dead`: their connection was ended."""

    def __init__(self, make: Callable[[], Runtime]) -> None:
        self._make = make
        self.begin()

    def begin(self) -> None:
        """Start anew, with nothing in hand."""
        self.runtime = self._make()
        self.held = HeldClaims(self.runtime, HeldWatch(self.runtime))
        self.claimed: Any = None
        self.claim: Claimed | None = None
        self.dead = False

    def close(self) -> None:
        """Roll back what is open."""
        self.held.close()


def claims_beside(engine: sa.Engine, tables: JobTables, known: set[str]) -> list[ClaimedJob]:
    """Return the claimed jobs whose tokens are not known, oldest first."""
    query = sa.select(tables.job).where(tables.job.c.claimed_by.is_not(None)).order_by(tables.job.c.process_at)
    with engine.connect() as connection:
        return [
            ClaimedJob(
                job_id=row.job_id,
                queue=row.queue,
                job_type=row.job_type,
                payload_text=row.payload,
                attempts=row.attempts,
                crashes=row.crashes or 0,
                enqueued=row.enqueued_at,
                due=row.process_at,
                token=row.claimed_by,
            )
            for row in connection.execute(query)
            if row.claimed_by not in known
        ]


def compare(expected: Mapping[Any, Any], rows: Mapping[Any, Any], columns: Sequence[str]) -> None:
    """Compare rows with what the model says of them."""
    assert expected.keys() == rows.keys(), f"too many: {rows.keys() - expected.keys()}; too few: {expected.keys() - rows.keys()}"
    for job_id, job in expected.items():
        facts, error = tuple(getattr(rows[job_id], column) for column in columns), rows[job_id].last_error
        assert job.facts() == facts, f"of job {job_id} the model says {job.facts()}, the database {facts}"
        assert (job.error is None) == (error is None), f"the model says {job.error!r}, the database {error!r}"
        assert error is None or job.error in error, f"the model says {job.error!r}, the database {error!r}"
