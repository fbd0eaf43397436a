"""Pools of connections: exhausted by handlers, of one connection, none, those that share one connection, and unusual ones."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from proletarian_sa import DatabaseNotSupported, QueueWorker, RunningJob, events, process_next_job
from tests.faults.scene import Scene
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add
from tests.queue_contents import archived, queued
from tests.servers.database import Database
from tests.stress import tables

pytestmark = pytest.mark.long

THREADS = 4


class Hogs:
    """Handlers of which some take all connections of their engine."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.exhausted, self.enough = threading.Event(), threading.Event()
        self.meeting = threading.Barrier(THREADS)

    def __call__(self, job: RunningJob) -> None:
        getattr(self, job.job_type)(job)

    def hog(self, _job: RunningJob) -> None:
        """Keep whatever the pool hands out, until it is enough."""
        kept = []
        while not self.enough.is_set():
            try:
                kept.append(self._engine.connect())
            except sa.exc.TimeoutError:
                self.exhausted.set()
        for connection in kept:
            connection.close()

    def greedy(self, _job: RunningJob) -> None:
        """Open connections until the pool has none, which is an error of this handler's own."""
        assert self.exhausted.wait(PATIENCE)
        with self._engine.connect():
            self.greedy(_job)

    def quiet(self, _job: RunningJob) -> None:
        """Use none."""
        assert self.exhausted.wait(PATIENCE)

    def writes(self, job: RunningJob) -> None:
        """Use `job.session`."""
        assert self.exhausted.wait(PATIENCE)
        job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})

    def meet(self, _job: RunningJob) -> None:
        """Wait for as many as there are threads."""
        self.meeting.wait(PATIENCE)


def test_handlers_that_exhaust_the_pool(
    database: Database, queue_engine: sa.Engine, claim: str, work: Callable[..., tuple[QueueWorker, Recorder]]
) -> None:
    """Pool exhaustion: a claim without a connection is told and tried again, threads live on, and no job fails but by itself."""
    tables.metadata.create_all(queue_engine)
    engine = database.create_engine(pool_size=THREADS, max_overflow=0, pool_timeout=0.1)
    handler = Hogs(engine)
    names = ["hog", "greedy", "quiet", "writes"]
    ids = {name: add(queue_engine, name) for name in names}
    worker, seen = work(handler, engine, worker_threads=THREADS)
    worker.start()
    met = seen.wait_for(events.TransientErrorMet, activity="claiming jobs")
    assert handler.exhausted.wait(PATIENCE)
    ids["later"] = add(queue_engine, "quiet")
    handler.enough.set()
    wait_until(lambda: queued(queue_engine) == [], 2 * PATIENCE)
    for _ in range(THREADS):
        add(queue_engine, "meet")
    wait_until(lambda: queued(queue_engine) == [], 2 * PATIENCE)
    rows = {row.job_id: row for row in archived(queue_engine)}
    statuses = {name: rows[job_id].status for name, job_id in ids.items()}

    assert isinstance(met.exception, sa.exc.TimeoutError)
    assert {name: "failure" if name == "greedy" else "success" for name in ids} == statuses
    assert "QueuePool limit of size 4 overflow 0 reached" in rows[ids["greedy"]].last_error
    assert len(ids) + THREADS == len(rows)
    assert [str(ids["writes"])] == marks(queue_engine)
    assert [] == seen.of(events.WorkerFailed) + seen.of(events.OutcomeNotRecorded) + seen.of(events.JobLeaseLost)
    assert [(3 + THREADS if claim == "leased" else 1 + THREADS, THREADS)] == [
        (event.needed, event.available) for event in seen.of(events.PoolTooSmall)
    ]
    assert [] == worker.stop()
    assert 0 == engine.pool.checkedout()


def marks(engine: sa.Engine) -> list[str]:
    """Return which jobs have had their effect."""
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(tables.effects.c.job_id)))


def test_a_pool_of_one_connection(scene: Scene) -> None:
    """Pool exhaustion, a pool of one: all jobs of two threads are done, also those that are retried, fail or are interrupted."""
    one = {"pool_size": 1, "max_overflow": 0, "pool_timeout": PATIENCE}
    worker = scene.start(worker={"worker_threads": 2}, engine=one, retries=1)
    effectless = scene.add(2, effect=False)
    jobs = [*scene.add(3), *scene.add(3, ends="flaky"), *effectless]
    failed = scene.add(2, ends="failure")
    scene.wait_for_end([*jobs, *failed])
    scene.check_alive()

    assert 0 == worker.stop(), worker.text()
    scene.check(failed=failed, effectless=effectless)
    assert 1 == len(scene.told("PoolTooSmall"))
    assert [] == scene.told("TransientErrorMet")


def by_creator(database: Database) -> sa.Engine:
    """Return an engine of which the URL does not say how to connect."""
    dialect = database.url.get_dialect()()
    dialect.dbapi = dialect.import_dbapi()
    arguments, keywords = dialect.create_connect_args(database.url)
    url = database.url if database.kind == "sqlite" else sa.URL.create(database.url.drivername)
    engine = sa.create_engine(url, creator=lambda: dialect.connect(*arguments, **keywords))
    database.engines.append(engine)
    return engine


POOLS: dict[str, Callable[[Database], sa.Engine]] = {
    "NullPool": lambda database: database.create_engine(poolclass=sa.NullPool),
    "without a limit": lambda database: database.create_engine(max_overflow=-1),
    "pre-ping and recycle": lambda database: database.create_engine(pool_pre_ping=True, pool_recycle=0),
    "last in first out": lambda database: database.create_engine(pool_use_lifo=True, pool_reset_on_return="commit"),
    "creator": by_creator,
}


@pytest.mark.parametrize("pool", POOLS)
def test_other_pools(
    database: Database, queue_engine: sa.Engine, claim: str, work: Callable[..., tuple[QueueWorker, Recorder]], pool: str
) -> None:
    """NullPool, and others that hand out a connection to each who asks: all jobs are done, and nothing is said of the pool."""
    tables.metadata.create_all(queue_engine)
    engine = POOLS[pool](database)
    ids = [add(queue_engine) for _ in range(8)]

    def handler(job: RunningJob) -> None:
        job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})

    worker, seen = work(handler, engine, worker_threads=3)
    worker.start()
    wait_until(lambda: queued(queue_engine) == [], PATIENCE)
    step = add(queue_engine)
    assert [] == worker.stop()
    outcome = process_next_job(engine, handler, handler_mode="advanced", claim=claim)

    assert outcome is None or outcome.job_id == step
    assert sorted(map(str, [*ids, step])) == sorted(marks(queue_engine))
    assert {("success", 1)} == {(row.status, row.attempts) for row in archived(queue_engine)}
    assert [] == seen.of(events.PoolTooSmall) + seen.of(events.TransientErrorMet)


@pytest.mark.parametrize("pool", [StaticPool, SingletonThreadPool])
def test_pools_that_share_a_connection_are_refused(database: Database, queue_engine: sa.Engine, pool: Any) -> None:
    """StaticPool, and a pool of one connection a thread: refused at the start, with what to use; the job is left as it is."""
    add(queue_engine)
    engine = database.create_engine(poolclass=pool)
    worker = QueueWorker(engine, print)
    with pytest.raises(
        DatabaseNotSupported, match=rf"uses {pool.__name__}: .* share one connection and its transaction\. Use the default"
    ):
        worker.start()
    with pytest.raises(DatabaseNotSupported, match=f"uses {pool.__name__}"):
        process_next_job(engine, print)

    assert [(0, None)] == [(row.attempts, row.claimed_by) for row in queued(queue_engine)]
    assert not worker.is_running
