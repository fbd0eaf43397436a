"""A worker locks the jobs it takes and nothing else: other workers find theirs, and producers never wait."""

import datetime as dt
import re
import threading
import uuid
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from proletarian_sa import JobRegistry, QueueWorker, enqueue
from proletarian_sa.claimed import ClaimedJob, Finish
from proletarian_sa.dialects import Statements, statements_for
from proletarian_sa.models import default_tables
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add
from tests.plans import MIXES, QUEUE, analyze, fill, forget_statistics
from tests.servers.database import Database

LEASE = dt.timedelta(minutes=1)
IMPATIENCE = {
    "postgresql": "SET lock_timeout = '10s'",
    "mysql": "SET innodb_lock_wait_timeout = 10",
    "mariadb": "SET innodb_lock_wait_timeout = 10",
}
STATISTICS = {"stale": False, "fresh": True}


@pytest.fixture
def statements(database: Database, queue_engine: sa.Engine) -> Statements:
    """Return the statements for a database on which rows can be locked one by one."""
    database.require("row_locks")
    return statements_for(queue_engine.dialect, default_tables)


@pytest.fixture
def own_engine(queue_engine: sa.Engine, statements: Statements) -> sa.Engine:
    """Return the engine as a worker uses it."""
    with queue_engine.connect() as connection:
        return queue_engine.execution_options(**statements.own_options(connection))


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("rows", [20, 1000])
@pytest.mark.parametrize("limit", [1, 10])
def test_claim_locks_what_it_takes(own_engine: sa.Engine, statements: Statements, limit: int, rows: int, statistics: str) -> None:
    """SKIP LOCKED serialises: while a claim is open, all other jobs are free."""
    fill_with(own_engine, rows, "all due", analyzed=STATISTICS[statistics])
    with own_engine.connect() as worker:
        taken = claim(statements, worker, limit)
        everybody_else = sa.select(default_tables.job.c.job_id).with_for_update(skip_locked=True)
        with own_engine.connect() as other:
            free = other.execute(everybody_else).scalars().all()

    assert limit == len(taken)
    assert rows - limit == len(free)


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("rows", [20, 1000, 100_000])
def test_claim_holds_few_locks(
    database: Database, own_engine: sa.Engine, statements: Statements, rows: int, statistics: str
) -> None:
    """SKIP LOCKED serialises: a claim holds two locks a job, one in the index and one in the table, and none of them on a gap."""
    database.require("lock_table")
    fill_with(own_engine, rows, "one in a hundred due" if rows > 1000 else "all due", analyzed=STATISTICS[statistics])
    locks = {}
    for limit in (1, 10):
        with own_engine.connect() as worker, own_engine.connect() as observer:
            assert limit == len(claim(statements, worker, limit))
            locks[limit] = count_locks(observer, worker.exec_driver_sql("SELECT connection_id()").scalar_one())

    assert {} == {limit: count for limit, count in locks.items() if not 2 * limit <= count <= 2 * limit + 2}


@pytest.mark.parametrize("rows", [10, 1000])
def test_four_claims_take_four_of_ten_jobs(own_engine: sa.Engine, statements: Statements, rows: int) -> None:
    """Claims that are open at the same time take different jobs, the oldest first, and leave none that is due behind."""
    ten_due_of(own_engine, rows)
    with ExitStack() as open_claims:
        taken = [[job.job_id for job in claim(statements, open_claims.enter_context(own_engine.connect()), 1)] for _ in range(4)]
        rest = claim(statements, open_claims.enter_context(own_engine.connect()), 10)

    assert [1, 1, 1, 1] == [len(jobs) for jobs in taken]
    assert 10 == len({*(job_id for jobs in taken for job_id in jobs), *(job.job_id for job in rest)})


@pytest.mark.parametrize("rows", [10, 1000])
def test_four_workers_run_four_of_ten_long_jobs(database: Database, queue_engine: sa.Engine, rows: int) -> None:
    """SKIP LOCKED serialises: four workers run four long jobs at the same time, whatever else is in the table."""
    ten_due_of(queue_engine, rows)
    add(queue_engine, "long", queue="other")
    running: set[uuid.UUID] = set()
    let_go = threading.Event()
    jobs = JobRegistry()

    def work(_payload: object, job: object) -> None:
        running.add(job.job_id)  # type: ignore[attr-defined]
        let_go.wait(PATIENCE)

    jobs.handler("any")(work)
    recorder = Recorder()
    with ExitStack() as workers:
        for _ in range(4):
            worker = QueueWorker(database.create_engine(), jobs, polling_interval=0.05, on_event=recorder)
            workers.enter_context(worker)
        try:
            wait_until(lambda: len(running) >= 4, timeout=PATIENCE)
            at_once = len(running)
        finally:
            let_go.set()

    assert 4 == at_once


@pytest.mark.parametrize("doing", ["claim nothing", "claim more than is due", "finish", "retry", "release", "heartbeat"])
def test_enqueue_never_waits(
    database: Database, queue_engine: sa.Engine, own_engine: sa.Engine, statements: Statements, doing: str
) -> None:
    """Deadlock enqueue against claim: whatever a worker has not committed, jobs are enqueued at once, into any queue."""
    if doing != "claim nothing":
        for number in range(3):
            add(queue_engine, "any", number, queue="m")
        add(queue_engine, "any", queue="m", process_in=3600)
    with own_engine.connect() as worker:
        jobs: list[ClaimedJob] = []
        if doing not in {"claim nothing", "claim more than is due"}:
            jobs = claim(statements, worker, 2, queue="m")
            worker.commit()
        leave_open(statements, worker, doing, jobs)
        with database.create_engine().connect() as producer:
            producer.exec_driver_sql(IMPATIENCE[producer.dialect.name])
            producer.commit()
            before = producer.scalar(sa.select(sa.func.count()).select_from(default_tables.job))
            for queue in ("a", "l", "m", "ma", "n", "z"):
                for moment in (dt.timedelta(days=-1), dt.timedelta(), dt.timedelta(days=1)):
                    insert_due(producer, queue, moment)
            producer.commit()
            after = producer.scalar(sa.select(sa.func.count()).select_from(default_tables.job))

    assert 18 == after - before


def leave_open(statements: Statements, worker: sa.Connection, doing: str, jobs: list[ClaimedJob]) -> None:
    """Do what a worker does, but for the commit."""
    match doing:
        case "claim nothing" | "claim more than is due":
            assert (doing == "claim nothing") == (claim(statements, worker, 100, queue="m") == [])
        case "finish":
            statements.archive(worker, [Finish(job=job, status="success") for job in jobs])
        case "retry":
            assert all(statements.retry(worker, job, delay=LEASE, error="broken") for job in jobs)
        case "release":
            assert all(statements.release(worker, job, delay=LEASE) for job in jobs)
        case "heartbeat":
            kept, locked = statements.heartbeat(worker, jobs, lease=LEASE)
            assert (2, 0) == (len(kept), len(locked))
    assert worker.in_transaction()


def insert_due(connection: sa.Connection, queue: str, moment: dt.timedelta) -> None:
    """Enqueue a job, and for a past moment move it there in the same transaction."""
    job_id = enqueue(connection, "any", queue=queue, process_in=moment)
    if moment < dt.timedelta():
        connection.execute(sa.delete(default_tables.job).where(default_tables.job.c.job_id == job_id))
        past = dt.datetime.now(dt.UTC) + moment
        values = {"job_id": job_id, "queue": queue, "job_type": "any", "payload": "{}", "enqueued_at": past, "process_at": past}
        connection.execute(sa.insert(default_tables.job), values)


def ten_due_of(engine: sa.Engine, rows: int) -> None:
    """Fill the table with this many jobs, of which ten are due."""
    mix = next(name for name, hundredth in MIXES.items() if rows * hundredth // 100 == 10)
    fill_with(engine, rows, mix, analyzed=False)


def fill_with(engine: sa.Engine, rows: int, mix: str, *, analyzed: bool) -> None:
    """Fill the table; without `analyzed` the database believes that it is empty."""
    with engine.begin() as connection:
        forget_statistics(connection)
    with engine.begin() as connection:
        fill(connection, rows, MIXES[mix])
    if analyzed:
        with engine.begin() as connection:
            analyze(connection)


def claim(statements: Statements, connection: sa.Connection, limit: int, queue: str = QUEUE) -> list[ClaimedJob]:
    """Claim jobs, and leave the transaction open."""
    return statements.claim(connection, queue=queue, token=uuid.uuid4().hex, lease=LEASE, limit=limit)


def count_locks(observer: sa.Connection, number: int) -> int:
    """Return how many record locks a connection holds; none may reach over a gap where the database tells the difference."""
    if getattr(observer.dialect, "is_mariadb", False):
        # not information_schema.innodb_trx: what it says may be old, and stays so while anybody asks ten times a second
        text = str(observer.exec_driver_sql("SHOW ENGINE INNODB STATUS").one().Status)
        (transaction,) = (part for part in text.split("---TRANSACTION") if re.search(rf"thread id {number}\b", part))
        found = re.search(r"(\d+) row lock\(s\)", transaction)
        return int(found[1]) if found else 0
    modes = observer.exec_driver_sql(
        "SELECT lock_mode, count(*) FROM performance_schema.data_locks JOIN performance_schema.threads USING (thread_id) "
        f"WHERE lock_type = 'RECORD' AND object_name = 'job' AND processlist_id = {number} GROUP BY lock_mode"
    ).all()
    assert {"X,REC_NOT_GAP"} == {mode for mode, _ in modes}
    return sum(count for _, count in modes)
