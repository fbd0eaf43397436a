"""`job.session` belongs to the worker: a handler that ends its transaction is told so, and its job is not done."""

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import RetryStrategy, SessionNotYours, TransactionLost, default_tables
from tests.claims import process_next_job
from tests.observing import add
from tests.queue_contents import User, archived, queued

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("claim"), pytest.mark.async_drivers]


def names(engine):
    """Return what was committed."""
    with engine.connect() as connection:
        return sorted(connection.scalars(sa.select(User.name)))


def run(engine, handler, **options):
    """Run one job with a handler of `(job)`."""
    add(engine)
    return process_next_job(engine, handler, handler_mode="advanced", **options)


REFUSED = {
    "commit": "return from the handler",
    "rollback": "raise an exception, or use job.session.begin_nested()",
    "close": "leave it open",
    "reset": "leave it open",
    "invalidate": "raise an exception",
    "prepare": "return from the handler",
}


def test_methods_that_end_the_session_are_refused(app_engine):
    """Handler ends the claim transaction: the error says what to do instead, and nothing has happened."""
    for method, instead in REFUSED.items():

        def handler(job, method=method):
            job.session.add(User(id=2, name="new"))
            getattr(job.session, method)()

        outcome = run(app_engine, handler)

        assert "failed" == outcome.status
        assert isinstance(outcome.exception, SessionNotYours)
        assert f"job.session.{method}() is the worker's business. Instead, {instead}" in str(outcome.exception)
        assert [] == names(app_engine)


def test_a_refusal_that_is_swallowed_has_done_nothing(app_engine):
    """Handler ends the claim transaction: it is whole after a refusal, so the handler may go on."""

    def handler(job):
        job.session.add(User(id=2, name="before"))
        for method in REFUSED:
            with pytest.raises(SessionNotYours):
                getattr(job.session, method)()
        job.session.add(User(id=3, name="after"))

    assert "succeeded" == run(app_engine, handler).status
    assert ["after", "before"] == names(app_engine)


def with_session(session):
    """Close at the end of a block."""
    with session:
        session.execute(sa.insert(User).values(id=3, name="inside"))


def with_begin(session):
    """Commit at the end of a block."""
    with session.begin():
        session.execute(sa.insert(User).values(id=3, name="inside"))


@pytest.mark.parametrize("block", [with_session, with_begin])
def test_blocks_that_would_end_the_session_are_refused(app_engine, block):
    """`with job.session:` would close it, `with job.session.begin():` would commit it: failed attempts that leave nothing."""
    outcome = run(app_engine, lambda job: block(job.session))

    assert "failed" == outcome.status
    assert [] == names(app_engine)


ENDINGS = {
    "connection commit": lambda session: session.connection().commit(),
    "connection rollback": lambda session: session.connection().rollback(),
    "connection close": lambda session: session.connection().close(),
    "connection invalidate": lambda session: session.connection().invalidate(),
    "connection detach": lambda session: session.connection().detach() or session.connection().rollback(),
    "transaction commit": lambda session: session.get_transaction().commit(),
    "transaction rollback": lambda session: session.get_transaction().rollback(),
    "transaction close": lambda session: session.get_transaction().close(),
    "core commit": lambda session: session.connection().get_transaction().commit(),
    "core rollback": lambda session: session.connection().get_transaction().rollback(),
    "savepoint commit": lambda session: session.connection().get_nested_transaction().commit(),
    "savepoint rollback": lambda session: session.connection().get_nested_transaction().rollback(),
    "COMMIT": lambda session: session.execute(sa.text("COMMIT")),
    "ROLLBACK": lambda session: session.execute(sa.text("ROLLBACK")),
    "driver commit": lambda session: session.connection().connection.dbapi_connection.commit(),
    "driver rollback": lambda session: session.connection().connection.dbapi_connection.rollback(),
    "driver close": lambda session: session.connection().connection.dbapi_connection.close(),
    "class commit": Session.commit,
    "class rollback": Session.rollback,
    "class close": Session.close,
}


@pytest.mark.parametrize("way", ["then returns", "then works on", "swallows"])
@pytest.mark.plain_drivers
def test_a_transaction_ended_behind_our_back_is_no_success(app_engine, way):
    """Handler ends the claim transaction: whatever it does to it, a job is never done without all of its effects."""
    for name, end in ENDINGS.items():
        assert (name, "retrying", 1, 0, True) == (name, *end_and_look(app_engine, end, way))


def end_and_look(engine, end, way):
    """Run a job that ends its transaction, and another: return outcome, attempts, connections out, whether the other is done."""

    def handler(job):
        session = job.session
        session.execute(sa.insert(User).values(id=2, name="before"))
        try:
            end(session)
            if way != "then returns":
                session.execute(sa.insert(User).values(id=3, name="after"))
        except Exception:
            if way != "swallows":
                raise

    outcome = run(engine, handler, retry=RetryStrategy(retries=1, delays=[60]))

    assert "after" not in names(engine)
    assert [] == archived(engine)
    (row,) = queued(engine)
    assert row.claimed_by is None
    checked_out = engine.pool.checkedout()
    # Nothing of it hangs on to the pooled connection.
    following = run(engine, lambda job: job.session.add(User(id=9, name="next")))
    done = following.status == "succeeded" and "next" in names(engine)
    with engine.begin() as connection:
        for table in (User.__table__, default_tables.job, default_tables.archived_job):
            connection.execute(sa.delete(table))
    return outcome.status, row.attempts, checked_out, done


def test_the_error_explains_an_ended_transaction(app_engine):
    """The error says that the transaction was not the handler's to end."""
    for end in ("connection commit", "transaction commit", "core commit", "COMMIT", "driver commit", "class commit"):
        outcome = run(app_engine, lambda job, end=end: ENDINGS[end](job.session))

        assert isinstance(outcome.exception, SessionNotYours | TransactionLost)
        assert "transaction" in str(outcome.exception)


def test_hooks_that_go_on_adding_objects(app_engine):
    """What hooks of the application's session add after a flush is in the same commit: the archiving comes after all of it."""
    add(app_engine)
    names, inserted = ["second", "third"], []

    class AppSession(Session):
        """Adds another object after each flush."""

    def add_one_more(session, _context):
        if names:
            session.add(User(name=names.pop(0)))

    def watch(_connection, _cursor, statement, *_):
        if "INSERT INTO" in statement:
            inserted.append(default_tables.archived_job.name if "archived_job" in statement else "user")

    sa.event.listen(AppSession, "after_flush_postexec", add_one_more)
    sa.event.listen(app_engine, "before_cursor_execute", watch)
    outcome = process_next_job(
        app_engine,
        lambda job: job.session.add(User(name="first")),
        handler_mode="advanced",
        session_factory=lambda: AppSession(app_engine),
    )

    assert "succeeded" == outcome.status
    assert ["user", "user", "user", "archived_job"] == inserted[-4:]
    with Session(app_engine) as session:
        assert {"first", "second", "third"} == set(session.scalars(sa.select(User.name)))
