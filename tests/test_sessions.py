"""A job exists if and only if the caller's transaction, and its savepoint, committed."""

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from proletarian_sa import Job, enqueue, enqueue_many
from tests.queue_contents import Base, User, archived, queued_ids, run_due


def names(engine: sa.Engine) -> list[str]:
    """Return the users that were committed."""
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(User.name).order_by(User.name)))


def enqueue_and_fail(session: Session) -> None:
    """Enqueue in every way, and raise an error of the application's."""
    session.add(Job(job_type="never"))
    enqueue(session, "never")
    enqueue_many(session, [{"job_type": "never"}])
    enqueue_many(session, iter([{"job_type": "never"}]))
    session.flush()
    raise ZeroDivisionError


def test_a_rollback_takes_the_job_back(app_engine: sa.Engine):
    """Rollback: a rolled-back transaction leaves no job, flushed or not, whichever way it was enqueued; the session goes on."""
    for flush in (True, False):
        with Session(app_engine) as session:
            enqueue(session, "tick")
            enqueue_many(session, [{"job_type": "tick"}])
            enqueue_many(session, iter([{"job_type": "tick"}]))
            if flush:
                session.flush()
            session.rollback()
            kept = enqueue(session, "tick")
            session.commit()

        assert {kept} == queued_ids(app_engine)
        run_due(app_engine)

    with app_engine.connect() as connection:
        enqueue(connection, "tick")
        enqueue_many(connection, iter([{"job_type": "tick"}]))
        connection.rollback()
    assert set() == queued_ids(app_engine)


def test_a_rolled_back_job_can_be_added_again(app_engine: sa.Engine):
    """After a rollback the object is as it was before the flush, id included, and can be added once more."""
    with Session(app_engine) as session:
        job = Job(job_type="tick", payload=1)
        job_id = job.job_id
        session.add(job)
        session.flush()
        session.rollback()
        assert job_id == job.job_id
        session.add(job)
        session.commit()

    (ran,) = run_due(app_engine)
    assert (job_id, 1) == (ran.job_id, ran.payload)


def test_an_error_in_the_block_takes_the_job_back(app_engine: sa.Engine):
    """Rollback: an error that leaves `session.begin()`, the application's own or a refused flush, leaves no job."""
    with pytest.raises(ZeroDivisionError), Session(app_engine) as session, session.begin():
        enqueue_and_fail(session)
    with Session(app_engine) as session:
        session.add(User(id=1, name="Ada"))
        session.flush()
        session.expunge_all()
        enqueue(session, "tick")
        session.add(User(id=1, name="Bob"))
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()

    assert set() == queued_ids(app_engine)
    assert [] == names(app_engine)


def test_an_expunged_job_does_not_exist(app_engine: sa.Engine):
    """Rollback: a job taken out of the session before the flush is not enqueued."""
    with Session(app_engine) as session, session.begin():
        job = Job(job_type="tick")
        session.add(job)
        session.expunge(job)

    assert set() == queued_ids(app_engine)


@pytest.mark.parametrize("autoflush", [True, False])
def test_savepoints_decide_over_their_jobs_alone(app_engine: sa.Engine, autoflush: bool):
    """Rollback and nesting: a savepoint rolled back takes its jobs with it; one released leaves them to the outer transaction."""

    def work(session: Session) -> set[object]:
        session.add(User(name="Ada"))
        session.flush()
        outer = enqueue(session, "outer")
        with session.begin_nested():
            released = enqueue(session, "released")
            released_many = enqueue_many(session, [{"job_type": "released"}])
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            enqueue_and_fail(session)
        return {outer, released, *released_many}

    with Session(app_engine, autoflush=autoflush) as session:
        work(session)
        session.rollback()
    assert set() == queued_ids(app_engine)

    with Session(app_engine, autoflush=autoflush) as session:
        kept = work(session)
        session.commit()
    assert kept == queued_ids(app_engine)


def test_savepoints_of_a_connection(app_engine: sa.Engine):
    """The same on a Core connection: only what was in the rolled-back savepoint is gone."""
    with app_engine.begin() as connection:
        connection.execute(sa.insert(User), {"name": "Ada"})
        with connection.begin_nested():
            kept = enqueue(connection, "released")
        savepoint = connection.begin_nested()
        enqueue(connection, "rolled back")
        enqueue_many(connection, iter([{"job_type": "rolled back"}]))
        savepoint.rollback()

    assert {kept} == queued_ids(app_engine)


@pytest.mark.parametrize("expire_on_commit", [True, False])
def test_a_job_archived_before_the_producer_reads_its_id(app_engine: sa.Engine, expire_on_commit: bool):
    """The id survives commit and expiry, although the row may be gone: a worker was faster."""
    with Session(app_engine, expire_on_commit=expire_on_commit) as session:
        job = Job(job_type="tick", queue="fast")
        session.add(job)
        returned = enqueue(session, "tick", queue="fast")
        session.commit()
        assert 2 == len(run_due(app_engine, queue="fast"))

        assert {job.job_id, returned} == {row.job_id for row in archived(app_engine)}
        session.expire_all()
        assert job.job_id in {row.job_id for row in archived(app_engine)}
        assert str(job.job_id) in repr(job)
        # Whatever else is read is read from the row, as of any object that somebody else deleted.
        with pytest.raises(sa.orm.exc.ObjectDeletedError):
            _ = job.queue
        session.rollback()
        assert enqueue(session, "tick") == session.scalars(sa.select(Job.job_id)).one()


def test_expire_on_commit_false_keeps_what_was_given(app_engine: sa.Engine):
    """Without expiry the object keeps its columns; with it they are read again while the job is queued."""
    for expire_on_commit in (True, False):
        with Session(app_engine, expire_on_commit=expire_on_commit) as session:
            job = Job(job_type="tick", payload=[1], queue="kept")
            session.add(job)
            session.commit()
            assert ("tick", "kept", [1], 0) == (job.job_type, job.queue, job.payload, job.attempts)
            assert job.enqueued_at <= job.process_at
            assert "UTC" == job.process_at.tzname()


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "create_savepoint"])
def test_an_outer_transaction_decides(app_engine: sa.Engine, mode: str):
    """A session that joins a connection's transaction commits nothing by itself: the job goes with the outer one."""
    for commit in (False, True):
        with app_engine.connect() as connection:
            outer = connection.begin()
            connection.execute(sa.insert(User), {"name": "Ada"})
            with Session(bind=connection, join_transaction_mode=mode) as session:
                ids = {enqueue(session, "joined"), *enqueue_many(session, [{"job_type": "joined"}])}
                session.commit()
            assert ids == queued_ids(connection)
            if commit:
                outer.commit()
            else:
                outer.rollback()

        assert (ids if commit else set()) == queued_ids(app_engine)


def test_a_session_that_controls_the_outer_transaction(app_engine: sa.Engine):
    """With `control_fully` the session's commit is the outer one's, and so is its rollback."""
    with app_engine.connect() as connection:
        connection.begin()
        with Session(bind=connection, join_transaction_mode="control_fully") as session:
            kept = enqueue(session, "joined")
            session.commit()
    with app_engine.connect() as connection:
        connection.begin()
        with Session(bind=connection, join_transaction_mode="control_fully") as session:
            enqueue(session, "joined")
            session.flush()
            session.rollback()

    assert {kept} == queued_ids(app_engine)


def test_a_session_with_several_binds(app_engine: sa.Engine, tmp_path):
    """A job goes to the engine that the session has for `Job`, whatever it has for the rest."""
    elsewhere = sa.create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    Base.metadata.create_all(elsewhere)
    with Session(elsewhere, binds={Job: app_engine}) as session, session.begin():
        session.add(User(name="Ada"))
        ids = {enqueue(session, "one")}
        ids |= set(enqueue_many(session, [{"job_type": "many"}]))
        enqueue_many(session, iter([{"job_type": "stream"}]))

    assert ["Ada"] == names(elsewhere)
    assert [] == names(app_engine)
    assert ids < queued_ids(app_engine)
    assert ["one", "many", "stream"] == [job.job_type for job in sorted(run_due(app_engine), key=lambda job: job.job_id)]
    elsewhere.dispose()


@pytest.mark.parametrize("autoflush", [True, False])
def test_nothing_of_the_callers_is_flushed(app_engine: sa.Engine, autoflush: bool):
    """Enqueueing sends none of the caller's pending rows, whether the session flushes by itself or not."""
    with Session(app_engine, autoflush=autoflush) as session:
        flushes: list[object] = []
        sa.event.listen(session, "before_flush", lambda *arguments: flushes.append(arguments))
        user = User(name="Ada")
        session.add(user)
        enqueue(session, "one")
        enqueue_many(session, [{"job_type": "many"}])
        enqueue_many(session, iter([{"job_type": "stream"}]))

        assert [] == flushes
        assert user in session.new
        session.commit()

    assert 1 == len(flushes)
    assert ["Ada"] == names(app_engine)
    assert 3 == len(queued_ids(app_engine))


def test_enqueueing_on_a_session_sends_nothing(app_engine: sa.Engine):
    """`enqueue` on a session does no I/O: the job is inserted with the session's own flush, beside its other rows."""
    statements: list[str] = []
    sa.event.listen(app_engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    with Session(app_engine) as session:
        enqueue(session, "one")
        assert [] == statements
        assert not session.in_transaction() or not session.get_transaction().nested
        session.commit()

    assert 1 == len([statement for statement in statements if statement.startswith("INSERT")])


def test_a_bulk_flush_is_one_statement(app_engine: sa.Engine):
    """Jobs for now that are flushed together are inserted together, not one statement each."""
    statements: list[str] = []
    sa.event.listen(app_engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    with Session(app_engine) as session, session.begin():
        for number in range(100):
            enqueue(session, "tick", number)

    assert 100 == len(queued_ids(app_engine))
    inserts = [statement for statement in statements if statement.startswith("INSERT")]
    assert len(inserts) <= 2


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_phase_sessions(app_engine: sa.Engine, database, end: str):
    """A prepared job is seen by nobody; it is there once the transaction is committed, and gone if it is rolled back."""
    database.require("two_phase")
    with Session(app_engine, twophase=True) as session:
        try:
            session.add(User(name="Ada"))
            ids = {enqueue(session, "prepared"), *enqueue_many(session, [{"job_type": "prepared"}])}
            session.prepare()
            seen = queued_ids(app_engine)
            getattr(session, end)()
        finally:
            session.rollback()  # what is left prepared would keep its locks for ever

    assert set() == seen
    assert (ids if end == "commit" else set()) == queued_ids(app_engine)
    assert len(ids) * (end == "commit") == len(run_due(app_engine))


def test_scoped_sessions(app_engine: sa.Engine):
    """A scoped_session is as good as its session: the job goes with the commit of this thread's."""
    session = scoped_session(sessionmaker(app_engine))
    enqueue(session, "lost")
    session.remove()
    kept = enqueue(session, "kept")
    many = enqueue_many(session, [{"job_type": "kept"}])
    session().commit()
    session.remove()

    assert {kept, *many} == queued_ids(app_engine)
