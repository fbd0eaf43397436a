"""Sessions of the application's own that a handler leaves broken, and the documented decorator against it."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from proletarian_sa import JobRegistry, events
from tests.helpers import wait_until
from tests.observing import PATIENCE, add
from tests.queue_contents import User, archived

pytestmark = pytest.mark.usefixtures("claim")

DOCUMENT = Path(__file__).parents[2] / "docs" / "handlers.md"


def documented_decorator(session):
    """Return the decorator of docs/handlers.md, around a session of the test's."""
    code = DOCUMENT.read_text().partition("def with_fresh_session")
    decorator = "".join(code[1:]).partition("jobs = JobRegistry()")[0]
    namespace = {"AppSession": session}
    exec("import functools\n" + decorator, namespace)  # noqa: S102 - the document is ours
    return namespace["with_fresh_session"]


def violate(session, *, swallow):
    """Insert a row that is there already."""
    session.add(User(id=1, name="a second one"))
    try:
        session.flush()
    except exc.IntegrityError:
        if not swallow:
            raise


def swallowed_error(session, _job):
    """Swallow the error of a flush, without a rollback."""
    violate(session, swallow=True)


def raised_error(session, _job):
    """Let the error of a flush travel, without a rollback."""
    violate(session, swallow=False)


def open_transaction(session, _job):
    """Leave a transaction open, that has read."""
    session.execute(sa.select(User)).all()


def pending_objects(session, _job):
    """Add what is never flushed."""
    session.add(User(id=50, name="never flushed"))


def open_savepoint(session, _job):
    """Leave a savepoint open."""
    session.begin_nested()
    session.execute(sa.select(User)).all()


def held_connection(session, _job):
    """Leave a connection in hand, that the rest of the session shares."""
    session.connection().execute(sa.select(1))


def base_exception(session, _job):
    """Leave in the middle."""
    session.execute(sa.select(User)).all()
    raise SystemExit(1)


WAYS = [swallowed_error, raised_error, open_transaction, pending_objects, open_savepoint, held_connection, base_exception]


@pytest.fixture
def app_session(database, app_engine):
    """Return a thread-local session of the application's, on a pool of its own."""
    engine = database.create_engine(pool_size=2, max_overflow=0, pool_timeout=5)
    session = scoped_session(sessionmaker(engine))
    session.add(User(id=1, name="the first"))
    session.commit()
    session.remove()
    return session


def test_the_documented_decorator_mends_sessions_of_ones_own(app_engine, app_session, work):
    """Handler leaves a broken session: the documented decorator gives each job of the thread a good one; no connection leaks."""
    jobs = JobRegistry()
    fresh = documented_decorator(app_session)
    for way in WAYS:
        jobs.handler(way.__name__)(fresh(lambda payload, job, way=way: way(app_session, job)))

    @jobs.handler("good")
    @fresh
    def good(payload, job):
        assert not app_session().in_transaction()
        app_session.add(User(id=payload, name=f"after {payload}"))
        app_session.commit()
        app_session.add(User(id=1000 + payload, name="not committed"))

    for number, way in enumerate(WAYS):
        add(app_engine, way.__name__)
        add(app_engine, "good", 100 + number)
    worker, seen = work(jobs)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=len(WAYS), job_type="good")

    with app_engine.connect() as connection:
        names = connection.scalars(sa.select(User.name).order_by(User.id)).all()
    assert ["the first"] + [f"after {100 + number}" for number in range(len(WAYS))] == names
    wait_until(lambda: app_session.registry().get_bind().pool.checkedout() == 0, timeout=PATIENCE)
    failed = {row.job_type for row in archived(app_engine) if row.status == "failure"}
    assert {"raised_error", "base_exception"} == failed


def test_the_session_of_the_job_is_never_affected(app_engine, app_session, work):
    """Handler leaves a broken session: whatever it does to the application's own, `job.session` of the next job is a good one."""
    jobs, left = JobRegistry(), []
    ways = [way for way in WAYS if way is not pending_objects]

    def misbehave(payload, job):
        left.append(app_session())
        ways[payload](app_session, job)

    jobs.handler("bad")(misbehave)
    jobs.handler("good")(lambda payload, job: job.session.add(User(id=100 + payload, name="good")))
    for number in range(len(ways)):
        add(app_engine, "bad", number)
        add(app_engine, "good", number)
    worker, seen = work(jobs)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=len(ways), job_type="good")
    worker.stop()
    for session in left:  # those of a thread that has ended
        session.close()

    with app_engine.connect() as connection:
        assert len(ways) == connection.scalar(sa.select(sa.func.count()).where(User.name == "good"))
    assert 1 == len(set(left))


def test_a_scoped_session_as_factory_is_mended_too(app_engine, app_session, work):
    """Handler leaves a broken session: also where `job.session` is made by the application's scoped_session."""
    jobs = JobRegistry()
    jobs.handler("bad")(documented_decorator(app_session)(swallowed_outside(app_session)))
    jobs.handler("good")(lambda payload, job: job.session.add(User(id=payload, name="good")))
    add(app_engine, "bad")
    add(app_engine, "good", 7)
    worker, seen = work(jobs, session_factory=app_session)
    worker.start()
    seen.wait_for(events.JobSucceeded, job_type="good")

    with app_engine.connect() as connection:
        assert "good" == connection.scalar(sa.select(User.name).where(User.id == 7))


def swallowed_outside(session):
    """Return a handler that breaks the session without asking for `job.session`."""

    def handler(payload):
        violate(session, swallow=True)

    return handler


class LoudlyClosed(Session):
    """Raises once it is closed, as a hook of the application's may."""

    def close(self):
        """Close, and raise."""
        super().close()
        raise ValueError("hook")


@pytest.mark.parametrize("error", [None, RuntimeError], ids=["success", "failure"])
def test_a_session_whose_close_raises(app_engine, work, error):
    """Handler leaves a broken session: where closing it raises, the outcome stands, an event tells, and the worker goes on."""

    def handler(job):
        job.session.add(User(name="effect"))
        if error:
            raise error

    worker, seen = work(handler, session_factory=lambda: LoudlyClosed(app_engine))
    ids = {add(app_engine), add(app_engine)}
    worker.start()
    seen.wait_for(events.JobFailed if error else events.JobSucceeded, count=2)
    worker.stop()

    assert worker.error is None
    assert {(job_id, 1, "failure" if error else "success") for job_id in ids} == {
        (row.job_id, row.attempts, row.status) for row in archived(app_engine)
    }
    assert {"hook"} == {str(event.exception) for event in seen.of(events.CallbackFailed, callback="the close of job.session")}
    assert 0 == app_engine.pool.checkedout()
