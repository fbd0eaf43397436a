"""Workers that listen: a job is begun at once in whichever process, none is late, and idle workers are quiet."""

import datetime as dt
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import JobInterrupted, JobTables, RetryStrategy, events
from proletarian_sa.dialects import statements_for
from proletarian_sa.dialects.postgresql_notify import PostgreSQLNotifications
from proletarian_sa.log import log_event
from proletarian_sa.wakeups import idle, listener
from proletarian_sa.wakeups.listener import LISTENING
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add, change, claim, end_session
from tests.plans import QUEUE, QUEUE_INDEX, capture, explain, fill
from tests.queue_contents import archived

NEVER = 3600.0
"""An interval in which no test ends: what happens, happens by a notification, or because a worker knows when."""
OFTEN = 0.02
NOTIFYING = JobTables(notify=True)


@pytest.fixture
def notified_engine(database: Any, request: pytest.FixtureRequest) -> sa.Engine:
    """Return an engine on a database whose sessions can notify each other."""
    database.require("listen")
    engine: sa.Engine = request.getfixturevalue("queue_engine")
    return engine


@pytest.fixture
def elsewhere(database: Any, notified_engine: sa.Engine) -> sa.Engine:
    """Return an engine as another process has it: its commits wake nobody in this one."""
    engine = sa.create_engine(f"{notified_engine.url.drivername}://", creator=notified_engine.pool._creator)
    database.engines.append(engine)
    return engine


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers that listen never poll by themselves."""
    monkeypatch.setattr(idle, "LISTENING_INTERVAL", NEVER)


def listening(work: Any, handler: Any = lambda _job: None, **options: Any) -> tuple[Any, Recorder]:
    """Start a worker, and return when it has listened and looked."""
    worker, seen = work(handler, **{"tables": NOTIFYING, "polling_interval": OFTEN, "worker_threads": 2} | options)
    worker.start()
    seen.wait_for(events.ListenerStarted)
    return worker, seen


def listeners(engine: sa.Engine) -> list[Any]:
    """Return the server's view of the connections that listen."""
    with engine.connect() as connection:
        return connection.execute(
            sa.text(
                "SELECT pid, state, xact_start FROM pg_stat_activity "
                "WHERE query LIKE 'LISTEN%' AND datname = current_database() ORDER BY pid"
            )
        ).all()


@pytest.mark.usefixtures("claim", "patient")
def test_a_listening_worker_starts_at_once(elsewhere: sa.Engine, work: Any) -> None:
    """A job that another process has enqueued is begun by an idle worker long before its next poll."""
    _, seen = listening(work, polling_interval=NEVER, queue=["a", "b"])
    for number in range(3):
        add(elsewhere, queue="b", tables=NOTIFYING)
        seen.wait_for(events.JobSucceeded, number + 1)

    assert 3 == len(archived(elsewhere))


@pytest.mark.usefixtures("claim")
def test_one_listener_for_all(notified_engine: sa.Engine, elsewhere: sa.Engine, work: Any) -> None:
    """Workers of one process and engine share a connection that listens, idle and in no transaction, until the last has stopped."""
    (one, _), (other, seen) = (listening(work, queue=queue) for queue in "ab")
    found = listeners(notified_engine)
    one.stop()
    still = listeners(notified_engine)
    add(elsewhere, queue="b", tables=NOTIFYING)
    seen.wait_for(events.JobSucceeded)
    other.stop()
    wait_until(lambda: not listeners(notified_engine), timeout=PATIENCE)

    assert [("idle", None)] == [row[1:] for row in found]
    assert found == still
    assert [] == [thread for thread in threading.enumerate() if "listener" in thread.name]


@pytest.mark.usefixtures("claim", "patient")
def test_a_lost_listener_returns(notified_engine: sa.Engine, elsewhere: sa.Engine, work: Any) -> None:
    """A listener that loses its connection says so, and connects anew; jobs that came meanwhile without a sound are found."""
    _, seen = listening(work, polling_interval=NEVER)
    add(elsewhere)  # nobody is told
    (before,) = listeners(notified_engine)
    end_session(elsewhere, before.pid)
    seen.wait_for(events.TransientErrorMet, activity=LISTENING)
    seen.wait_for(events.Recovered, activity=LISTENING)
    seen.wait_for(events.ListenerStarted, 2)
    seen.wait_for(events.JobSucceeded)
    add(elsewhere, tables=NOTIFYING)
    seen.wait_for(events.JobSucceeded, 2)
    (after,) = listeners(notified_engine)

    assert before.pid != after.pid


@pytest.mark.usefixtures("claim", "patient")
def test_an_idle_worker_that_listens_is_quiet(notified_engine: sa.Engine, work: Any) -> None:
    """While another worker polls many times, one that listens says nothing."""
    said: dict[str, int] = {"quiet": 0, "polling": 0}

    def before_cursor_execute(*_: object) -> None:
        for name in said:
            said[name] += threading.current_thread().name.startswith(name)

    listening(work, worker_id="quiet", worker_threads=4)
    polling, _ = work(lambda _job: None, worker_id="polling", queue="other")
    sa.event.listen(notified_engine, "before_cursor_execute", before_cursor_execute)
    polling.start()
    wait_until(lambda: said["polling"] > 20, timeout=PATIENCE)
    before = said["quiet"]
    wait_until(lambda: said["polling"] > 120, timeout=PATIENCE)

    assert 10 >= said["quiet"] - before


def fail_once(job: Any) -> None:
    """Fail at the first attempt."""
    if job.attempts == 1:
        raise ValueError("no good")


@pytest.mark.usefixtures("claim", "patient")
def test_jobs_due_later_are_in_time(elsewhere: sa.Engine, work: Any) -> None:
    """Scheduled before the worker looked or after, or put back for a retry: a listening worker looks when the job is due."""
    soon = 0.3
    add(elsewhere, "known", process_in=2 * soon, tables=JobTables())  # nobody is told
    _, seen = listening(work, fail_once, retry=RetryStrategy(retries=1, delays=[soon]))
    add(elsewhere, "told", process_in=soon, tables=NOTIFYING)
    for job_type in ("known", "told"):
        seen.wait_for(events.JobRetried, job_type=job_type)
        seen.wait_for(events.JobSucceeded, job_type=job_type)

    assert 2 == len(archived(elsewhere))


@pytest.mark.usefixtures("patient")
def test_a_locked_job_is_found_when_it_is_free(elsewhere: sa.Engine, work: Any) -> None:
    """A due job that is locked when a listening worker looks is taken as soon as it is free: nobody tells of a lock's end."""
    job_id = add(elsewhere, tables=JobTables())
    with elsewhere.connect() as connection:
        connection.execute(sa.select(NOTIFYING.job).where(NOTIFYING.job.c.job_id == job_id).with_for_update())
        _, seen = listening(work)
        listening(work, queue="other")  # the first one has looked at least once by now
        locked = seen.of(events.JobStarted)
        connection.rollback()
    seen.wait_for(events.JobSucceeded)

    assert [] == locked


@pytest.mark.usefixtures("patient")
def test_a_lapsed_lease_is_found_in_time(elsewhere: sa.Engine, work: Any) -> None:
    """A listening worker knows until when jobs in other hands are leased, and takes one whose worker has died."""
    job_id = add(elsewhere, tables=JobTables())
    (claimed,) = claim(elsewhere, "dead", lease=1)
    _, seen = listening(work)
    seen.wait_for(events.JobSucceeded, job_id=job_id)

    assert [1] == [row.crashes for row in archived(elsewhere)]
    assert "dead" == claimed.token


@pytest.mark.usefixtures("patient")
def test_what_a_stopping_worker_puts_back_is_told(notified_engine: sa.Engine, database: Any, work: Any) -> None:
    """A job that is put back, because its worker stops, is taken at once by one that listens elsewhere."""
    stopping, begun = database.create_engine(), threading.Event()

    def handler(job: Any) -> None:
        begun.set()
        assert job.wait(PATIENCE)
        raise JobInterrupted

    first, _ = listening(work, handler, engine=stopping)
    job_id = add(notified_engine, tables=NOTIFYING)
    assert begun.wait(PATIENCE)
    _, seen = listening(work, polling_interval=NEVER)
    first.stop()
    seen.wait_for(events.JobSucceeded, job_id=job_id)

    assert 1 == len(archived(notified_engine))


def test_a_driver_that_cannot_listen(notified_engine: sa.Engine, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is not listened with is named once, with what to type, and jobs are found by polling."""
    monkeypatch.setattr(notified_engine.dialect, "driver", "psycopg2")
    worker, seen = work(lambda _job: None, tables=NOTIFYING)
    worker.start()
    told = seen.wait_for(events.NotificationsUnavailable)
    add(notified_engine, tables=NOTIFYING)
    seen.wait_for(events.JobSucceeded)

    assert "psycopg2 is not used to listen" in told.reason
    assert "create_engine('postgresql+psycopg://…')" in told.reason
    assert 1 == len(seen.of(events.NotificationsUnavailable))
    assert [] == listeners(notified_engine)


def test_an_old_driver() -> None:
    """A psycopg that cannot wait for notifications is named, with what to type."""
    engine: Any = SimpleNamespace(dialect=SimpleNamespace(driver="psycopg", is_async=False, psycopg_version=(3, 1, 18)))
    reason = PostgreSQLNotifications(NOTIFYING.job).why_deaf(engine)

    assert "psycopg 3.1.18 cannot wait for notifications. Type: python -m pip install 'psycopg>=3.2'" == reason


def test_a_pooler_in_between(notified_engine: sa.Engine, elsewhere: sa.Engine, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a notification of our own does not arrive, that is told once, and jobs are found by polling."""
    listen = PostgreSQLNotifications.listen

    def listen_in_vain(self: Any, engine: sa.Engine) -> Any:
        ear = listen(self, engine)
        ear._driver.execute("UNLISTEN *")  # as if the server's session were somebody else's now
        return ear

    monkeypatch.setattr(PostgreSQLNotifications, "listen", listen_in_vain)
    monkeypatch.setattr(listener, "TRIAL", 0.1)
    monkeypatch.setattr(listener, "DEAF_FOR", 0.01)
    worker, seen = work(lambda _job: None, tables=NOTIFYING)
    worker.start()
    told = seen.wait_for(events.NotificationsUnavailable)
    add(elsewhere, tables=NOTIFYING)
    seen.wait_for(events.JobSucceeded)
    monkeypatch.setattr(PostgreSQLNotifications, "listen", listen)
    seen.wait_for(events.ListenerStarted)

    assert "pooler in transaction mode" in told.reason
    assert 1 == len(seen.of(events.NotificationsUnavailable))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.usefixtures("patient")
def test_a_forked_child_does_not_listen(notified_engine: sa.Engine, elsewhere: sa.Engine, work: Any) -> None:
    """A child inherits no listener, and its end leaves the parent's alone."""
    _, seen = listening(work, polling_interval=NEVER)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # no pytest here, only what is to be tested
        try:
            os.write(writer, repr(listener._here.by_dialect).encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = os.read(reader, 100).decode()
    os.close(reader)
    os.waitpid(child, 0)
    add(elsewhere, tables=NOTIFYING)
    seen.wait_for(events.JobSucceeded)

    assert "{}" == said
    assert [] == seen.of(events.TransientErrorMet)


@pytest.mark.usefixtures("patient")
def test_an_outage_is_polled_through(notified_engine: sa.Engine, elsewhere: sa.Engine, work: Any, monkeypatch: Any) -> None:
    """While nothing can be heard the worker polls at its interval again."""

    def refuse(*_: object) -> None:
        raise sa.exc.TimeoutError("injected: no connection")

    _, seen = listening(work)
    monkeypatch.setattr(PostgreSQLNotifications, "listen", refuse)
    (row,) = listeners(notified_engine)
    end_session(elsewhere, row.pid)
    seen.wait_for(events.TransientErrorMet, 2, activity=LISTENING)
    add(elsewhere)  # nobody is told
    seen.wait_for(events.JobSucceeded)

    assert [] == seen.of(events.Recovered)


def test_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """That notifications arrive is INFO, that none can be heard a WARNING with its reason."""
    caplog.set_level("INFO", "proletarian_sa")
    log_event(events.ListenerStarted(worker_id="w"))
    log_event(events.NotificationsUnavailable(worker_id="w", reason="a pooler"))

    assert [
        ("INFO", "[w] notifications of new jobs arrive"),
        ("WARNING", "[w] no notifications can be heard, jobs are found by polling: a pooler"),
    ] == [(record.levelname, record.getMessage()) for record in caplog.records]


def test_what_a_worker_looks_for(notified_engine: sa.Engine) -> None:
    """When the next job can be taken is read from the index, however many are scheduled: by the database's clock."""
    notifications = statements_for(notified_engine.dialect, NOTIFYING).notifications
    assert notifications is not None
    with notified_engine.connect() as connection:
        empty = notifications.until_next(connection, ["default"])
    job_id = add(notified_engine, process_in=100)
    add(notified_engine, process_in=200)
    with notified_engine.connect() as connection:
        scheduled = notifications.until_next(connection, ["none", "default"])
    change(notified_engine, job_id, process_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    with notified_engine.connect() as connection:
        due = notifications.until_next(connection, ["default"])

    assert empty is None
    assert 0 < scheduled <= 100
    assert due < 0


def test_its_plan(notified_engine: sa.Engine) -> None:
    """It reads the index on queue and time only, and few rows of it, with as many as there may be scheduled."""
    notifications = statements_for(notified_engine.dialect, NOTIFYING).notifications
    assert notifications is not None
    with notified_engine.begin() as connection:
        fill(connection, 1000, 0)
    with capture(notified_engine) as captured, notified_engine.connect() as connection:
        notifications.until_next(connection, [QUEUE])
        (query,) = [one for one in captured if one.of_jobs]
        plan = explain(connection, query)

    assert {QUEUE_INDEX} == {access.index for access in plan.accesses}
