"""`session_factory`: the application's own Session behind `job.session`, with its class, its binds and its hooks."""

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from proletarian_sa import RetryStrategy, default_tables
from tests.claims import process_next_job
from tests.observing import Recorder, add
from tests.queue_contents import User, archived

pytestmark = pytest.mark.usefixtures("claim")


def names(engine):
    """Return what was committed."""
    with engine.connect() as connection:
        return sorted(connection.scalars(sa.select(User.name)))


def run(engine, handler, **options):
    """Run one job with a handler of `(job)`."""
    add(engine)
    return process_next_job(engine, handler, handler_mode="advanced", **options)


def test_the_applications_session_class_and_binds(database, app_engine):
    """`session_factory` brings a subclass, its own binds per class, and `info`."""
    other = database.create_engine()

    class AppSession(Session):
        pass

    binds = {User: other, default_tables.Job: app_engine}
    used = []

    def handler(job):
        used.append((isinstance(job.session, AppSession), job.session.info, job.session.get_bind(User) is other))

    outcome = run(app_engine, handler, session_factory=sessionmaker(class_=AppSession, binds=binds, info={"tenant": 1}))

    assert "succeeded" == outcome.status
    assert [(True, {"tenant": 1}, True)] == used


def test_a_scoped_session_may_be_the_factory(app_engine):
    """A thread's one session serves job after job, and the application's own use of it between jobs."""
    factory = scoped_session(sessionmaker(app_engine))

    for number in (2, 3):
        assert (
            "succeeded"
            == run(app_engine, lambda job, n=number: job.session.add(User(id=n, name=str(n))), session_factory=factory).status
        )
    factory.add(User(id=4, name="4"))
    factory.commit()
    factory.remove()

    assert ["2", "3", "4"] == names(app_engine)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: 7, "session_factory must return a new Session, not int"),
        (sessionmaker(), "UnboundExecutionError"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
    ids=["no session", "no bind", "raises"],
)
def test_a_session_factory_that_does_not_work_fails_the_attempt(app_engine, factory, message):
    """The handler gets the error when it asks for the session."""
    outcome = run(app_engine, lambda job: job.session, session_factory=factory)

    assert "failed" == outcome.status
    assert message in archived(app_engine)[0].last_error


def test_a_hook_that_raises_at_commit_is_a_failed_attempt(app_engine):
    """What the application's `before_commit` hook refuses is not committed, and the attempt has failed."""
    maker = sessionmaker(app_engine)

    @sa.event.listens_for(maker, "before_commit")
    def refuse(session):
        raise PermissionError("not today")

    outcome = run(app_engine, lambda job: job.session.add(User(id=2, name="new")), session_factory=maker)

    assert "failed" == outcome.status
    assert isinstance(outcome.exception, PermissionError)
    assert [] == names(app_engine)


@pytest.mark.parametrize("retries", [0, 1])
def test_a_hook_that_raises_after_the_commit_does_not_undo_it(app_engine, retries):
    """The application's `after_commit` hook runs once, after the COMMIT; if it raises, the outcome is what the database has."""
    maker = sessionmaker(app_engine)
    seen = Recorder()
    committed = []

    @sa.event.listens_for(maker, "after_commit")
    def fail(_session):
        committed.append((names(app_engine), len(archived(app_engine))))
        raise PermissionError("too late")

    handler = lambda job: job.session.add(User(id=2, name="new"))  # noqa: E731
    outcome = run(app_engine, handler, session_factory=maker, retry=RetryStrategy(retries=retries), on_event=seen)

    assert [(["new"], 1)] == committed
    assert ["success"] == [row.status for row in archived(app_engine)]
    assert ["new"] == names(app_engine)
    assert "succeeded" == outcome.status
    assert ["JobsClaimed", "JobStarted", "JobSucceeded"] == seen.names()


@pytest.mark.parametrize("hook", ["after_rollback", "after_soft_rollback"])
def test_a_hook_that_raises_at_rollback_costs_nothing(app_engine, hook):
    """The attempt has failed for the handler's reason, is recorded as such, and the connection is given back."""
    maker = sessionmaker(app_engine)

    @sa.event.listens_for(maker, hook)
    def fail(*_arguments):
        raise PermissionError("no rollback")

    def handler(job):
        job.session.add(User(id=2, name="new"))
        job.session.flush()
        raise ValueError("the reason")

    outcome = run(app_engine, handler, session_factory=maker)

    assert ("failed", "the reason") == (outcome.status, str(outcome.exception))
    assert [] == names(app_engine)
    assert 0 == app_engine.pool.checkedout()
