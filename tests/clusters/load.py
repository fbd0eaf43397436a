"""Workers and producers on a cluster, and what must be true of their jobs whatever became of its nodes."""

import secrets
import threading
import time
import uuid
from collections import Counter
from itertools import pairwise
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import JobRegistry, QueueWorker, RunningJob, create_all, default_tables, enqueue, events
from proletarian_sa.dialects import statements_for
from proletarian_sa.lifecycle import CLAIMING
from tests.clusters.node import Node
from tests.helpers import wait_until
from tests.queue_contents import archived

Kind = TypeVar("Kind", bound=events.Event)

LEASE = 3.0
"""Seconds; shorter than any node takes to come back, so that others take over what its workers had in hand."""
PATIENCE = 120.0
THREADS = 3
ON_EACH = 2
"""Worker processes, as it were, on each engine."""

metadata = sa.MetaData()
effects = sa.Table(
    "cluster_effects", metadata, sa.Column("number", sa.Integer, primary_key=True), sa.Column("job_id", sa.Uuid, nullable=False)
)
"""One row a job, written through `job.session`; nothing is unique, so that whatever happens twice shows."""
orders = sa.Table(
    "cluster_orders", metadata, sa.Column("number", sa.Integer, primary_key=True), sa.Column("job_id", sa.Uuid, nullable=False)
)
"""One row a job, written by its producer in the transaction that enqueues it: that there is one shows what was committed."""

EXPLANATIONS = (events.JobTransactionDied, events.JobLeaseLost, events.OutcomeNotRecorded, events.JobReleased)
"""Events that announce another run of the same job."""
NEVER = (
    events.WorkerFailed,
    events.SinkFailed,
    events.ArchiveRowReplaced,
    events.JobAttemptFailed,
    events.JobUndeliverable,
    events.CallbackFailed,
)


class Load:
    """Four workers of leases or so, and producers that commit a few jobs at a time until they are told to stop.

    Args:
        workers: What workers connect to, by name: two on each.
        producers: What a producer each connects to.
    """

    def __init__(self, workers: dict[str, sa.Engine], producers: list[sa.Engine], *, on_each: int = ON_EACH) -> None:
        self.seen: list[tuple[float, events.Event]] = []
        self.runs: list[uuid.UUID] = []
        self.confirmed: list[uuid.UUID] = []
        self.in_hand: dict[str, set[uuid.UUID]] = {name: set() for name in workers}
        self._enough = threading.Event()
        self._workers = [
            QueueWorker(
                engine,
                self._handlers(name),
                worker_threads=THREADS,
                polling_interval=0.05,
                lease=LEASE,
                worker_id=f"{name}/{number}",
                on_event=lambda event: self.seen.append((time.monotonic(), event)),
            )
            for name, engine in workers.items()
            for number in range(on_each)
        ]
        self._producers = [threading.Thread(target=self._produce, args=(engine,)) for engine in producers]

    def __enter__(self) -> Self:
        try:
            for worker in self._workers:
                worker.start()
            for producer in self._producers:
                producer.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop_producers()
        for worker in self._workers:
            worker.stop()

    def _stop_producers(self) -> None:
        self._enough.set()
        for producer in self._producers:
            if producer.ident is not None:
                producer.join()

    def _handlers(self, name: str) -> JobRegistry:
        jobs, in_hand = JobRegistry(), self.in_hand[name]

        @jobs.handler("work")
        def work(payload: dict[str, Any], job: RunningJob) -> None:
            self.runs.append(job.job_id)
            in_hand.add(job.job_id)
            time.sleep(payload["milliseconds"] / 1000)
            in_hand.discard(job.job_id)
            job.session.execute(sa.insert(effects), {"job_id": job.job_id})

        return jobs

    def _produce(self, engine: sa.Engine) -> None:
        """Order and enqueue. An error tells nothing of whether a commit has happened: the order does."""
        number = 0
        while not self._enough.wait(0.03):
            number += 1
            try:
                with Session(engine) as session:
                    ids = [order(session, milliseconds=milliseconds(number, each)) for each in range(1 + number % 4)]
                    session.commit()
            except sa.exc.DBAPIError:
                self._enough.wait(0.2)
            else:
                self.confirmed += ids

    def of(self, kind: type[Kind], since: float = 0.0) -> list[tuple[float, Kind]]:
        """Return events of a kind, and when they came on the monotonic clock."""
        return [(moment, event) for moment, event in list(self.seen) if isinstance(event, kind) and moment >= since]

    def longest_pause(self, name: str, begin: float, end: float) -> float:
        """Return for how many seconds in a row no job was done by workers on the engine of this name."""
        moments = [moment for moment, event in self.of(events.JobSucceeded, begin) if event.worker_id.startswith(name)]
        return max(later - earlier for earlier, later in pairwise([begin, *(each for each in moments if each < end), end]))

    def wait_for_success(self, name: str = "", since: float = 0.0, count: int = 1) -> float:
        """Return when this many jobs that were begun since have been done by workers on the engine of this name."""

        def moments() -> list[float]:
            begun = {(event.job_id, event.worker_id) for _, event in self.of(events.JobStarted, since)}
            done = [(moment, event) for moment, event in self.of(events.JobSucceeded, since) if event.worker_id.startswith(name)]
            return [moment for moment, event in done if (event.job_id, event.worker_id) in begun]

        wait_until(lambda: len(moments()) >= count, timeout=PATIENCE, pause=0.05)
        return moments()[count - 1]

    def finish(self, engines: list[sa.Engine]) -> None:
        """Let producers stop, wait until nothing is queued or running on any node, and stop the workers."""
        self._stop_producers()
        for engine in engines:
            wait_until(lambda engine=engine: is_empty(engine), timeout=PATIENCE, pause=0.1)
        self.alive = [worker.is_running for worker in self._workers]
        self.__exit__()

    def check(self, engine: sa.Engine) -> None:
        """Hold what is in the database against what is promised."""
        archive = [row.job_id for row in archived(engine)]
        with engine.connect() as connection:
            ordered = list(connection.scalars(sa.select(orders.c.job_id)))
            done = list(connection.scalars(sa.select(effects.c.job_id)))
        told = Counter(event.job_id for _, event in self.of(events.JobSucceeded))
        explained = Counter(event.job_id for _, event in self.of(events.JobEvent) if isinstance(event, EXPLANATIONS))
        runs = Counter(self.runs)

        assert [True] * len(self._workers) == self.alive
        assert [] == [event for _, event in self.seen if isinstance(event, NEVER)]
        assert set() == set(self.confirmed) - set(ordered)
        assert sorted(ordered) == sorted(archive)
        assert {"success"} == {row.status for row in archived(engine)}
        assert sorted(archive) == sorted(done)
        assert Counter(archive) == told
        assert set(archive) == set(runs)
        assert {} == {job_id: count for job_id, count in runs.items() if count - 1 > explained[job_id]}

    def line(self, engine: sa.Engine, name: str, happened: str) -> str:
        """Say in one line what has come of it."""
        lost, claims = conflicts(engine, [event for _, event in self.seen])
        return f"{name}: {len(set(self.runs))} jobs, {len(self.runs)} runs, {lost} conflicts in {claims} claims, {happened}"


def is_empty(engine: sa.Engine) -> bool:
    """Tell whether a node knows of no job that is queued or running."""
    with engine.connect() as connection:
        return connection.scalar(sa.select(default_tables.job.c.job_id).limit(1)) is None


def conflicts(engine: sa.Engine, seen: list[events.Event]) -> tuple[int, int]:
    """Return how many claims other claims have undone, and how many there were in all that took jobs or were undone."""
    statements = statements_for(engine.dialect, default_tables)
    met = [event.exception for event in seen if isinstance(event, events.TransientErrorMet) and event.activity == CLAIMING]
    lost = len([error for error in met if statements.is_lost_race(error)])
    return lost, lost + len([event for event in seen if isinstance(event, events.JobsClaimed)])


def milliseconds(number: int, each: int) -> int:
    """Return what a job takes: mostly next to nothing, and so long for some that a worker always has one in hand."""
    return 400 if each == 0 and number % 4 == 0 else number % 10


def order(session: Session, *, milliseconds: int) -> uuid.UUID:
    """Write an order and enqueue its job."""
    job_id = enqueue(session, "work", {"milliseconds": milliseconds})
    assert isinstance(job_id, uuid.UUID)
    session.execute(sa.insert(orders), {"job_id": job_id})
    return job_id


def new_database(node: Node) -> str:
    """Make a database with the queue's tables and those of the load, through a node that takes writes, and name it."""
    name = f"test_{secrets.token_hex(6)}"
    node.ask(f"CREATE DATABASE {name}")
    engine = engine_on(node, name)
    create_all(engine)
    metadata.create_all(engine)
    engine.dispose()
    return name


def engine_on(node: Node, database: str, **options: Any) -> sa.Engine:
    """Create an engine on a database of one node."""
    return sa.create_engine(sa.make_url(node.url).set(database=database), pool_size=20, **options)


def kill_in_mid_claim(engine: sa.Engine, node: Node, in_hand: set[uuid.UUID]) -> float:
    """Kill a node when a worker has written a claim there and not committed it, and handlers have other jobs in hand.

    Returns:
        When that was on the monotonic clock.
    """
    guard, killed = threading.Lock(), threading.Event()
    moments: list[float] = []

    @sa.event.listens_for(engine, "after_cursor_execute")
    def after(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        if "crashes=CASE" not in statement or not in_hand:  # what only a claim writes so
            return
        with guard:
            if not moments:
                moments.append(time.monotonic())
                node.kill()
                killed.set()

    assert killed.wait(PATIENCE)
    return moments[0]
