"""What workers see of transactions that are still open, and engines that have none."""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import Job, QueueWorker, enqueue, enqueue_many
from tests.claims import chosen, process_next_job
from tests.helpers import wait_until
from tests.queue_contents import Base, User, archived, queued_ids, run_due

pytestmark = pytest.mark.usefixtures("claim")


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_no_job_starts_before_its_commit(queue_engine: sa.Engine, database: Any, journal: str):
    """Visible before commit: a worker that polls all the time sees a job only once the row it is about is committed."""
    if database.server and journal == "wal":
        pytest.skip("no journal modes")
    if not database.server:
        with queue_engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA journal_mode={journal}")
    Base.metadata.create_all(queue_engine)
    seen: list[str | None] = []

    def handler(_job_type: str, user_id: int) -> None:
        with Session(queue_engine) as session:
            user = session.get(User, user_id)
            seen.append(user and user.name)

    with Session(queue_engine) as session:
        session.add(User(id=1, name="Ada"))
        enqueue(session, "welcome", 1)
        session.flush()
        polls = [process_next_job(queue_engine, handler) for _ in range(3)]
        session.commit()
    outcome = process_next_job(queue_engine, handler)

    assert [None] * 3 == polls
    assert outcome is not None
    assert ("succeeded", ["Ada"]) == (outcome.status, seen)


def test_a_polling_worker_finds_the_row_every_time(queue_engine: sa.Engine):
    """Visible before commit: with an eager worker beside it, no producer is ever too slow: each handler finds its row."""
    Base.metadata.create_all(queue_engine)
    missing: list[int] = []

    def handler(_job_type: str, user_id: int) -> None:
        with Session(queue_engine) as session:
            if session.get(User, user_id) is None:
                missing.append(user_id)

    with QueueWorker(queue_engine, handler, polling_interval=0.01, claim=chosen()):
        for user_id in range(1, 21):
            with Session(queue_engine) as session, session.begin():
                enqueue(session, "welcome", user_id)
                session.flush()
                session.add(User(id=user_id, name="Ada"))
        wait_until(lambda: len(archived(queue_engine)) == 20)

    assert [] == missing
    assert {"success"} == {row.status for row in archived(queue_engine)}


def test_engines_in_autocommit(database: Any, queue_engine: sa.Engine):
    """On an AUTOCOMMIT engine each enqueueing is there at once, and a worker still has transactions of its own."""
    engine = database.create_engine(isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=0)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        ids = {enqueue(session, "one")}
        session.flush()
        assert ids == queued_ids(queue_engine)
        ids |= set(enqueue_many(session, [{"job_type": "many"}]))
        assert ids == queued_ids(queue_engine)
    with engine.connect() as connection:
        ids.add(enqueue(connection, "core"))
    assert ids == queued_ids(queue_engine)

    def handler(job: Any) -> None:
        job.session.add(User(name=job.job_type))
        job.session.flush()
        if job.job_type == "many":
            raise ValueError

    outcomes = [process_next_job(engine, handler, handler_mode="advanced", on_event=lambda _event: None) for _ in range(4)]
    assert ["succeeded", "failed", "succeeded", None] == [outcome and outcome.status for outcome in outcomes]
    with engine.connect() as connection:
        assert ["core", "one"] == sorted(connection.scalars(sa.select(User.name)))
        connection.execute(sa.insert(User), {"name": "at once"})
        with queue_engine.connect() as other:
            assert ["at once", "core", "one"] == sorted(other.scalars(sa.select(User.name)))


def test_an_iterator_on_an_autocommit_engine_is_refused(database: Any, queue_engine: sa.Engine):
    """Without a transaction a bad row could not take back those before it: the message says to give a list, which works."""
    engine = database.create_engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        with pytest.raises(ValueError, match=r"Give a list: enqueue_many\(connection, list\(rows\)\)"):
            enqueue_many(connection, iter([{"job_type": "tick"}] * 2))
        assert 2 == len(enqueue_many(connection, [{"job_type": "tick"}] * 2))

    assert 2 == len(queued_ids(queue_engine))


def test_a_worker_leaves_the_pool_as_it_was(database: Any, queue_engine: sa.Engine):
    """The connection that a worker gives back has the application's isolation level again."""
    level = {"isolation_level": "SERIALIZABLE"}
    engine = database.create_engine(pool_size=1, max_overflow=0, **level)
    with engine.connect() as connection:
        before = connection.get_isolation_level()
        raw = connection.connection.dbapi_connection
    with Session(engine) as session, session.begin():
        session.add(Job(job_type="tick"))
    assert 1 == len(run_due(engine))

    with engine.connect() as connection:
        assert raw is connection.connection.dbapi_connection
        assert before == connection.get_isolation_level() == "SERIALIZABLE"
