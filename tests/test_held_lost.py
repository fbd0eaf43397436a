"""A held claim whose connection is lost: the handler is told, the worker goes on, and the outcome is recorded once or refused."""

import threading

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from proletarian_sa import JobInterrupted, RetryStrategy, default_tables, events, process_next_job
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, add, backends, change, claim, end_session, lapse, transactions
from tests.queue_contents import User, archived, left, queued
from tests.test_job_session_lost import Rival


def step(engine, handler, **options):
    """Run the next job with a held claim."""
    return process_next_job(engine, handler, claim="held", **{"handler_mode": "advanced"} | options)


def holder(engine, numbers):
    """Return the number of the connection that holds the job: it has been in a transaction for longest."""

    def longest():
        if engine.dialect.name != "postgresql":
            return next((number for number in numbers if transactions(engine, [number])), None)
        query = sa.text("SELECT pid FROM pg_stat_activity WHERE pid = ANY(:numbers) AND xact_start IS NOT NULL ORDER BY xact_start")
        with engine.connect() as connection:
            return connection.scalars(query, {"numbers": numbers}).first()

    return wait_until(longest)


def test_a_handler_learns_that_its_connection_is_lost(database, queue_engine, work):
    """Lost connection: `stopping` becomes true within seconds, an event says why, and thread and worker go on."""
    database.require("row_locks")
    engine, numbers = backends(database)
    told, first = threading.Event(), threading.Event()

    def handler(job):
        if job.job_type == "long" and not first.is_set():
            first.set()
            assert job.wait(PATIENCE)
            told.set()
            raise JobInterrupted

    worker, seen = work(handler, engine, claim="held")
    job_id = add(queue_engine, "long")
    worker.start()
    assert first.wait(PATIENCE)
    end_session(queue_engine, holder(queue_engine, numbers))
    assert told.wait(PATIENCE)
    seen.wait_for(events.JobSucceeded, job_id=job_id)
    following = add(queue_engine)
    seen.wait_for(events.JobSucceeded, job_id=following)

    assert [job_id] == [event.job_id for event in seen.of(events.JobConnectionLost)]
    assert worker.is_running
    assert worker.error is None
    assert [("success", 1), ("success", 1)] == [(row.status, row.attempts) for row in archived(queue_engine)]


def test_a_handler_that_returns_after_its_connection_was_lost(database, queue_engine):
    """The outcome is recorded where nobody has had the job since: a success, under its attempt, once."""
    database.require("row_locks")
    engine, numbers = backends(database)
    add(queue_engine)
    seen = Recorder()
    outcome = step(engine, lambda _job: end_session(queue_engine, holder(queue_engine, numbers)), on_event=seen)

    assert "succeeded" == outcome.status
    assert ([], [("success", 1)]) == left(queue_engine)
    assert 1 == len(seen.of(events.JobSucceeded))
    assert 0 == engine.pool.checkedout()


@pytest.mark.parametrize("end", ["retry", "failure"])
def test_a_handler_that_fails_after_its_connection_was_lost(database, queue_engine, end):
    """A failure after the connection was lost is recorded likewise: retried under its strategy, or archived."""
    database.require("row_locks")
    engine, numbers = backends(database)
    add(queue_engine)

    def handler(_job):
        end_session(queue_engine, holder(queue_engine, numbers))
        raise ValueError("mine")

    outcome = step(engine, handler, retry=RetryStrategy(retries=int(end == "retry"), delays=[60]))

    assert {"retry": "retrying", "failure": "failed"}[end] == outcome.status
    assert left(queue_engine) == (([(1, None, None, None)], []) if end == "retry" else ([], [("failure", 1)]))


def other_held(engine):
    """Run the job with another held claim, to its end."""
    assert "succeeded" == step(engine, lambda _job: None).status


def other_leased(engine):
    """Run the job with a leased claim, to its end."""
    assert "succeeded" == process_next_job(engine, lambda _job: None, handler_mode="advanced").status


def other_retry(engine):
    """Run the job with another held claim, and let it fail."""
    assert "retrying" == step(engine, lambda _job: 1 / 0, retry=RetryStrategy(retries=1, delays=[3600])).status


def other_takes(engine):
    """Take a lease, and have not finished yet."""
    assert 1 == len(claim(engine, "thief"))


@pytest.mark.parametrize("end", ["returns", "fails", "uses job.session"])
def test_a_late_finish_is_refused(database, app_engine, end):
    """Another worker has had the job since the connection was lost: what the handler comes to changes nothing of the job."""
    database.require("row_locks")
    engine, numbers = backends(database)
    for other in (other_held, other_leased, other_retry, other_takes):
        add(app_engine)
        seen, facts = Recorder(), []

        def handler(job, other=other, facts=facts):
            if end == "uses job.session":
                job.session.add(User(id=3, name="effect"))
                job.session.flush()
            end_session(app_engine, holder(app_engine, numbers))
            other(app_engine)
            facts.append(left(app_engine))
            if end == "fails":
                raise ValueError

        outcome = step(engine, handler, on_event=seen)

        assert "lost" == outcome.status
        assert facts == [left(app_engine)]
        assert 1 == len(seen.of(events.JobLeaseLost, handler_finished=True))
        assert [] == seen.of(events.JobSucceeded) + seen.of(events.JobFailed)
        with Session(app_engine) as session, session.begin():
            assert [] == session.scalars(sa.select(User.name)).all()
            for table in (default_tables.job, default_tables.archived_job):
                session.execute(sa.delete(table))


def test_a_late_finish_waits_for_who_runs_the_job_now(database, queue_engine):
    """While another held claim runs the job, its row is locked: the late finish waits, and is refused when that one is done."""
    database.require("row_locks")
    engine, numbers = backends(database)
    add(queue_engine)
    seen, gate = Recorder(), Gate()
    other = threading.Thread(target=step, args=(database.create_engine(), gate))

    def handler(_job):
        end_session(queue_engine, holder(queue_engine, numbers))
        other.start()
        gate.begun.get(timeout=PATIENCE)

    outcomes = []
    late = threading.Thread(target=lambda: outcomes.append(step(engine, handler, on_event=seen)))
    late.start()
    seen.wait_for(events.TransientErrorMet, activity="recording outcomes", count=2)
    gate.open.set()
    late.join(PATIENCE)
    other.join(PATIENCE)

    assert ["lost"] == [outcome.status for outcome in outcomes]
    assert ([], [("success", 1)]) == left(queue_engine)


@pytest.mark.parametrize("swallowed", [False, True])
def test_no_second_worker_gets_a_job_whose_savepoint_was_lost(database, app_engine, swallowed):
    """A deadlock in job.session: the job goes back, counted, and where the transaction lives on nobody else gets it before that."""
    database.require("row_locks")
    rival, seen = Rival(app_engine), Recorder()
    add(app_engine)
    engine, said = database.create_engine(), []
    sa.event.listen(engine, "rollback", lambda _connection: said.append("ROLLBACK"))
    sa.event.listen(engine, "before_cursor_execute", lambda _connection, _cursor, statement, *_: said.append(statement))

    def handler(job):
        job.session.execute(sa.insert(User).values(id=3, name="before"))
        try:
            rival.collide(job.session)
        except exc.SQLAlchemyError:
            if not swallowed:
                raise

    outcome = step(engine, handler, on_event=seen)
    rival.thread.join(PATIENCE)
    (row,) = queued(app_engine)

    assert "retrying" == outcome.status
    assert 1 == row.attempts
    assert 1 == len(seen.of(events.JobTransactionDied))
    after_the_claim = said[max(number for number, statement in enumerate(said) if "SKIP LOCKED" in statement) :]
    recorded = next(number for number, statement in enumerate(after_the_claim) if "SET process_at" in statement)
    if app_engine.dialect.name == "postgresql":  # elsewhere the database has ended the transaction, and the lock with it
        assert "ROLLBACK" not in after_the_claim[:recorded]


def test_deadlocks_are_bounded(database, app_engine):
    """A job that deadlocks each time has an end, beyond its strategy's."""
    database.require("row_locks")
    job_id = add(app_engine)
    change(app_engine, job_id, attempts=10)
    rival = Rival(app_engine)
    outcome = step(app_engine, lambda job: rival.collide(job.session))
    rival.thread.join(PATIENCE)

    assert "failed" == outcome.status
    assert ([], [("failure", 11)]) == left(app_engine)


def test_an_integrity_error_that_is_swallowed_inside_a_savepoint(database, app_engine):
    """A refused row inside the handler's own savepoint spoils nothing else."""
    database.require("row_locks")
    add(app_engine)

    def handler(job):
        job.session.add(User(id=3, name="effect"))
        with pytest.raises(exc.IntegrityError), job.session.begin_nested():
            job.session.execute(sa.insert(User).values(id=3, name="twice"))

    outcome = step(app_engine, handler)

    assert "succeeded" == outcome.status
    with Session(app_engine) as session:
        assert ["effect"] == session.scalars(sa.select(User.name)).all()


def test_an_integrity_error_that_is_swallowed(database, app_engine):
    """A refused row that the handler swallows without a savepoint: all of its writes or none, and the claim was never lost."""
    database.require("row_locks")
    add(app_engine)
    before = queued(app_engine)

    def handler(job):
        job.session.execute(sa.insert(User).values(id=3, name="effect"))
        with pytest.raises(exc.IntegrityError):
            job.session.execute(sa.insert(User).values(id=3, name="twice"))

    outcome = step(app_engine, handler, retry=RetryStrategy(retries=1, delays=[60]))
    with Session(app_engine) as session:
        names = session.scalars(sa.select(User.name)).all()

    if outcome.status == "succeeded":  # the statement alone was refused
        assert ["effect"] == names
    else:
        assert ("retrying", []) == (outcome.status, names)
        assert before[0].attempts + 1 == queued(app_engine)[0].attempts


def test_a_lapsed_lease_that_a_held_claim_loses_too(database, queue_engine):
    """A held claim of a lapsed lease that loses its connection counts nothing: the lease lapses as before."""
    database.require("row_locks")
    engine, numbers = backends(database)
    job_id = add(queue_engine)
    claim(queue_engine, "gone")
    lapse(queue_engine, job_id)
    before = queued(queue_engine)

    def handler(_job):
        end_session(queue_engine, holder(queue_engine, numbers))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step(engine, handler)

    assert before == queued(queue_engine)
    outcome = step(engine, lambda _job: None)
    assert ("succeeded", 1) == (outcome.status, outcome.attempts)
    assert [1] == [row.crashes for row in archived(queue_engine)]


def test_connections_killed_under_load(database, app_engine, work):
    """Lost connection: killed at random moments, every job is done once, its effects there exactly once; the worker goes on."""
    database.require("row_locks")
    engine, numbers = backends(database)
    count = 40
    for number in range(1, count + 1):
        add(app_engine, payload=number)

    def handler(job):
        job.session.add(User(id=job.payload, name="effect"))

    worker, seen = work(handler, engine, claim="held", worker_threads=3)
    worker.start()
    for kills in range(4):
        seen.wait_for(events.JobSucceeded, count=1 + 8 * kills)
        for number in list(numbers):
            try:
                end_session(app_engine, number)
            except exc.DBAPIError as error:
                if "Unknown thread id" not in str(error):
                    raise
    wait_until(lambda: len(archived(app_engine)) == count, 3 * PATIENCE)
    worker.stop()

    with Session(app_engine) as session:
        assert list(range(1, count + 1)) == sorted(session.scalars(sa.select(User.id)))
    assert [] == queued(app_engine)
    assert {"success"} == {row.status for row in archived(app_engine)}
    assert worker.error is None
