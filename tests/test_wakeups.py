"""Idle workers hear of new jobs from the commit itself, where they share a process with it; and one of them polls for all."""

import asyncio
import datetime as dt
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from proletarian_sa import DatabaseIds, Job, JobTables, create_all, enqueue, enqueue_many, events
from proletarian_sa.runtime import build_runtime
from proletarian_sa.wakeups import pending, stations
from tests.helpers import wait_until
from tests.observing import PATIENCE, add

pytestmark = pytest.mark.async_drivers

NEVER = 3600.0
"""A polling interval in which no test ends: what happens, happens by a wake-up."""
ROWS = [{"job_type": "work"}, {"job_type": "work", "process_in": 3600}]
WAYS: dict[str, Callable[[Session], object]] = {
    "session.add": lambda session: session.add(Job(job_type="work")),
    "enqueue, session": lambda session: enqueue(session, "work"),
    "enqueue, connection": lambda session: enqueue(session.connection(), "work"),
    "enqueue, due in the past": lambda session: enqueue(session, "work", process_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    "enqueue_many, sequence": lambda session: enqueue_many(session, ROWS),
    "enqueue_many, iterator": lambda session: enqueue_many(session.connection(), iter(ROWS)),
}


def station_of(engine: sa.Engine, **options: Any) -> stations.Station:
    """Return where workers on this engine wait."""
    runtime = build_runtime(engine, lambda *_: None, **{"queue": "default"} | options)
    return stations.join(runtime)


@pytest.fixture
def waiting(database: Any, queue_engine: sa.Engine) -> Iterator[stations.Station]:
    """Return where a worker of the queue `default` waits, whose threads have an engine of their own on a driver for asyncio."""
    station = station_of(sa.create_engine(database.url) if database.in_greenlet else queue_engine)
    yield station
    stations.leave(station)


def test_a_commit_wakes(queue_engine: sa.Engine, waiting: stations.Station) -> None:
    """Whichever way a job is enqueued, the commit wakes, once, and nothing before it does; a rollback wakes nobody."""
    for way, put in WAYS.items():
        waiting.wakes = 0
        with Session(queue_engine) as session:
            put(session)
            session.flush()
            session.rollback()
            rolled_back = waiting.wakes
            put(session)
            put(session)
            session.flush()
            before = waiting.wakes
            session.commit()
            after = waiting.wakes
            session.execute(sa.select(1))
            session.commit()

        assert (0, 0, 1, 1) == (rolled_back, before, after, waiting.wakes), way


@pytest.mark.parametrize("rolled_back", [None, "inner", "outer"])
def test_savepoints(queue_engine: sa.Engine, waiting: stations.Station, rolled_back: str | None) -> None:
    """A job of a savepoint that was rolled back wakes nobody; one of a savepoint that was released, with the commit."""
    for way, put in WAYS.items():
        waiting.wakes = 0
        with Session(queue_engine) as session:
            enqueue(session, "another", queue="another")
            session.flush()
            with session.begin_nested() as outer:
                with session.begin_nested() as inner:
                    put(session)
                    session.flush()
                    if rolled_back == "inner":
                        inner.rollback()
                if rolled_back == "outer":
                    outer.rollback()
            session.commit()

        assert (not rolled_back) == waiting.wakes, way


def test_savepoint_set_before_the_first_job(queue_engine: sa.Engine, waiting: stations.Station) -> None:
    """What was enqueued before a savepoint stays when that is rolled back, and what was enqueued in one goes with it."""
    with queue_engine.connect() as connection:
        with connection.begin_nested() as savepoint:
            enqueue(connection, "work")
            savepoint.rollback()
        connection.commit()
        lost = waiting.wakes
        enqueue(connection, "work")
        with connection.begin_nested() as savepoint:
            enqueue(connection, "work")
            savepoint.rollback()
        connection.commit()

    assert (0, 1) == (lost, waiting.wakes)


def test_many_savepoints(queue_engine: sa.Engine, waiting: stations.Station) -> None:
    """What is noted of a transaction does not grow with the savepoints that are released in it."""
    with queue_engine.connect() as connection:
        enqueue(connection, "work")
        for _ in range(20):
            with connection.begin_nested():
                enqueue(connection, "work")
        (noted,) = [value for name, value in connection.info.items() if "enqueued" in str(name)]
        connection.commit()

    assert 1 == len(noted)
    assert 1 == waiting.wakes


@pytest.mark.parametrize("due", [{"process_in": 3600}, {"process_at": dt.datetime(2100, 1, 1, tzinfo=dt.UTC)}])
def test_future_jobs_wake_nobody(queue_engine: sa.Engine, waiting: stations.Station, due: dict[str, Any]) -> None:
    """A job that is not due yet wakes nobody, whichever way it is enqueued."""
    with Session(queue_engine) as session, session.begin():
        session.add(Job(job_type="work", **due))
        enqueue(session, "work", **due)
        enqueue(session.connection(), "work", **due)
        enqueue_many(session, [{"job_type": "work", **due}])

    assert 0 == waiting.wakes


@pytest.mark.parametrize("rows", [2, 1100])  # in one chunk, in two
def test_each_queue_of_many_jobs_is_woken(queue_engine: sa.Engine, waiting: stations.Station, rows: int) -> None:
    """Jobs that are enqueued together are due one microsecond apart, which makes none of them one for later."""
    queues = [*["another"] * (rows - 1), "default"]
    with queue_engine.begin() as connection:
        enqueue_many(connection, [{"job_type": "work", "queue": queue} for queue in queues])

    assert 1 == waiting.wakes


def test_an_enqueueing_signal_handler() -> None:
    """A signal handler that enqueues does not wait for the code that it has interrupted, which prepares the engine for that."""
    with pending._telling:
        again = pending._telling.acquire(blocking=False)
        if again:
            pending._telling.release()

    assert again


def test_other_queues_and_tables_wake_nobody(queue_engine: sa.Engine, waiting: stations.Station) -> None:
    """A job of another queue, or of other tables in the same database, wakes nobody."""
    others = JobTables(job_table="other_job", archived_job_table="other_archived_job")
    create_all(queue_engine, tables=others)
    add(queue_engine, queue="mail")
    add(queue_engine, tables=others)

    assert 0 == waiting.wakes


@pytest.mark.plain_drivers
def test_ids_made_by_the_database(queue_engine: sa.Engine) -> None:
    """A job that is inserted at once, because the database makes its id, wakes with the commit."""
    tables = JobTables(job_table="n_job", archived_job_table="n_archived_job", job_ids=DatabaseIds())
    create_all(queue_engine, tables=tables)
    station = station_of(queue_engine, tables=tables)
    with Session(queue_engine) as session:
        enqueue(session, "work", tables=tables)
        before = station.wakes
        session.commit()
    stations.leave(station)

    assert (0, 1) == (before, station.wakes)


@pytest.mark.plain_drivers
def test_asyncio(database: Any, waiting: stations.Station) -> None:
    """Commits of async sessions and connections wake workers on a synchronous engine: another driver, the same database."""

    async def work() -> list[int]:
        engine = create_async_engine(database.async_url)
        seen = []
        try:
            async with AsyncSession(engine) as session:
                enqueue(session, "work")
                await session.flush()
                seen.append(waiting.wakes)
                await session.commit()
                seen.append(waiting.wakes)
            async with engine.begin() as connection:
                await enqueue(connection, "work")
                await enqueue_many(connection, ROWS)
            seen.append(waiting.wakes)
        finally:
            await engine.dispose()
        return seen

    assert [0, 1, 2] == asyncio.run(work())


@pytest.mark.plain_drivers
def test_which_engines_are_the_same_database(database: Any, queue_engine: sa.Engine, waiting: stations.Station) -> None:
    """Engines with URLs of one database wake each other; where the URL says nothing, only the same engine does."""
    add(database.create_engine())
    same = waiting.wakes
    secret = sa.create_engine(f"{queue_engine.url.drivername}://", creator=queue_engine.pool._creator, poolclass=sa.NullPool)
    database.engines.append(secret)
    add(secret)
    by_creator = waiting.wakes
    station = station_of(secret)
    add(secret.execution_options(any="thing"))
    stations.leave(station)

    assert (1, 1, 1) == (same, by_creator, station.wakes)


def test_autocommit(queue_engine: sa.Engine, waiting: stations.Station) -> None:
    """On a connection in autocommit the insert itself wakes."""
    with queue_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        enqueue(connection, "work")
        first = waiting.wakes
        enqueue_many(connection, ROWS)

    assert (1, 2) == (first, waiting.wakes)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_phases(queue_engine: sa.Engine, database: Any, waiting: stations.Station, end: str) -> None:
    """A prepared job wakes when it is committed, and only then."""
    database.require("two_phase")
    with Session(queue_engine, twophase=True) as session:
        enqueue(session, "work")
        session.prepare()
        before = waiting.wakes
        getattr(session, end)()

    assert (0, int(end == "commit")) == (before, waiting.wakes)


def test_a_commit_that_fails_wakes_nobody(database: Any, waiting: stations.Station) -> None:
    """When the COMMIT fails nobody is woken, and its error reaches the application as ever; the next one wakes."""
    engine = database.create_engine()
    plain = engine.dialect.do_commit
    failing = True

    def do_commit(connection: Any) -> None:
        if failing:
            raise engine.dialect.loaded_dbapi.OperationalError("injected")
        plain(connection)

    engine.dialect.do_commit = do_commit  # as a driver would, beneath whatever is wrapped around it
    with engine.connect() as connection:
        enqueue(connection, "work")
        with pytest.raises(sa.exc.OperationalError, match="injected"):
            connection.commit()
        connection.rollback()
        failing = False
        connection.execute(sa.select(1))
        connection.commit()
    failed = waiting.wakes
    add(engine)

    assert (0, 1) == (failed, waiting.wakes)


def test_nothing_is_kept(queue_engine: sa.Engine, waiting: stations.Station) -> None:
    """After its end neither the session nor the jobs of a transaction are kept, nor any name of it."""
    session = Session(queue_engine)
    for ending in (session.commit, session.rollback):
        job = Job(job_type="work")
        session.add(job)
        session.flush()
        driver = session.connection().connection
        noted = dict(driver.info)
        ending()
        left = {name for name in driver.info if "enqueued" in str(name)}
        assert set() == left
        assert noted.keys() > {name for name in noted if "enqueued" not in str(name)}
    kept = [weakref.ref(session), weakref.ref(job)]
    session.close()
    del session, job, ending, driver
    gc.collect()

    assert [None, None] == [one() for one in kept]


@pytest.mark.plain_drivers
def test_without_a_worker_nothing_is_done(queue_engine: sa.Engine) -> None:
    """In a process without workers the engine is left as it was, and nothing is noted."""
    station = station_of(queue_engine)
    stations.leave(station)
    before = set(vars(queue_engine.dialect))
    with queue_engine.connect() as connection:
        enqueue(connection, "work")
        noted = [name for name in connection.info if "enqueued" in str(name)]
        connection.commit()

    assert not stations.any_here()
    assert [] == noted
    assert set() == {name for name in set(vars(queue_engine.dialect)) - before if name.startswith(("do_", "proletarian"))}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.plain_drivers
def test_a_forked_child_wakes_nobody(waiting: stations.Station) -> None:
    """In a forked child there are no workers, and so nobody is woken; the parent has them still."""
    reader, writer = os.pipe()
    due = stations.Due(waiting.database, waiting.table, "default")
    with waiting.changed:  # as if another thread held it while the process is forked
        child = os.fork()
        if child == 0:  # no pytest here, only what is to be tested
            try:
                stations.wake([due])
                os.write(writer, f"{stations.any_here()} {waiting.wakes}".encode())
            finally:
                os._exit(0)
    os.close(writer)
    said = os.read(reader, 100).decode()
    os.close(reader)
    os.waitpid(child, 0)
    stations.wake([due])

    assert "False 0" == said
    assert 1 == waiting.wakes


@pytest.mark.usefixtures("claim")
@pytest.mark.plain_drivers
def test_an_idle_worker_starts_at_once(queue_engine: sa.Engine, work: Any) -> None:
    """A job is begun by an idle worker long before its next poll, and so is one that a handler enqueues in `job.session`."""

    def handler(job: Any) -> None:
        if job.job_type == "first":
            enqueue(job.session, "second")

    worker, seen = work(handler, polling_interval=NEVER, worker_threads=2)
    said: list[str] = []
    sa.event.listen(queue_engine, "after_cursor_execute", lambda *arguments: said.append(arguments[2]))
    worker.start()
    wait_until(lambda: any("process_at" in statement for statement in said), timeout=PATIENCE)  # the first poll
    for _ in range(2):
        add(queue_engine, "first")
        seen.wait_for(events.JobSucceeded, job_type="second", count=len(seen.of(events.JobSucceeded, job_type="second")) + 1)

    assert 4 == len(seen.of(events.JobSucceeded))
