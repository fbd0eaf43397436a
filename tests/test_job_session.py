"""`job.session`: the handler's writes and the job's completion are one commit, or none."""

import datetime as dt

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from proletarian_sa import (
    JobInterrupted,
    JobRegistry,
    RetryStrategy,
    SessionNotYours,
    enqueue,
)
from tests.claims import process_next_job
from tests.observing import add
from tests.queue_contents import Base, User, archived, queued

pytestmark = [pytest.mark.usefixtures("claim"), pytest.mark.async_drivers]


@pytest.fixture
def app_engine(queue_engine):
    """Add the application's own tables, with one row that can be in the way."""
    Base.metadata.create_all(queue_engine)
    with Session(queue_engine) as session, session.begin():
        session.add(User(id=1, name="first"))
    return queue_engine


def names(engine):
    """Return what was committed, but for the row that is always there."""
    with engine.connect() as connection:
        return sorted(connection.scalars(sa.select(User.name).where(User.id != 1)))


def run(engine, handler, **options):
    """Run one job with a handler of `(job)`."""
    add(engine)
    return process_next_job(engine, handler, handler_mode="advanced", **options)


def test_effects_and_completion_are_one_commit(app_engine):
    """Nobody sees the handler's writes before the job is done, nor the job done without them."""
    seen = []

    def handler(job):
        job.session.add(User(id=2, name="new"))
        job.session.flush()
        seen.append((names(app_engine), len(archived(app_engine))))

    class Watched(Session):
        def commit(self):
            seen.append((names(app_engine), len(archived(app_engine))))
            super().commit()
            seen.append((names(app_engine), len(archived(app_engine))))

    outcome = run(app_engine, handler, session_factory=lambda: Watched(app_engine))

    assert "succeeded" == outcome.status
    assert [([], 0), ([], 0), (["new"], 1)] == seen


def test_pending_writes_are_flushed_with_the_completion(app_engine):
    """What was only added is written before the job is finished."""
    assert "succeeded" == run(app_engine, lambda job: job.session.add(User(id=2, name="new"))).status
    assert ["new"] == names(app_engine)


@pytest.mark.parametrize("failure", [ValueError, SystemExit, KeyError, JobInterrupted])
@pytest.mark.parametrize("retries", [0, 1])
def test_a_failed_handler_leaves_nothing(app_engine, failure, retries):
    """Whatever ends the handler but a return takes back all that it wrote, flushed or not."""

    def handler(job):
        job.session.add(User(id=2, name="flushed"))
        job.session.flush()
        job.session.add(User(id=3, name="pending"))
        raise failure

    outcome = run(app_engine, handler, retry=RetryStrategy(retries=retries, delays=[60]))

    assert {JobInterrupted: "interrupted"}.get(failure, ["failed", "retrying"][retries]) == outcome.status
    assert [] == names(app_engine)
    assert 1 == len(queued(app_engine)) + len(archived(app_engine))


def test_children_are_enqueued_once(app_engine):
    """Nested enqueue, with the job's session: children of a failed attempt are gone, those of the good one appear once."""
    jobs = JobRegistry()

    @jobs.handler("parent", retry=RetryStrategy(retries=1))
    def parent(_payload, job):
        for _ in range(2):
            enqueue(job.session, "child", queue="other")
        job.session.flush()
        if job.attempts == 1:
            raise ValueError

    add(app_engine, "parent")

    assert "retrying" == process_next_job(app_engine, jobs).status
    assert ["parent"] == [row.job_type for row in queued(app_engine)]
    assert "succeeded" == process_next_job(app_engine, jobs).status
    assert ["child", "child"] == [row.job_type for row in queued(app_engine)]


def test_the_handlers_own_savepoints(app_engine):
    """`begin_nested` is the handler's: a part that fails on its own is taken back, the rest is committed."""

    def handler(job):
        job.session.add(User(id=2, name="before"))
        for _ in range(2):
            with pytest.raises(exc.IntegrityError), job.session.begin_nested():
                job.session.add_all([User(id=3, name="inside"), User(id=1, name="duplicate")])
        with job.session.begin_nested(), job.session.begin_nested():
            job.session.add(User(id=4, name="kept"))
        job.session.add(User(id=5, name="after"))

    assert "succeeded" == run(app_engine, handler).status
    assert ["after", "before", "kept"] == names(app_engine)


@pytest.mark.parametrize("begin", [lambda job: job.session, lambda job: job.session.connection()], ids=["session", "connection"])
def test_savepoints_left_open_are_part_of_the_whole(app_engine, begin):
    """Savepoints that the handler forgot to end are released with the rest."""

    def handler(job):
        begin(job).begin_nested()
        begin(job).begin_nested()
        job.session.add(User(id=2, name="inside"))

    assert "succeeded" == run(app_engine, handler).status
    assert ["inside"] == names(app_engine)


def duplicate_by_core(job):
    """Violate the primary key in one statement."""
    job.session.execute(sa.insert(User).values(id=1, name="duplicate"))


def duplicate_by_flush(job):
    """Violate the primary key in the flush of an object."""
    job.session.add(User(id=1, name="duplicate"))
    job.session.flush()


@pytest.mark.parametrize("violate", [duplicate_by_core, duplicate_by_flush], ids=["core", "flush"])
def test_an_integrity_error_that_travels_is_a_failed_attempt(app_engine, violate):
    """The error is the outcome's, and nothing that the handler wrote stays."""

    def handler(job):
        job.session.execute(sa.insert(User).values(id=2, name="before"))
        violate(job)

    outcome = run(app_engine, handler)

    assert "failed" == outcome.status
    assert isinstance(outcome.exception, exc.IntegrityError)
    assert "IntegrityError" in archived(app_engine)[0].last_error
    assert [] == names(app_engine)


def test_an_integrity_error_swallowed_in_core(app_engine):
    """Where a statement can fail alone, the rest is committed; PostgreSQL has given up the transaction: the attempt has failed."""

    def handler(job):
        job.session.execute(sa.insert(User).values(id=2, name="before"))
        with pytest.raises(exc.IntegrityError):
            duplicate_by_core(job)

    outcome = run(app_engine, handler)

    if app_engine.dialect.name == "postgresql":
        assert ("failed", []) == (outcome.status, names(app_engine))
        assert "that the handler swallowed: (" in archived(app_engine)[0].last_error
    else:
        assert ("succeeded", ["before"]) == (outcome.status, names(app_engine))


def test_an_integrity_error_swallowed_in_a_flush(app_engine):
    """A flush that failed has taken back the session's writes on every database: never a success without them."""

    def handler(job):
        job.session.execute(sa.insert(User).values(id=2, name="before"))
        with pytest.raises(exc.IntegrityError):
            duplicate_by_flush(job)

    outcome = run(app_engine, handler)

    assert ("failed", []) == (outcome.status, names(app_engine))
    assert "Original exception was: " in archived(app_engine)[0].last_error


def test_an_integrity_error_of_the_last_flush_is_the_handlers(app_engine):
    """What was added and never flushed fails when the job is finished, and counts as the handler's failure."""

    def handler(job):
        job.session.add(User(id=2, name="good"))
        job.session.add(User(id=1, name="duplicate"))

    outcome = run(app_engine, handler)

    assert "failed" == outcome.status
    assert isinstance(outcome.exception, exc.IntegrityError)
    assert [] == names(app_engine)


def test_deferred_constraints_speak_before_the_completion(database, app_engine):
    """A deferred foreign key that is violated at the end is the handler's failure, with the constraint's error."""
    if app_engine.dialect.name not in ("postgresql", "sqlite"):
        pytest.skip("no deferred constraints")
    engine = database.create_engine()

    @sa.event.listens_for(engine, "connect")
    def enforce(connection, _record):
        if engine.dialect.name == "sqlite":
            connection.execute("PRAGMA foreign_keys = ON")

    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE pet (id integer PRIMARY KEY, owner integer REFERENCES users (id) DEFERRABLE INITIALLY DEFERRED)"
        )

    def orphan(job):
        job.session.add(User(id=2, name="before"))
        job.session.execute(sa.text("INSERT INTO pet VALUES (1, 99)"))

    def adopted(job):
        job.session.execute(sa.text("INSERT INTO pet VALUES (1, 3)"))
        job.session.add(User(id=3, name="owner"))

    committed = []

    class Watched(Session):
        def commit(self):
            committed.append(1)
            super().commit()

    bad = run(engine, orphan, session_factory=lambda: Watched(engine))
    refused_at_commit = bool(committed)
    good = run(engine, adopted, session_factory=lambda: Watched(engine))

    assert ("failed", "succeeded") == (bad.status, good.status)
    assert isinstance(bad.exception, exc.IntegrityError)
    assert ["failure", "success"] == [row.status for row in archived(engine)]
    # Where constraints can be asked, that is done before the job is archived and the application's hooks run.
    assert refused_at_commit == (engine.dialect.name == "sqlite")
    assert ["owner"] == names(engine)


def test_the_next_job_has_a_new_session(app_engine):
    """Handler leaves a broken session: what a handler did to its session is nothing to the next job."""
    sessions = []

    def broken(job):
        sessions.append(job.session)
        with pytest.raises(exc.IntegrityError):
            duplicate_by_flush(job)

    def good(job):
        sessions.append(job.session)
        assert 0 == len(job.session.identity_map)
        job.session.add(User(id=2, name="good"))

    assert "failed" == run(app_engine, broken).status
    assert "succeeded" == run(app_engine, good).status
    assert sessions[0] is not sessions[1]
    assert ["good"] == names(app_engine)


def test_the_session_is_opened_once_and_only_if_used(app_engine):
    """`job.session` is the same at each use; a handler that does not use it costs no Session."""
    made = []

    def factory():
        made.append(Session(app_engine))
        return made[-1]

    run(app_engine, lambda job: None, session_factory=factory)
    assert [] == made
    run(app_engine, lambda job: (job.session, job.session), session_factory=factory)
    assert 1 == len(made)


def test_the_session_is_over_when_the_handler_is(app_engine):
    """A retry function, or a thread that outlives its handler, cannot open a transaction that nobody ends."""
    kept = []

    def handler(job):
        kept.append(job)
        raise ValueError

    def choose(job, _exception):
        job.session.add(User(id=2, name="too late"))

    outcome = run(app_engine, handler, retry=choose)

    assert "failed" == outcome.status
    assert 0 == app_engine.pool.checkedout()
    with pytest.raises(SessionNotYours):
        _ = kept[0].session
    assert [] == names(app_engine)


def test_a_job_that_is_done_keeps_its_last_error_and_times(app_engine):
    """A job completed in the handler's transaction is archived exactly as any other."""
    add(app_engine)
    process_next_job(app_engine, lambda job: 1 / 0, handler_mode="advanced", retry=RetryStrategy(retries=1))
    outcome = process_next_job(app_engine, lambda job: job.session.add(User(id=2, name="new")), handler_mode="advanced")

    (row,) = archived(app_engine)
    assert ("succeeded", "success", 2) == (outcome.status, row.status, row.attempts)
    assert "ZeroDivisionError" in row.last_error
    assert abs(row.finished_at - row.process_at) < dt.timedelta(minutes=5)
