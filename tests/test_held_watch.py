"""Long-running held jobs: the server's time-outs do not end them, those that cannot be helped are named, and long ones are told."""

import logging
import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import default_tables, events, process_next_job
from proletarian_sa.dialects import statements_for
from proletarian_sa.log import log_event
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, add, session_id
from tests.queue_contents import User, archived, left

POSTGRESQL = {"idle_in_transaction_session_timeout": "1s", "transaction_timeout": "1s"}
MYSQL_FAMILY = {
    "wait_timeout": 1,
    "idle_transaction_timeout": 1,
    "idle_write_transaction_timeout": 1,
    "idle_readonly_transaction_timeout": 1,
}


REWRITTEN = {
    "obeys nobody": lambda statement: statement.replace("_timeout', '0'", "_timeout', '1s'").replace("31536000", "1"),
    "refuses": lambda statement: "SELECT nonsense FROM nowhere" if "wait_timeout = 31536000" in statement else statement,
}
"""What a server, or what stands before it, makes of our statements."""


def impatient(database, rewrite=None, **options):
    """Return an engine whose server ends idle transactions soon, and what was set, by name."""
    engine = database.create_engine(**options)
    postgresql = engine.dialect.name == "postgresql"
    with engine.connect() as connection:
        there = known(connection, POSTGRESQL if postgresql else MYSQL_FAMILY)
    engine.dispose()
    given = {name: value for name, value in (POSTGRESQL if postgresql else MYSQL_FAMILY).items() if name in there}

    @sa.event.listens_for(engine, "connect")
    def connect(connection, _record):
        cursor = connection.cursor()
        for name, value in given.items():
            cursor.execute(f"SET SESSION {name} = '{value}'" if postgresql else f"SET SESSION {name} = {value}")
        cursor.close()
        connection.commit()

    if rewrite:

        @sa.event.listens_for(engine, "do_execute")
        def do_execute(cursor, statement, parameters, _context):
            changed = rewrite(statement)
            if changed == statement:
                return None
            cursor.execute(changed, parameters)
            return True

    return engine, given


def known(connection, names):
    """Return those of these settings that the server has."""
    if connection.dialect.name == "postgresql":
        query = sa.text("SELECT name FROM pg_settings WHERE name = ANY(:names)")
        return set(connection.scalars(query, {"names": list(names)}))
    listed = ", ".join(f"'{name}'" for name in names)
    return {row[0] for row in connection.exec_driver_sql(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({listed})")}


def values(connection, names):
    """Return what these settings are on a connection."""
    if connection.dialect.name == "postgresql":
        return {name: connection.scalar(sa.text(f"SHOW {name}")) for name in names}
    return {name: connection.scalar(sa.text(f"SELECT @@SESSION.{name}")) for name in names}


@pytest.mark.parametrize("uses_session", [False, True])
def test_a_handler_that_waits_for_longer_than_the_servers_patience(database, app_engine, uses_session):
    """Idle-in-transaction timeout: a handler that waits for longer than the server's time-outs is finished as usual."""
    database.require("row_locks")
    engine, given = impatient(database)
    seconds = 1.5

    def handler(job):
        if uses_session:
            job.session.add(User(id=1, name="early"))
            job.session.flush()
        assert not threading.Event().wait(seconds)
        if uses_session:
            job.session.add(User(id=2, name="late"))

    for _ in range(2 if uses_session else 1):
        add(app_engine)
    seen = Recorder()
    outcome = process_next_job(engine, handler, claim="held", handler_mode="advanced", on_event=seen)

    assert ("succeeded", 1) == (outcome.status, outcome.attempts), outcome.exception
    assert [] == seen.of(events.IdleTimeoutsFound) + seen.of(events.JobConnectionLost) + seen.of(events.TransientErrorMet)
    with engine.connect() as connection:
        assert given == {name: type(given[name])(value) for name, value in values(connection, given).items()}


def test_connections_are_given_back_as_they_were(database, queue_engine, work):
    """After a stop the pool's connections have the application's time-outs again."""
    database.require("row_locks")
    engine, given = impatient(database, pool_size=3)
    worker, seen = work(lambda job: job.session, engine, claim="held", worker_threads=2)
    worker.start()
    for _ in range(4):
        add(queue_engine)
    seen.wait_for(events.JobSucceeded, count=4)
    worker.stop()
    assert 0 == engine.pool.checkedout()
    connections = [engine.connect() for _ in range(3)]
    found = [values(connection, given) for connection in connections]
    for connection in connections:
        connection.close()

    assert [given] * 3 == [{name: type(given[name])(value) for name, value in one.items()} for one in found]


@pytest.mark.parametrize("name", REWRITTEN)
def test_time_outs_that_cannot_be_neutralised_are_named(database, queue_engine, caplog, name):
    """Where the server or something before it refuses, an event and a warning name the settings and the way out."""
    database.require("row_locks")
    engine, given = impatient(database, REWRITTEN[name])
    if name == "refuses" and engine.dialect.name == "postgresql":
        pytest.skip("no time-outs of a session")
    seen = Recorder()

    def sink(event):
        seen(event)
        log_event(event)

    with caplog.at_level(logging.WARNING, logger="proletarian_sa"):
        add(queue_engine)
        outcome = process_next_job(engine, lambda _job: None, claim="held", handler_mode="advanced", on_event=sink)

    (event,) = seen.of(events.IdleTimeoutsFound)
    found = dict(event.settings)
    assert "succeeded" == outcome.status
    assert found == {name: str(given[name]) for name in found}
    assert {"idle_in_transaction_session_timeout", "wait_timeout"} & set(given) <= set(found)
    (line,) = [record.getMessage() for record in caplog.records if "ends transactions that wait" in record.getMessage()]
    assert all(setting in line for setting in found)
    assert "Use claim='leased'" in line


def test_a_long_job_is_warned_about_once(database, queue_engine, work):
    """A held handler that runs for longer than `held_warning` is told of once, while it runs, with its seconds."""
    database.require("row_locks")
    gate = Gate()
    worker, seen = work(gate, claim="held", held_warning=0.05)
    job_id = add(queue_engine)
    worker.start()
    event = seen.wait_for(events.JobHeldLong)
    look_again = threading.Event()
    sa.event.listen(queue_engine, "before_cursor_execute", lambda *arguments: is_a_look(arguments[2]) and look_again.set())
    assert look_again.wait(PATIENCE)
    gate.open.set()
    seen.wait_for(events.JobSucceeded)

    assert (job_id, 1) == (event.job_id, len(seen.of(events.JobHeldLong)))
    assert 0.05 <= event.seconds < PATIENCE
    assert [] == seen.of(events.JobConnectionLost)


def is_a_look(statement):
    """Return whether a statement asks for living connections."""
    return "pg_stat_activity" in statement or "processlist" in statement.lower()


def test_a_look_finds_the_living(database, queue_engine):
    """Which connections are there is told rightly, also while some of them send what is no text."""
    database.require("row_locks")
    held = statements_for(queue_engine.dialect, default_tables).held
    postgresql = queue_engine.dialect.name == "postgresql"
    other, ended = queue_engine.connect(), queue_engine.connect()
    numbers = {session_id(other), session_id(ended)}
    gone = session_id(ended)
    ended.invalidate()
    ended.close()
    done = threading.Event()

    def speak():
        while not done.is_set():
            if postgresql:
                other.exec_driver_sql("SELECT pg_sleep(0.05)")
            else:
                other.exec_driver_sql("SELECT SLEEP(0.05), %s", (b"\xff\xfe\xfa",))
        other.close()

    thread = threading.Thread(target=speak)
    thread.start()
    try:
        with queue_engine.connect() as connection:

            def look():
                found = held.living(connection, numbers)
                connection.rollback()
                return gone not in found and found

            found = wait_until(look, PATIENCE)
            again = [look() for _ in range(5)]
    finally:
        done.set()
        thread.join(PATIENCE)

    assert numbers - {gone} == found
    assert [found] * 5 == again


def test_a_look_while_an_emoji_is_on_its_way(database, queue_engine):
    """MySQL lists no connection while the statement of any has text beyond its old character set: that is no sign of an end."""
    database.require("row_locks")
    held = statements_for(queue_engine.dialect, default_tables).held
    function = "pg_sleep" if queue_engine.dialect.name == "postgresql" else "SLEEP"
    with queue_engine.connect() as own, queue_engine.connect() as other, queue_engine.connect() as observer:
        mine, numbers = session_id(own), {session_id(own), session_id(other)}
        thread = threading.Thread(target=lambda: other.exec_driver_sql(f"SELECT {function}(0.4), '\N{PARTY POPPER}'"))
        thread.start()
        seen = []
        while thread.is_alive():
            seen.append(held.living(observer, numbers))
            observer.rollback()
        thread.join()

    assert {mine} < numbers
    assert [numbers] * len(seen) == seen
    assert seen


def test_short_jobs_ask_for_no_look(database, queue_engine, work, monkeypatch):
    """Jobs that take less than a second cost no statement of the watch; here a minute, as the machine may be busy."""
    database.require("row_locks")
    monkeypatch.setattr("proletarian_sa.held.LOOK", PATIENCE)
    looks = []
    sa.event.listen(queue_engine, "before_cursor_execute", lambda *arguments: looks.append(arguments[2]))
    worker, seen = work(lambda _job: None, claim="held")
    for _ in range(5):
        add(queue_engine)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=5)
    worker.stop()

    assert [] == [statement for statement in looks if is_a_look(statement)]


def test_a_pool_without_room_for_the_watch(database, queue_engine, work):
    """With one connection for everything the watch waits, says so, and the job is done all the same."""
    database.require("row_locks")
    engine = database.create_engine(pool_size=1, max_overflow=0, pool_timeout=0.1)
    gate = Gate()
    worker, seen = work(gate, engine, claim="held", held_warning=0.05)
    add(queue_engine)
    worker.start()
    seen.wait_for(events.TransientErrorMet, activity="watching held jobs")
    gate.open.set()
    seen.wait_for(events.JobSucceeded)
    worker.stop()

    assert [(2, 1)] == [(event.needed, event.available) for event in seen.of(events.PoolTooSmall)]
    assert 1 == len(seen.of(events.JobHeldLong))
    assert ([], [("success", 1)]) == left(queue_engine)
    assert 1 == len(archived(queue_engine))
