"""NOTIFY rides in the enqueuing transaction: one for each queue, without data of jobs, and never in the way."""

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from proletarian_sa import JobTables, default_tables, enqueue, enqueue_many, events
from proletarian_sa.dialects import statements_for
from proletarian_sa.dialects.postgresql_notify import PostgreSQLNotifications
from proletarian_sa.wakeups import idle
from proletarian_sa.wakeups.announce import topic_of
from tests.helpers import wait_until
from tests.observing import add, claim

pytestmark = pytest.mark.async_drivers

NOTIFYING = JobTables(notify=True)
LONG_NAME = "列" * 200


@pytest.fixture
def notified_engine(database: Any, request: pytest.FixtureRequest) -> sa.Engine:
    """Return an engine on a database whose sessions can notify each other."""
    database.require("listen")
    engine: sa.Engine = request.getfixturevalue("queue_engine")
    return engine


@pytest.fixture
def heard(database: Any, notified_engine: sa.Engine) -> Iterator[Callable[[], list[str]]]:
    """Return what returns the topics of the notifications that have been sent so far, and not been returned yet."""
    ear = PostgreSQLNotifications(default_tables.job).listen(sa.create_engine(database.url))
    ends = iter(range(1000))

    def hear() -> list[str]:
        end = f"end{next(ends)}"
        with notified_engine.begin() as connection:
            connection.exec_driver_sql(f"NOTIFY proletarian_sa, '{end}'")
        topics: list[str] = []
        wait_until(lambda: topics.extend(one.payload for one in ear._driver.notifies(timeout=0)) or end in topics)
        return [topic for topic in topics if topic != end]

    yield hear
    ear.close()


WAYS: dict[str, Callable[[Session], object]] = {
    "session.add": lambda session: session.add(NOTIFYING.Job(job_type="work")),
    "enqueue, connection": lambda session: enqueue(session.connection(), "work", tables=NOTIFYING),
    "enqueue_many, sequence": lambda session: enqueue_many(session, [{"job_type": "work"}] * 3, tables=NOTIFYING),
    "enqueue_many, iterator": lambda session: enqueue_many(session, iter([{"job_type": "work"}] * 3), tables=NOTIFYING),
}


def test_one_notification_for_each_queue(notified_engine: sa.Engine, heard: Any) -> None:
    """A transaction sends one notification for each queue that it fills, whichever way; a rollback sends none."""
    statements: list[str] = []
    sa.event.listen(notified_engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    with Session(notified_engine) as session:
        for way in WAYS.values():
            way(session)
        session.flush()
        session.rollback()
        rolled_back, statements[:] = heard(), []
        for way in WAYS.values():
            way(session)
        session.add_all(NOTIFYING.Job(job_type="work", queue=queue) for queue in ["a", "b", "a"])
        session.commit()
    sent = [statement for statement in statements if statement.startswith("NOTIFY")]

    assert [] == rolled_back
    assert sorted(map(topic_of, ["default", "a", "b"])) == sorted(heard())
    assert 3 == len(sent)


@pytest.mark.parametrize("way", WAYS)
def test_savepoints(notified_engine: sa.Engine, heard: Any, way: str) -> None:
    """A savepoint that is rolled back takes its notification with it, and a job enqueued after that brings a new one."""
    with Session(notified_engine) as session:
        with session.begin_nested() as savepoint:
            WAYS[way](session)
            session.flush()
            savepoint.rollback()
        session.commit()
        lost = heard()
        with session.begin_nested() as savepoint:
            WAYS[way](session)
            session.flush()
            savepoint.rollback()
        WAYS[way](session)
        with session.begin_nested() as savepoint:
            WAYS[way](session)
            session.flush()
            savepoint.rollback()
        session.commit()

    assert ([], [topic_of("default")]) == (lost, heard())


def test_notifications_are_small(notified_engine: sa.Engine, heard: Any) -> None:
    """Notification too long: none holds data of jobs: 32 characters, whatever the payload, the queue or the number of jobs."""
    with Session(notified_engine) as session, session.begin():
        enqueue(session, "work", "x" * 20_000, queue=LONG_NAME, tables=NOTIFYING)
        enqueue_many(session, [{"job_type": "work", "queue": LONG_NAME}] * 10_000, tables=NOTIFYING)
        enqueue_many(session, ({"job_type": "work"} for _ in range(3000)), tables=NOTIFYING)
    topics = heard()

    assert sorted(map(topic_of, [LONG_NAME, "default"])) == sorted(topics)
    assert {32} == {len(topic) for topic in topics}


def test_what_sends_none(notified_engine: sa.Engine, heard: Any) -> None:
    """No notification for jobs of tables that do not ask for it, for those due later, and from two-phase sessions, which commit."""
    later = {"process_in": 3600}
    with Session(notified_engine) as session, session.begin():
        enqueue(session, "work")
        enqueue_many(session, [{"job_type": "work"}])
        enqueue(session, "work", tables=NOTIFYING, **later)
        enqueue(session.connection(), "work", tables=NOTIFYING, process_at=dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
        enqueue_many(session, [{"job_type": "work", **later}], tables=NOTIFYING)
    none = heard()
    with Session(notified_engine, twophase=True) as session:
        enqueue(session, "prepared", tables=NOTIFYING)
        session.prepare()
        session.commit()

    assert ([], []) == (none, heard())
    assert "prepared" in {job.job_type for job in claim(notified_engine, "token")}


def test_jobs_that_are_due_soon_are_told(notified_engine: sa.Engine, heard: Any) -> None:
    """A job due sooner than a listening worker looks again is told of, so that it knows of it in time."""
    with Session(notified_engine) as session, session.begin():
        enqueue(session, "work", tables=NOTIFYING, process_in=idle.LISTENING_INTERVAL)

    assert [topic_of("default")] == heard()


def test_autocommit(notified_engine: sa.Engine, heard: Any) -> None:
    """In autocommit each insert sends one, after itself."""
    with notified_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        enqueue(connection, "work", tables=NOTIFYING)
        enqueue(connection, "work", tables=NOTIFYING)

    assert [topic_of("default")] * 2 == heard()


@pytest.mark.plain_drivers
def test_asyncpg(database: Any, heard: Any) -> None:
    """Another driver, and asyncio, send them likewise."""

    async def work() -> None:
        engine = create_async_engine(database.async_url)
        async with AsyncSession(engine) as session:
            enqueue(session, "work", tables=NOTIFYING)
            await session.commit()
        async with engine.begin() as connection:
            await enqueue(connection, "work", queue="a", tables=NOTIFYING)
        await engine.dispose()

    asyncio.run(work())

    assert [topic_of("default"), topic_of("a")] == heard()


def test_default_tables(notified_engine: sa.Engine, heard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default tables notify once they are told to."""
    monkeypatch.setattr(default_tables, "notify", True)
    add(notified_engine)

    assert [topic_of("default")] == heard()


@pytest.mark.plain_drivers
def test_other_databases_do_as_without(database: Any, queue_engine: sa.Engine, work: Any) -> None:
    """Where sessions cannot notify each other, `notify` changes nothing, and nothing is said of it."""
    if database.listen:
        pytest.skip("sessions can notify each other")
    worker, seen = work(lambda _job: None, tables=NOTIFYING)
    add(queue_engine, tables=NOTIFYING)
    with worker:
        seen.wait_for(events.JobSucceeded)

    assert [] == seen.of(events.NotificationsUnavailable)
    assert statements_for(queue_engine.dialect, NOTIFYING).notifications is None


def test_only_a_bool() -> None:
    """`notify` says yes or no."""
    with pytest.raises(TypeError, match="notify must be True or False, not 'yes'"):
        JobTables(notify="yes")  # type: ignore[arg-type]
