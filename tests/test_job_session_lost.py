"""`job.session` when the database ends its transaction: no verdict on the job, and never a success without its effects."""

import threading

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from proletarian_sa import JobInterrupted, RetryStrategy, TransactionLost, default_tables, events
from tests.claims import process_next_job
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add, change, claim, end_session, is_waiting, lapse, session_id
from tests.queue_contents import User, archived, queued

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("claim")]

HEAVY = 60
"""Rows that the rival has written: the database ends the lighter transaction, the handler's."""


def names(engine):
    """Return what was committed, but for what the rival of a deadlock wrote."""
    with engine.connect() as connection:
        return sorted(connection.scalars(sa.select(User.name).where(User.name.not_like("rival%"))))


def run_again(engine, handler, **options):
    """Run the one job there is now, without waiting until it is due again."""
    (row,) = queued(engine)
    change(engine, row.job_id, process_at=row.enqueued_at)
    return process_next_job(engine, handler, handler_mode="advanced", **options)


class Rival:
    """A transaction that holds row 2 and wants row 1: a handler that holds row 1 and wants row 2 is ended by the database."""

    def __init__(self, engine):
        self.engine = engine
        with Session(engine) as session, session.begin():
            session.add_all([User(id=1, name="rival 1"), User(id=2, name="rival 2")])
        self.connection = engine.connect()
        self.postgresql = engine.dialect.name == "postgresql"
        if self.postgresql:  # who waits for longer than this looks for a deadlock, and ends itself
            self.connection.exec_driver_sql("SET deadlock_timeout = '1h'")
        self.number = session_id(self.connection)
        self.connection.execute(sa.insert(User), [{"id": 1000 + number, "name": "rival"} for number in range(HEAVY)])
        self.connection.execute(sa.update(User).where(User.id == 2).values(name="rival took 2"))
        self.thread = threading.Thread(target=self._want_row_1)

    def _want_row_1(self):
        with self.connection:
            self.connection.execute(sa.update(User).where(User.id == 1).values(name="rival took 1"))
            self.connection.commit()

    def is_waiting(self):
        return is_waiting(self.engine, self.number)

    def collide(self, session):
        """Take row 1, let the rival wait for it, and want row 2: raises the database's verdict."""
        if self.postgresql:
            session.execute(sa.text("SET LOCAL deadlock_timeout = '10ms'"))
        session.execute(sa.update(User).where(User.id == 1).values(name="mine"))
        self.thread.start()
        wait_until(self.is_waiting, PATIENCE)
        session.execute(sa.update(User).where(User.id == 2).values(name="mine"))


def deadlock(rival, session):
    """Deadlock with Core statements."""
    rival.collide(session)


def deadlock_inside_a_savepoint(rival, session):
    """Deadlock inside the handler's own `begin_nested`, of which the savepoint is gone on the MySQL family."""
    with session.begin_nested():
        session.execute(sa.insert(User).values(id=5, name="inside"))
        rival.collide(session)


def deadlock_in_a_flush(rival, session):
    """Deadlock in the flush of an object."""
    user = session.get_one(User, 2)
    if rival.postgresql:
        session.execute(sa.text("SET LOCAL deadlock_timeout = '10ms'"))
    session.execute(sa.update(User).where(User.id == 1).values(name="mine"))
    rival.thread.start()
    wait_until(rival.is_waiting, PATIENCE)
    user.name = "mine"
    session.flush()


@pytest.mark.parametrize("swallowed", [False, True], ids=["travels", "swallowed"])
@pytest.mark.parametrize("collide", [deadlock, deadlock_inside_a_savepoint, deadlock_in_a_flush])
def test_a_deadlock_in_the_handler(database, app_engine, collide, swallowed):
    """Deadlock, inside a savepoint too: whether it travels or is swallowed, the job runs again, without retries too."""
    database.require("row_locks")
    rival, seen = Rival(app_engine), Recorder()
    add(app_engine)

    def handler(job):
        session = job.session
        session.execute(sa.insert(User).values(id=3, name="before"))
        if job.attempts == 1:
            try:
                collide(rival, session)
            except exc.SQLAlchemyError:
                if not swallowed:
                    raise
            try:
                session.execute(sa.insert(User).values(id=4, name="after"))
            except exc.SQLAlchemyError:
                if not swallowed:
                    raise

    outcome = process_next_job(app_engine, handler, handler_mode="advanced", on_event=seen)
    rival.thread.join(PATIENCE)

    if outcome.status == "succeeded":  # PostgreSQL has taken back the handler's own savepoint only
        assert (True, deadlock_inside_a_savepoint, "postgresql") == (swallowed, collide, app_engine.dialect.name)
        assert ["after", "before"] == names(app_engine)
        return
    assert "retrying" == outcome.status, outcome.exception
    assert [] == names(app_engine)
    assert 1 == len(seen.of(events.JobTransactionDied))
    assert [] == seen.of(events.JobAttemptFailed)
    assert "succeeded" == run_again(app_engine, handler).status
    assert ["before"] == names(app_engine)


def test_ddl_in_the_handler(app_engine):
    """Where DDL commits, what went before it may be there without the rest: the job is not done and says why, loudly."""
    seen = Recorder()
    add(app_engine)

    def handler(job):
        job.session.execute(sa.insert(User).values(id=3, name="before"))
        job.session.execute(sa.text("CREATE TABLE made_by_handler (id integer PRIMARY KEY)"))
        job.session.execute(sa.insert(User).values(id=4, name="after"))

    outcome = process_next_job(app_engine, handler, handler_mode="advanced", on_event=seen)

    if app_engine.dialect.name in ("postgresql", "sqlite"):
        assert ("succeeded", ["after", "before"]) == (outcome.status, names(app_engine))
        return
    assert "retrying" == outcome.status
    assert isinstance(outcome.exception, TransactionLost)
    assert "keep DDL out of job.session" in str(outcome.exception)
    assert ["before"] == names(app_engine)
    assert 1 == len(seen.of(events.JobTransactionDied))
    assert [] == archived(app_engine)


@pytest.mark.parametrize("swallowed", [False, True], ids=["travels", "swallowed"])
def test_a_connection_killed_in_the_handler(database, app_engine, swallowed):
    """Lost connection: nothing stays of that run, the job runs again, and the next transaction is a good one."""
    database.require("server")
    seen = Recorder()
    add(app_engine)

    def handler(job):
        session = job.session
        session.execute(sa.insert(User).values(id=3, name="before"))
        if job.attempts == 1:
            end_session(app_engine, session_id(session.connection()))
            for number in (4, 5):
                try:
                    session.execute(sa.insert(User).values(id=number, name="after"))
                except exc.SQLAlchemyError:
                    if not swallowed:
                        raise

    outcome = process_next_job(app_engine, handler, handler_mode="advanced", on_event=seen)

    assert "retrying" == outcome.status, outcome.exception
    assert [] == names(app_engine)
    assert 1 == len(seen.of(events.JobTransactionDied))
    assert 0 == app_engine.pool.checkedout()
    assert "succeeded" == run_again(app_engine, handler).status
    assert ["before"] == names(app_engine)


@pytest.mark.parametrize("moment", ["before the first statement", "after the last statement"])
def test_a_connection_killed_around_the_handler(database, app_engine, moment):
    """Lost connection: killed before the handler's first statement, or after its last."""
    database.require("server")
    add(app_engine)

    def handler(job):
        number = session_id(job.session.connection())
        if job.attempts == 1 and moment == "before the first statement":
            end_session(app_engine, number)
        job.session.add(User(id=3, name="effect"))
        if job.attempts == 1 and moment == "after the last statement":
            job.session.flush()
            end_session(app_engine, number)

    outcome = process_next_job(app_engine, handler, handler_mode="advanced")

    assert ("retrying", []) == (outcome.status, names(app_engine))
    assert "succeeded" == run_again(app_engine, handler).status
    assert ["effect"] == names(app_engine)


class KilledBeforeCommit(Session):
    """The connection is killed between the archiving and the COMMIT."""

    def commit(self):
        number = session_id(self.connection())
        sa.event.listen(self.connection(), "commit", lambda _connection: end_session(self.get_bind().engine, number))
        super().commit()


class AnswerLost(Session):
    """The COMMIT is done, and its answer is lost."""

    def commit(self):
        super().commit()
        raise exc.OperationalError("COMMIT", {}, ConnectionError("reset by peer"), connection_invalidated=True)


def test_a_commit_that_did_not_happen(database, app_engine):
    """Job done but not recorded, connection closed before COMMIT: nothing is there, and the job runs again."""
    database.require("server")
    seen = Recorder()
    add(app_engine)

    def handler(job):
        job.session.add(User(id=3, name="effect"))

    outcome = process_next_job(
        app_engine, handler, handler_mode="advanced", session_factory=lambda: KilledBeforeCommit(app_engine), on_event=seen
    )

    assert ("retrying", []) == (outcome.status, names(app_engine))
    assert 1 == len(seen.of(events.JobTransactionDied))
    assert "succeeded" == run_again(app_engine, handler).status
    assert ["effect"] == names(app_engine)


def test_commits_that_never_happen_are_bounded(database, app_engine):
    """A job whose transaction the database ends each time has an end, beyond its strategy's: it is archived as failure."""
    database.require("server")
    options = {"handler_mode": "advanced", "session_factory": lambda: KilledBeforeCommit(app_engine)}
    for attempts, expected in ((9, "retrying"), (10, "failed")):
        change(app_engine, add(app_engine), attempts=attempts)

        assert expected == process_next_job(app_engine, lambda job: job.session, **options).status


@pytest.mark.parametrize("retries", [0, 5])
def test_a_commit_of_which_the_answer_was_lost(app_engine, retries):
    """Job done, answer lost: the commit has happened, so the outcome is a success, and the same claim never repeats its effects."""
    seen = Recorder()
    add(app_engine)
    outcome = process_next_job(
        app_engine,
        lambda job: job.session.add(User(id=3, name="effect")),
        handler_mode="advanced",
        retry=RetryStrategy(retries=retries),
        session_factory=lambda: AnswerLost(app_engine),
        on_event=seen,
    )

    assert "succeeded" == outcome.status
    assert ["JobsClaimed", "JobStarted", "JobSucceeded"] == seen.names()
    assert ["success"] == [row.status for row in archived(app_engine)]
    assert ["effect"] == names(app_engine)
    assert process_next_job(app_engine, lambda job: None, handler_mode="advanced") is None


def steal(engine, job_id):
    """Let the lease lapse and claim the job as another worker does."""
    lapse(engine, job_id)
    assert [job_id] == [job.job_id for job in claim(engine, "thief")]


@pytest.mark.leased
def test_nothing_survives_a_lost_lease(database, app_engine):
    """Another worker has claimed the job while its handler ran: nothing that this one wrote remains, and it may not finish."""
    database.require("row_locks")  # else the handler's transaction would keep everybody out
    seen = Recorder()
    job_id = add(app_engine)

    def handler(job):
        job.session.add(User(id=3, name="effect"))
        job.session.flush()
        steal(app_engine, job_id)

    outcome = process_next_job(app_engine, handler, handler_mode="advanced", on_event=seen)

    (row,) = queued(app_engine)
    assert "lost" == outcome.status
    assert ([], []) == (names(app_engine), archived(app_engine))
    assert ("thief", 1, 1) == (row.claimed_by, row.attempts, row.crashes)
    assert 1 == len(seen.of(events.JobLeaseLost, handler_finished=True))
    assert [] == seen.of(events.JobSucceeded)


@pytest.mark.leased
def test_a_session_opened_after_the_lease_was_lost(app_engine):
    """`job.session` of a job that belongs to somebody else writes nothing that remains."""
    job_id = add(app_engine)

    def handler(job):
        steal(app_engine, job_id)
        job.session.add(User(id=3, name="effect"))

    outcome = process_next_job(app_engine, handler, handler_mode="advanced")

    assert ("lost", []) == (outcome.status, names(app_engine))
    assert ["thief"] == [row.claimed_by for row in queued(app_engine)]


@pytest.mark.leased
@pytest.mark.parametrize("end", ["failed", "retrying", "interrupted"])
def test_a_late_failure_is_refused_too(app_engine, end):
    """A run that lost its lease and then fails changes nothing of the job that another worker runs."""
    job_id = add(app_engine)

    def handler(_job):
        steal(app_engine, job_id)
        raise JobInterrupted if end == "interrupted" else ValueError

    retry = RetryStrategy(retries=int(end == "retrying"))
    outcome = process_next_job(app_engine, handler, handler_mode="advanced", retry=retry)

    (row,) = queued(app_engine)
    assert ("lost", "thief", 1, None) == (outcome.status, row.claimed_by, row.attempts, row.last_error)


def test_a_job_row_locked_by_its_own_handler(database, app_engine):
    """Row changed from outside: a handler that touches its own job's row through `job.session` does not stand in its own way."""
    job_id = add(app_engine)
    table = default_tables.job

    def handler(job):
        job.session.execute(sa.update(table).where(table.c.job_id == job_id).values(headers="{}"))
        job.session.add(User(id=3, name="effect"))

    assert "succeeded" == process_next_job(app_engine, handler, handler_mode="advanced").status
    assert ["{}"] == [row.headers for row in archived(app_engine)]


@pytest.mark.parametrize("claim", ["leased", "held"])
def test_an_outage_right_after_the_commit(database, app_engine, claim):
    """Lost connection: what `job.session` has committed with its job is told as success without asking the database again."""
    if claim == "held":
        database.require("row_locks")
    add(app_engine)
    is_away = []

    class AppSession(Session):
        """Its database is away once it has committed."""

    def refuse_connections(*_):
        if is_away:
            raise AssertionError("connected once more")

    sa.event.listen(AppSession, "after_commit", is_away.append)
    sa.event.listen(app_engine, "checkout", refuse_connections)
    outcome = process_next_job(
        app_engine,
        lambda job: job.session.add(User(name="effect")),
        handler_mode="advanced",
        claim=claim,
        session_factory=lambda: AppSession(app_engine),
    )

    assert "succeeded" == outcome.status
    assert 1 == len(is_away)
