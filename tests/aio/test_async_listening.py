"""Async workers that listen: through psycopg, beside the engine's own driver, in a thread of its own."""

import threading
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from proletarian_sa import JobTables, events
from proletarian_sa.dialects import psycopg_beside
from proletarian_sa.wakeups import idle
from tests.aio.scene import until
from tests.observing import PATIENCE, add
from tests.queue_contents import archived

NEVER = 3600.0
NOTIFYING = JobTables(notify=True)
MOST_CONNECTIONS = 5  # of two workers

pytestmark = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


@pytest.fixture
def elsewhere(database, queue_engine):
    """Return an engine as another process has it: its commits wake nobody in this one."""
    database.require("listen")
    engine = sa.create_engine(f"{queue_engine.url.drivername}://", creator=queue_engine.pool._creator)
    database.engines.append(engine)
    return engine


@pytest.fixture
def patient(monkeypatch):
    """Let workers that listen never poll by themselves."""
    monkeypatch.setattr(idle, "LISTENING_INTERVAL", NEVER)


async def handle(_job):
    """Do nothing."""


def sessions(engine):
    """Return how many connections there are to the database that listen, and how many others, beside this one."""
    query = "SELECT query LIKE 'LISTEN%' FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with engine.connect() as connection:
        found = connection.scalars(sa.text(query)).all()
    return found.count(True), found.count(False)


@pytest.mark.usefixtures("patient")
def test_a_commit_elsewhere_wakes_it(queue_engine, elsewhere, scene):
    """A job that another process has enqueued is begun long before the next poll; the listener ends with its last worker."""

    async def test():
        workers = [scene.work(handle, tables=NOTIFYING, polling_interval=NEVER, queue=queue) for queue in "ab"]
        for worker, seen in workers:
            await worker.start()
            await until(lambda seen=seen: seen.of(events.ListenerStarted))
        queue_engine.dispose()
        at_work = sessions(elsewhere)
        add(elsewhere, queue="a", tables=NOTIFYING)
        await until(lambda: workers[0][1].of(events.JobSucceeded))
        await workers[0][0].stop()
        add(elsewhere, queue="b", tables=NOTIFYING)
        await until(lambda: workers[1][1].of(events.JobSucceeded))
        await workers[1][0].stop()
        await until(lambda: sessions(elsewhere)[0] == 0, PATIENCE)
        return at_work

    listening, others = scene.run(test)

    assert 1 == listening
    assert MOST_CONNECTIONS >= listening + others
    assert ["success", "success"] == [row.status for row in archived(queue_engine)]
    assert [] == [thread for thread in threading.enumerate() if "listener" in thread.name]


def refuse(*_arguments):
    """Be a hook that changes nothing."""


def test_an_engine_that_connects_in_its_own_way(queue_engine, database, scene, driver):
    """Where it is not known how the engine connects, that is told once, with the reason, and jobs are found by polling."""
    database.require("listen")
    add(queue_engine)

    async def test():
        sa.event.listen(scene.engine.sync_engine, "do_connect", refuse)
        worker, seen = scene.work(handle, tables=NOTIFYING)
        async with worker:
            await until(lambda: seen.of(events.JobSucceeded))
            await until(lambda: seen.of(events.NotificationsUnavailable))
        return seen.of(events.NotificationsUnavailable)

    (told,) = scene.run(test)
    start = f"psycopg, which listens beside {scene.engine.dialect.driver}, cannot connect as the engine does: "
    assert f"{start}it has `do_connect` hooks" == told.reason


async def connect():
    """Be a creator of an application's."""


def test_what_it_is_given_to_connect(driver):
    """What the URL and `connect_args` say of server and user is psycopg's, too; what is unknown there is a reason not to listen."""
    url = f"postgresql+{driver}://u:p@h:5433/d"
    hosts = f"postgresql+{driver}://u:p@/d?host=one:1&host=two:2"
    odd = {"ssl": object()} if driver == "asyncpg" else {"hostaddr": object()}
    unneeded = {"server_settings": {"jit": "off"}, "command_timeout": 3} if driver == "asyncpg" else {"prepare_threshold": None}
    ssl = {"ssl": "require", "timeout": 5.0} if driver == "asyncpg" else {"sslmode": "require", "connect_timeout": 5}
    plain = {"host": "h", "port": 5433, "user": "u", "password": "p", "dbname": "d"}

    def given(url, **options):
        found = psycopg_beside._arguments(create_async_engine(url, **options).sync_engine)
        return found if isinstance(found, str) else {name: str(value) for name, value in found.items()}

    expected = {name: str(value) for name, value in plain.items()}
    assert expected == given(url)
    assert expected == given(url, connect_args=unneeded)
    assert expected | {"sslmode": "require", "connect_timeout": "5"} == given(url, connect_args=ssl)
    assert expected | {"host": "one,two", "port": "1,2"} == given(hosts)
    assert f"of {next(iter(odd))} it is not known what that means" == given(url, connect_args=odd)
    assert "it has a creator of its own" == given(url, async_creator=connect)


def test_psycopg_is_needed(driver, monkeypatch):
    """Without psycopg, or with one that is too old, the reason says what to type."""
    engine = create_async_engine(f"postgresql+{driver}://u:p@h:5433/d").sync_engine
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda _name: None)
        missing = psycopg_beside.why_not(engine)
    with monkeypatch.context() as patch:
        patch.setattr("importlib.import_module", lambda _name: SimpleNamespace(__version__="3.1.18"))
        too_old = psycopg_beside.why_not(engine)

    assert "psycopg is not there to do it. Type: python -m pip install 'proletarian-sa[postgresql]'" in missing
    assert "psycopg 3.1.18 cannot wait for notifications. Type: python -m pip install 'psycopg>=3.2'" == too_old
    assert psycopg_beside.why_not(engine) is None
