"""Locks of held claims: nobody but the job's next worker meets them, and deadlocks are nobody's."""

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from proletarian_sa import RetryStrategy, default_tables, events, process_next_job
from proletarian_sa.claimed import Finish
from proletarian_sa.dialects.base import Archived
from tests.field_cases.deadlocks import impatient_engine
from tests.field_cases.test_isolation import LEVELS, assert_quiet, run_a_load, set_default
from tests.field_cases.test_mysql_locks import Business
from tests.helpers import scaled, wait_until
from tests.observing import PATIENCE, Recorder, add, change, claim, session_id, statements
from tests.queue_contents import archived, queued

PRODUCERS = 8
TUNED = {
    "postgresql": "SET enable_indexscan = off",
    "mysql": "SET optimizer_switch = 'mrr=on,mrr_cost_based=off,batched_key_access=on'",
    "mariadb": "SET join_cache_level = 8, optimizer_switch = 'mrr=on,mrr_sort_keys=on'",
}
"""Settings for large joins, which make a planner read and lock many rows before it returns the first."""


@pytest.mark.parametrize("kinds", [("held", "held"), ("held", "leased")])
def test_producers_and_workers_that_meet_no_deadlock(database, app_engine, work, kinds):
    """Deadlock of enqueue and claim: on a nearly empty queue neither producers nor claims and finishes meet one, or a time-out."""
    database.require("row_locks")
    business, seen = Business(impatient_engine(database, PRODUCERS)), Recorder()
    workers = [
        work(business.ran, database.create_engine(pool_size=8), claim=kind, worker_threads=4, on_event=seen)[0] for kind in kinds
    ]
    for worker in workers:
        worker.start()
    with ThreadPoolExecutor(PRODUCERS) as pool:
        produced = list(pool.map(lambda producer: business.produce(producer, scaled(3)), range(PRODUCERS)))
    ids = set().union(*produced)
    wait_until(lambda: len(archived(app_engine)) == len(ids), PATIENCE)

    assert [] == business.errors
    assert {("success", 1, None)} == {(row.status, row.attempts, row.crashes) for row in archived(app_engine)}
    assert len(ids) == len(seen.of(events.JobStarted))
    assert [] == seen.of(events.TransientErrorMet) + seen.of(events.WorkerFailed) + seen.of(events.OutcomeNotRecorded)


def test_retries_and_failures_under_load(database, queue_engine, work):
    """Deadlock on finish and claim: jobs that fail, are retried and succeed, in two workers of four threads: each archived once."""
    database.require("row_locks")
    count, seen = scaled(60), Recorder()

    def handler(job):
        if job.payload % 3 == 0 and (job.attempts == 1 or job.payload % 2 == 0):
            raise ValueError

    for number in range(count):
        add(queue_engine, payload=number)
    retry = RetryStrategy(retries=1)
    for _ in range(2):
        engine = database.create_engine(pool_size=8)
        work(handler, engine, claim="held", worker_threads=4, on_event=seen, retry=retry)[0].start()
    wait_until(lambda: len(archived(queue_engine)) == count, PATIENCE)

    failures = [row for row in archived(queue_engine) if row.status == "failure"]
    assert [] == queued(queue_engine)
    assert len(range(0, count, 6)) == len(failures)
    assert [] == seen.of(events.TransientErrorMet) + seen.of(events.JobLeaseLost) + seen.of(events.OutcomeNotRecorded)


@pytest.mark.parametrize("level", LEVELS)
def test_the_databases_default_isolation(database, app_engine, work, level):
    """Serialization failure in the claim: with a stricter default of the database's no held claim, job or enqueue fails for it."""
    database.require("row_locks", "default_isolation")
    set_default(database, app_engine, level)
    assert_quiet(run_a_load(app_engine, [database.create_engine() for _ in range(4)], work, claim="held"))


@pytest.mark.parametrize("neighbour", ["b", "zz"])
def test_an_empty_queue_locks_nothing_of_its_neighbours(database, queue_engine, neighbour):
    """A worker with several queues that runs a job of a later one keeps no job of other queues from their workers."""
    database.require("row_locks")
    add(queue_engine, queue=neighbour)
    add(queue_engine, queue="z")
    other = database.create_engine()
    found = []

    def handler(_job):
        for kind in ("held", "leased"):
            found.append(process_next_job(other, lambda _job: None, queue=neighbour, claim=kind, handler_mode="advanced"))
            add(other, queue=neighbour)

    outcome = process_next_job(queue_engine, handler, queue=["a", "y", "z"], claim="held", handler_mode="advanced")

    assert "succeeded" == outcome.status
    assert ["succeeded"] * 2 == [one and one.status for one in found]


def test_enqueueing_beside_held_jobs(database, queue_engine, work):
    """Whoever enqueues waits for no held job, before, between or behind those that are there."""
    database.require("row_locks")
    begun, go = threading.Semaphore(0), threading.Event()

    def handler(_job):
        begun.release()
        assert go.wait(PATIENCE)

    for _ in range(3):
        add(queue_engine)
    work(handler, claim="held", worker_threads=4)[0].start()
    for _ in range(3):
        assert begun.acquire(timeout=PATIENCE)
    engine = impatient_engine(database)
    for queue in ("a", "default", "z"):
        for delay in (0, 60):
            add(engine, queue=queue, process_in=delay)
    there = len(queued(engine))  # before any of them can end
    go.set()

    assert 9 == there


@pytest.mark.parametrize("leased", [1, 4])
def test_leased_jobs_that_were_due_earlier(database, queue_engine, leased):
    """While a held handler runs, jobs that are leased already keep their leases, and are finished: nobody waits for it."""
    database.require("row_locks")
    for _ in range(leased + 1):
        add(queue_engine)
    jobs, engine, said = claim(queue_engine, "leased", limit=leased), impatient_engine(database), []
    finishes = [Finish(job=job, status="success") for job in jobs]

    def handler(_job):
        said.append(prolong(engine, jobs))
        with engine.begin() as connection:
            said.append(statements(engine).archive(connection, finishes))

    process_next_job(queue_engine, handler, claim="held", handler_mode="advanced")

    assert [({job.job_id for job in jobs}, set()), [Archived.DONE] * leased] == said
    assert ["success"] * (leased + 1) == [row.status for row in archived(queue_engine)]


def prolong(engine, jobs):
    """Return the ids of those jobs whose leases a heartbeat prolongs, and of those that it finds locked."""
    with engine.begin() as connection:
        kept, locked = statements(engine).heartbeat(connection, jobs, lease=dt.timedelta(hours=1))
    return {job_id for job_id, _ in kept}, {job_id for job_id, _ in locked}


def test_many_held_jobs_in_front(database, queue_engine):
    """However many older jobs are held, the next is found, and that alone is locked."""
    database.require("row_locks")
    ids = [add(queue_engine) for _ in range(32)]
    engine, held = database.create_engine(pool_size=32, isolation_level="READ COMMITTED"), statements(queue_engine).held
    with ExitStack() as transactions:
        connections = [transactions.enter_context(engine.connect()) for _ in range(31)]
        taken = [take(held, connection) for connection in connections]
        with engine.connect() as other:
            free = other.scalars(sa.select(default_tables.job.c.job_id).with_for_update(skip_locked=True)).all()

    assert ids[:31] == [job.job_id for job in taken]
    assert ids[31:] == free


def test_a_server_that_is_tuned_for_joins(database, queue_engine):
    """With settings that make for large joins a held claim locks its own job, and all others are free."""
    database.require("row_locks")
    ids = [add(queue_engine) for _ in range(4)]
    engine, free = database.create_engine(), []

    @sa.event.listens_for(engine, "connect")
    def tune(connection, _record):
        cursor = connection.cursor()
        cursor.execute(TUNED[engine.dialect.name])
        connection.commit()

    def handler(_job):
        with queue_engine.connect() as other:
            free.extend(other.scalars(sa.select(default_tables.job.c.job_id).with_for_update(skip_locked=True)))

    process_next_job(engine, handler, claim="held", handler_mode="advanced")

    assert set(ids[1:]) == set(free)


def take(held, connection):
    """Hold a job, and leave the transaction open."""
    held.begin(connection)
    return held.claim(connection, queue="default", token="holder")  # noqa: S106 - names a claim


@pytest.mark.parametrize("snapshot", ["OFF", "ON"])
@pytest.mark.parametrize("becomes", ["leased", "later", "gone"])
def test_a_job_that_changes_between_look_and_lock(database, queue_engine, becomes, snapshot):
    """Where a held claim looks without locks first, what it takes is what it has locked: a job no longer due is left, and free."""
    database.require("row_locks", "snapshot_check")
    first, second = add(queue_engine), add(queue_engine)
    engine, held = database.create_engine(isolation_level="READ COMMITTED"), statements(queue_engine).held
    sa.event.listen(engine, "before_cursor_execute", pause_between, retval=True)
    with queue_engine.connect() as rival, engine.connect() as connection, ThreadPoolExecutor(1) as pool:
        connection.exec_driver_sql(f"SET SESSION innodb_snapshot_isolation = {snapshot}")
        number = session_id(connection)
        rival.exec_driver_sql("SELECT get_lock(database(), 0)")
        claimed = pool.submit(take, held, connection)
        wait_until(lambda: "User lock" == state_of(queue_engine, number), PATIENCE)
        changed = {
            "leased": lambda: claim(queue_engine, "thief", limit=1),
            "later": lambda: change(queue_engine, first, process_at=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)),
            "gone": lambda: delete(queue_engine, first),
        }
        changed[becomes]()
        rival.exec_driver_sql("SELECT release_lock(database())")
        taken = claimed.result(PATIENCE)
        with queue_engine.connect() as other:
            free = other.scalars(sa.select(default_tables.job.c.job_id).with_for_update(skip_locked=True)).all()

    assert second == taken.job_id
    assert ([] if becomes == "gone" else [first]) == free


@pytest.mark.parametrize("snapshot", ["OFF", "ON"])
def test_a_job_that_another_transaction_has_written(database, queue_engine, snapshot):
    """A job whose row is changed, and not committed yet, is passed over, also where changes since a snapshot are refused."""
    database.require("row_locks", "snapshot_check")
    first, second = add(queue_engine), add(queue_engine)
    engine, held = database.create_engine(isolation_level="READ COMMITTED"), statements(queue_engine).held
    with queue_engine.connect() as rival, engine.connect() as connection:
        rival.execute(sa.update(default_tables.job).where(default_tables.job.c.job_id == first).values(attempts=7))
        connection.exec_driver_sql(f"SET SESSION innodb_snapshot_isolation = {snapshot}")
        taken = take(held, connection)

    assert second == taken.job_id


def pause_between(_connection, _cursor, statement, parameters, _context, _executemany):
    """Let a held claim wait for the rival after it has looked at a job."""
    wait = "if(attempts >= 0, get_lock(database(), 60) AND release_lock(database()), 0)"
    return statement.replace(") AS due ", f" AND {wait}) AS due "), parameters


def state_of(engine, number):
    """Return what a connection is at, in the server's words."""
    with engine.connect() as connection:
        return connection.exec_driver_sql(f"SELECT state FROM information_schema.processlist WHERE id = {number}").scalar()


def delete(engine, job_id):
    """Delete a job."""
    with engine.begin() as connection:
        connection.execute(sa.delete(default_tables.job).where(default_tables.job.c.job_id == job_id))
