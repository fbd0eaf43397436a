"""A worker and its database: connections lost and killed, small pools, idle transactions, errors that waiting does not mend."""

import datetime as dt
import queue
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import TablesMissing, create_all, default_tables, drop_all, events, process_next_job
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add, backends, end_session, session_id, transactions
from tests.queue_contents import Base, User, archived, queued

pytestmark = pytest.mark.long

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def kill(engine, numbers):
    """End connections, those that have ended already too."""
    for number in numbers:
        try:
            end_session(engine, number)
        except sa.exc.DBAPIError as error:
            if "Unknown thread id" not in str(error):
                raise


def test_an_idle_worker_has_no_transaction_open(database, queue_engine, work):
    """Idle transactions: between polls no connection of the worker is in a transaction."""
    database.require("server")
    engine, numbers = backends(database)
    worker, seen = work(lambda job: job.session, engine, worker_threads=2, polling_interval=1)
    worker.start()
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)
    worker_is_idle = [transactions(queue_engine, numbers) for _ in range(30)]

    assert len(numbers) >= 2
    # A poll may be caught in its act, but no transaction stays.
    assert worker_is_idle.count([]) >= 15


def test_a_job_without_a_session_holds_no_transaction(database, queue_engine, work):
    """Idle transactions: while a handler runs that does not use `job.session`, no transaction is open for it."""
    database.require("server")
    begun, go = threading.Event(), threading.Event()
    engine, numbers = backends(database)
    worker, seen = work(lambda job: begun.set() or go.wait(PATIENCE), engine, polling_interval=3600)
    add(queue_engine)
    worker.start()
    assert begun.wait(PATIENCE)

    wait_until(lambda: not transactions(queue_engine, numbers), PATIENCE)
    assert [] == transactions(queue_engine, numbers)
    go.set()
    seen.wait_for(events.JobSucceeded)


def test_connections_killed_while_idle(database, queue_engine, work):
    """Lost connection: the next poll works, quietly, and no job or attempt is lost."""
    database.require("server")
    engine, numbers = backends(database)
    worker, seen = work(lambda job: None, engine)
    worker.start()
    for _ in range(3):
        job_id = add(queue_engine)
        seen.wait_for(events.JobSucceeded, job_id=job_id)
        kill(queue_engine, numbers)

    job_id = add(queue_engine)
    seen.wait_for(events.JobSucceeded, job_id=job_id)
    assert worker.is_running
    assert {("success", 1)} == {(row.status, row.attempts) for row in archived(queue_engine)}


def test_connections_killed_under_load(database, queue_engine, work):
    """Lost connection: killed at random moments, every job is done once, its effects there exactly once; the worker goes on."""
    database.require("server")
    Base.metadata.create_all(queue_engine)
    engine, numbers = backends(database)
    count = 60
    for number in range(1, count + 1):
        add(queue_engine, payload=number)

    def handler(job):
        job.session.add(User(id=job.payload, name="effect"))

    worker, seen = work(handler, engine, worker_threads=3, lease=1.0)
    worker.start()
    for kills in range(5):
        seen.wait_for(events.JobSucceeded, count=1 + 8 * kills)
        kill(queue_engine, list(numbers))
    wait_until(lambda: len(archived(queue_engine)) == count, 3 * PATIENCE)
    worker.stop()

    with Session(queue_engine) as session:
        assert list(range(1, count + 1)) == sorted(session.scalars(sa.select(User.id)))
    assert [] == queued(queue_engine)
    assert {"success"} == {row.status for row in archived(queue_engine)}
    assert worker.error is None


def test_a_pool_of_one_connection(database, queue_engine, work):
    """Slow but sure: with one connection for everything the worker says what it would need, and does all jobs."""
    Base.metadata.create_all(queue_engine)
    engine = database.create_engine(pool_size=1, max_overflow=0, pool_timeout=PATIENCE)
    worker, seen = work(lambda job: job.session.add(User(id=job.payload, name="x")), engine, worker_threads=2)
    for number in range(1, 7):
        add(queue_engine, payload=number)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=6)

    assert [(5, 1)] == [(event.needed, event.available) for event in seen.of(events.PoolTooSmall)]
    assert [] == worker.stop()
    assert ["success"] * 6 == [row.status for row in archived(queue_engine)]
    assert 0 == engine.pool.checkedout()


def test_a_pool_of_one_connection_for_one_step(database, queue_engine):
    """Also `process_next_job` needs no second connection, after its heartbeats have used the one there is, too."""
    engine = database.create_engine(pool_size=1, max_overflow=0, pool_timeout=PATIENCE)
    job_id = add(queue_engine)

    def lease_end():
        return queued(queue_engine)[0].lease_until

    def handler(job):
        before = lease_end()
        wait_until(lambda: lease_end() > before, PATIENCE)
        job.session.execute(sa.select(1))

    outcome = process_next_job(engine, handler, handler_mode="advanced", lease=0.6)

    assert ("succeeded", job_id) == (outcome.status, outcome.job_id)
    assert [None] == [row.crashes for row in archived(queue_engine)]


def test_an_error_that_waiting_does_not_mend_stops_the_worker_loudly(queue_engine, work):
    """Lost job, claim error swallowed: the worker stops, says why, and `run` raises; jobs that run are finished first."""
    worker, seen = work(lambda job: None)
    raised = queue.Queue()

    def run():
        try:
            worker.run()
        except sa.exc.DBAPIError as error:
            raised.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)
    with queue_engine.begin() as connection:
        name = connection.dialect.identifier_preparer.format_table(default_tables.job)
        if connection.dialect.name != "postgresql":
            name = default_tables.job.name
        connection.exec_driver_sql(f"ALTER TABLE {name} RENAME COLUMN lease_until TO renamed")
    error = raised.get(timeout=PATIENCE)
    thread.join(PATIENCE)

    assert "lease_until" in str(error)
    assert error is worker.error
    assert not worker.is_running
    assert 1 == len(seen.of(events.WorkerFailed))
    assert 1 == len(seen.of(events.WorkerStopped))


def test_tables_that_a_migration_is_at(queue_engine, work):
    """Tables not there yet: a worker that waits for them is not ended by MySQL's refusal to look at a table that is being made."""
    if queue_engine.dialect.name not in {"mysql", "mariadb"}:
        pytest.skip("no tables that are skipped in mid-migration")
    refusals = ["Table 'archived_job' was skipped since its definition is being modified by concurrent DDL statement"]

    def refuse(_cursor, statement, _parameters, _context):
        if refusals and statement.upper().startswith(("SHOW", "DESCRIBE", "SELECT COLUMN")):
            raise queue_engine.dialect.loaded_dbapi.OperationalError(1684, refusals.pop())

    sa.event.listen(queue_engine, "do_execute", refuse)
    worker, seen = work(lambda _job: None, wait_for_tables=True)
    worker.start()
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)

    assert [] == refusals
    assert ["waiting for the tables"] == [event.activity for event in seen.of(events.TransientErrorMet)]


def test_tables_that_are_not_there_yet(queue_engine, work):
    """Tables not there yet: `wait_for_tables` waits quietly, naming them once; the worker begins when they have been installed."""
    drop_all(queue_engine)
    worker, seen = work(lambda job: None, wait_for_tables=True)
    starting = threading.Thread(target=worker.start)
    starting.start()
    told = seen.wait_for(events.TransientErrorMet, 2, activity="waiting for the tables")
    assert not worker.is_running
    create_all(queue_engine)
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)
    starting.join(PATIENCE)

    assert isinstance(told.exception, TablesMissing)
    assert default_tables.job.name in str(told.exception)
    assert 1 == len(seen.of(events.Recovered))
    assert worker.is_running


def test_a_stop_while_it_waits_for_tables(queue_engine, work):
    """Tables not there yet: `stop` ends the wait at once, and nothing has been started."""
    drop_all(queue_engine)
    worker, seen = work(lambda job: None, wait_for_tables=True)
    starting = threading.Thread(target=worker.start)
    starting.start()
    seen.wait_for(events.TransientErrorMet, activity="waiting for the tables")
    stopped = worker.stop()
    starting.join(PATIENCE)

    assert [] == stopped
    assert not starting.is_alive()
    assert not worker.is_running


def test_tables_that_vanish_are_waited_for(queue_engine, work):
    """Tables not there yet, or not any more: those dropped under a worker are a back-off; when they are there again, it goes on."""
    worker, seen = work(lambda job: None)
    worker.start()
    seen.wait_for(events.WorkerStarted)
    drop_all(queue_engine)
    seen.wait_for(events.TransientErrorMet, activity="claiming jobs")
    create_all(queue_engine)
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)

    assert worker.is_running


def test_an_index_that_is_made_anew_is_waited_for(queue_engine, work):
    """Without the index that claims read, for as long as that takes, jobs are done without it or later; no worker ends."""
    worker, seen = work(lambda job: None)
    worker.start()
    seen.wait_for(events.WorkerStarted)
    (index,) = [index for index in default_tables.job.indexes if [*index.columns.keys()] == ["queue", "process_at"]]
    index.drop(queue_engine)
    add(queue_engine)
    wait_until(lambda: seen.of(events.TransientErrorMet) or seen.of(events.JobSucceeded), timeout=PATIENCE)
    index.create(queue_engine)
    seen.wait_for(events.JobSucceeded)

    assert worker.is_running


def test_session_id_is_the_servers(database, queue_engine):
    """The helper that kills connections kills the right one."""
    database.require("server")
    with queue_engine.connect() as connection:
        number = session_id(connection)
        end_session(queue_engine, number)
        with pytest.raises(sa.exc.DBAPIError):
            connection.execute(sa.select(1))


def make_stale(engine, numbers, count=4):
    """Leave connections in the pool that the server has ended."""
    connections = [engine.connect() for _ in range(count)]
    for connection in connections:
        connection.close()
    kill(sa.create_engine(engine.url, poolclass=sa.NullPool), numbers)


def test_stale_connections_in_the_pool_cost_no_attempt(database, queue_engine):
    """Stale pooled connections: `job.session` and the finish get past what the server has ended meanwhile, quietly."""
    database.require("server")
    seen = Recorder()
    engine, numbers = backends(database)
    add(queue_engine)

    def handler(job):
        make_stale(engine, numbers)
        assert 1 == job.session.scalar(sa.select(1))

    outcome = process_next_job(engine, handler, handler_mode="advanced", on_event=seen)

    assert ("succeeded", 1) == (outcome.status, outcome.attempts)
    assert ["JobsClaimed", "JobStarted", "JobSucceeded"] == seen.names()


def test_a_worker_starts_on_stale_connections(database, queue_engine, work):
    """Stale pooled connections: a worker that starts on a pool whose connections the server has ended works all the same."""
    database.require("server")
    engine, numbers = backends(database)
    make_stale(engine, numbers)
    worker, seen = work(lambda job: job.session, engine)
    add(queue_engine)
    worker.start()
    seen.wait_for(events.JobSucceeded)

    assert worker.is_running
    assert [] == seen.of(events.JobTransactionDied) + seen.of(events.JobAttemptFailed)


def test_one_step_on_stale_connections_raises_an_error_of_sqlalchemy(database, queue_engine):
    """Stale pooled connections: `process_next_job` gets past them, or raises SQLAlchemy's error without having touched a job."""
    database.require("server")
    engine, numbers = backends(database)
    make_stale(engine, numbers)
    add(queue_engine)
    try:
        outcome = process_next_job(engine, lambda job: job.session, handler_mode="advanced")
    except sa.exc.DBAPIError:
        assert [(0, None)] == [(row.attempts, row.claimed_by) for row in queued(queue_engine)]
        outcome = process_next_job(engine, lambda job: job.session, handler_mode="advanced")

    assert ("succeeded", 1) == (outcome.status, outcome.attempts)
