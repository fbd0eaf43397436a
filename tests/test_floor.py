"""Claims begin where the last one has ended; what becomes due behind that is found by the next full one."""

import datetime as dt
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import ManualClock, default_tables, enqueue, enqueue_many, events
from proletarian_sa.claimed import ClaimedJob
from proletarian_sa.dialects import statements_for
from proletarian_sa.floor import EARLIEST, Floor
from tests.helpers import wait_until
from tests.observing import PATIENCE, add, clocked_tables, lapse
from tests.observing import claim as claim_as_worker
from tests.plans import capture
from tests.queue_contents import archived, queued_ids
from tests.servers.database import Database

NOON = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def floored(monkeypatch: pytest.MonkeyPatch, database: Database) -> list[bool]:
    """Return a list: while it holds True, no claim of a worker is full, but its first."""
    database.require("row_locks")
    only_floored = [True]
    monkeypatch.setattr(Floor, "full_in", lambda _floor: 1.0 if only_floored[-1] else 0.0)
    return only_floored


class Run:
    """A worker that has run one job, so that its claims begin at that one's due time."""

    def __init__(self, engine: sa.Engine, work: Callable[..., Any], floored: list[bool]) -> None:
        self._engine, self._floored = engine, floored
        self.worker, self.seen = work(lambda _job: None, engine)
        self.worker.start()

    def now(self) -> None:
        """Run a job that is due now."""
        job_id = add(self._engine)
        self.seen.wait_for(events.JobSucceeded, job_id=job_id)

    def check(self, late: list[uuid.UUID]) -> None:
        """Check that jobs behind the floor wait while no claim is full, and no longer."""
        self.now()
        self.now()
        assert set(late) <= queued_ids(self._engine)
        self._floored.append(False)
        wait_until(lambda: set(late) <= {row.job_id for row in archived(self._engine)}, timeout=PATIENCE)


def test_late_commit(claim: str, queue_engine: sa.Engine, work: Callable[..., Any], floored: list[bool]) -> None:
    """A transaction that enqueued, and took longer than the next one: its job is due behind what has run already."""
    with queue_engine.connect() as slow:
        late = enqueue(slow, "work")
        run = Run(queue_engine, work, floored)
        run.now()
        slow.commit()

    run.check([late])


@pytest.mark.leased
def test_lapsed_lease(queue_engine: sa.Engine, work: Callable[..., Any], floored: list[bool]) -> None:
    """A job whose worker was lost is due since long ago."""
    late = add(queue_engine)
    claim_as_worker(queue_engine, "lost")
    run = Run(queue_engine, work, floored)
    run.now()
    lapse(queue_engine, late)

    run.check([late])
    assert [1] == [row.crashes for row in archived(queue_engine) if row.job_id == late]


def test_rolled_back_claim(claim: str, queue_engine: sa.Engine, work: Callable[..., Any], floored: list[bool]) -> None:
    """A job that somebody had locked, as a held claim does, and let go: it is due before those that have run meanwhile."""
    late = add(queue_engine)
    job = default_tables.job
    with queue_engine.connect().execution_options(isolation_level="READ COMMITTED") as holder:
        holder.execute(sa.select(job.c.job_id).where(job.c.job_id == late).with_for_update())
        run = Run(queue_engine, work, floored)
        run.now()
        holder.rollback()

    run.check([late])


def test_clock_step(claim: str, queue_engine: sa.Engine, work: Callable[..., Any], floored: list[bool]) -> None:
    """A clock that is set back: what is due by it lies behind what was due by the one before."""
    clock = ManualClock(NOON)
    tables = clocked_tables(clock)
    worker, seen = work(lambda _job: None, queue_engine, tables=tables)
    worker.start()
    first = add(queue_engine, tables=tables)
    seen.wait_for(events.JobSucceeded, job_id=first)
    clock.set(NOON - dt.timedelta(hours=1))
    late = add(queue_engine, tables=tables)
    polls = Polls(queue_engine)
    polls.wait_for(3)

    assert {late} == queued_ids(queue_engine)
    floored.append(False)
    seen.wait_for(events.JobSucceeded, job_id=late)


class Polls:
    """Counts the claims of an engine's workers."""

    def __init__(self, engine: sa.Engine) -> None:
        self._count = 0
        sa.event.listen(engine, "after_cursor_execute", self._after)

    def _after(self, _connection: object, _cursor: object, statement: str, *_others: object) -> None:
        self._count += "SKIP LOCKED" in statement

    def wait_for(self, count: int) -> None:
        """Return after so many."""
        wait_until(lambda: self._count >= count, timeout=PATIENCE)


def test_equal_due_times(claim: str, queue_engine: sa.Engine, work: Callable[..., Any], floored: list[bool]) -> None:
    """Jobs that are due at the same moment are all taken, however few a claim takes."""
    with queue_engine.begin() as connection:
        ids = enqueue_many(connection, [{"job_type": "work"}] * 7)
    with queue_engine.begin() as connection:
        connection.execute(sa.update(default_tables.job).values(process_at=NOON - dt.timedelta(days=3650)))
    worker, seen = work(lambda _job: None, queue_engine)
    worker.start()
    seen.wait_for(events.JobSucceeded, 7)

    assert sorted(ids) == sorted(row.job_id for row in archived(queue_engine))


def test_several_workers(claim: str, queue_engine: sa.Engine, work: Callable[..., Any], floored: list[bool]) -> None:
    """Each has its own: what lies behind that of one may be ahead of another's, and is taken by whoever finds it first."""
    with queue_engine.connect() as slow:
        late = enqueue(slow, "work")
        run = Run(queue_engine, work, floored)
        run.now()
        slow.commit()
    run.now()
    assert {late} == queued_ids(queue_engine)
    other, seen = work(lambda _job: None, queue_engine)
    other.start()  # its first claim is full
    seen.wait_for(events.JobSucceeded, job_id=late)

    assert set() == queued_ids(queue_engine)


def test_when_a_claim_is_full() -> None:
    """The first, and each for which twenty times the duration of the last full one has passed; it sets the floor, downwards too."""
    now = [0.0]
    floor = Floor(lambda: now[0])
    later, earlier = taken(NOON), taken(NOON - dt.timedelta(hours=1))
    sinces = [floor.since()]
    now[0] = 1.0
    floor.claimed(EARLIEST, 0.5, [later])  # it took 0.5 s
    sinces.append(floor.since())
    now[0] = 10.9
    sinces.append(floor.since())
    left = floor.full_in()
    floor.claimed(NOON, 10.8, [])
    sinces.append(floor.since())
    now[0] = 11.0
    sinces.append(floor.since())
    floor.claimed(EARLIEST, 10.9, [earlier])  # 0.1 s
    sinces.append(floor.since())

    assert [EARLIEST, NOON, NOON, NOON, EARLIEST, earlier.process_at] == sinces
    assert 0.1 == pytest.approx(left)


def test_a_job_that_is_put_back_meanwhile() -> None:
    """Starvation: a claim that takes a job with a due time far ahead leaves nobody behind; the floor follows the last claims."""
    floor = Floor(lambda: 0.0)
    times = [NOON + dt.timedelta(minutes=minute) for minute in range(20)]
    floor.claimed(EARLIEST, -1.0, [taken(NOON)])
    floor.claimed(NOON, 0.0, [taken(NOON + dt.timedelta(days=1))])
    ahead = floor.since()
    for time in times:
        floor.claimed(NOON, 0.0, [taken(time), taken(time + dt.timedelta(seconds=1))])

    assert NOON == ahead
    assert times[-Floor.LAST] == floor.since()


def test_large_claims() -> None:
    """Dead rows: a claim of very many jobs is enough to begin at: the next one does not step over those of earlier claims."""
    floor = Floor(lambda: 0.0)
    minutes = [NOON + dt.timedelta(minutes=minute) for minute in range(4)]
    floor.claimed(EARLIEST, -1.0, [taken(minutes[0])] * 4000)
    floor.claimed(NOON, 0.0, [taken(minutes[1])] * (Floor.ENOUGH - 1))
    few = floor.since()
    floor.claimed(NOON, 0.0, [taken(minutes[2])])
    enough = floor.since()
    floor.claimed(NOON, 0.0, [taken(minutes[3])] * 4000)

    assert [minutes[0], minutes[1], minutes[3]] == [few, enough, floor.since()]


def test_one_slow_claim() -> None:
    """A full claim that waited for long, as for a locked table, makes late jobs wait for ten seconds at most."""
    now = [0.0]
    floor = Floor(lambda: now[0])
    now[0] = 60.0
    floor.claimed(EARLIEST, 0.0, [taken(NOON)])
    during = floor.since()
    now[0] = 70.0

    assert (NOON, EARLIEST) == (during, floor.since())


def test_several_threads() -> None:
    """A worker that ended by itself: while one thread compares due times, another notes its claim, at any moment."""
    floor = Floor(lambda: 0.0)
    floor.claimed(EARLIEST, -1.0, [])

    class Due(dt.datetime):
        def __lt__(self, other: dt.datetime) -> bool:
            thread = threading.Thread(target=floor.claimed, args=(NOON, 0.0, [taken(NOON)]))
            thread.start()
            thread.join(PATIENCE)
            return super().__lt__(other)

    for minute in range(1, 4):
        floor.claimed(NOON, 0.0, [taken(Due(2030, 1, 1, 12, minute, tzinfo=dt.UTC))])

    assert NOON + dt.timedelta(minutes=1) == floor.since()
    assert NOON == floor.since()


def taken(due: dt.datetime) -> ClaimedJob:
    """Return a job that was due then."""
    return ClaimedJob(
        job_id=1,
        queue="q",
        job_type="t",
        payload_text="",
        attempts=1,
        crashes=0,
        enqueued=due,
        due=due,
        token="t",  # noqa: S106
    )


def test_dead_tuples(database: Database, queue_engine: sa.Engine) -> None:
    """Dead tuples: behind somebody's snapshot a full claim steps over all finished jobs, a claim from the floor over none."""
    database.require("listen")  # where EXPLAIN tells how many pages were read
    with queue_engine.begin() as connection:
        enqueue_many(connection, [{"job_type": "work"}] * FINISHED)
    with queue_engine.connect().execution_options(isolation_level="REPEATABLE READ") as old:
        old.execute(sa.select(sa.func.count()).select_from(default_tables.job))
        with queue_engine.begin() as connection:
            gone = sa.delete(default_tables.job).returning(default_tables.job.c.process_at)
            last = max(connection.scalars(gone))
        add(queue_engine)
        pages = [_pages(queue_engine, since) for since in (EARLIEST, last)]

    assert pages[0] > FINISHED / 200  # of so many entries to a page of the index
    assert pages[1] < 30


FINISHED = 20_000


def _pages(engine: sa.Engine, since: dt.datetime) -> int:
    """Return how many pages a claim reads that looks from then on."""
    statements = statements_for(engine.dialect, default_tables)
    captured = []
    with engine.connect() as connection:
        with capture(engine) as captured:
            statements.claim(connection, queue="default", token="t", lease=dt.timedelta(1), limit=1, since=since)  # noqa: S106
        connection.rollback()
        claimed = captured[-1]
        plan = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {claimed.statement}", claimed.parameters
        ).scalar()
        connection.rollback()
    return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])
