"""`failed_job` when what it wrote is committed: hooks, constraints, refusals and answers that are lost."""

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import sessionmaker

from proletarian_sa import events
from tests.queue_contents import User, archived, left
from tests.test_failed_job import assert_archived_all_the_same, names, run
from tests.test_job_session_lost import AnswerLost, KilledBeforeCommit

pytestmark = pytest.mark.usefixtures("claim")


@pytest.mark.parametrize("hook", ["before_commit", "after_commit", "after_flush"])
def test_a_hook_of_the_session_that_raises(app_engine, hook):
    """The application's hooks run in it too: one that raises before the COMMIT undoes the writes; it is told."""
    maker = sessionmaker(app_engine)

    @sa.event.listens_for(maker, hook)
    def refuse(*_arguments):
        raise PermissionError("not today")

    def callback(job, _exception):
        job.session.add(User(id=1, name="told"))

    outcome, seen = run(app_engine, callback, session_factory=maker)

    assert "failed" == outcome.status
    assert_archived_all_the_same(app_engine, seen, PermissionError, ["told"] if hook == "after_commit" else [])


def test_hooks_of_the_session_see_the_commit(app_engine):
    """`after_commit` runs once, when both the writes and the archive row are there for everybody."""
    maker = sessionmaker(app_engine)
    calls = []

    @sa.event.listens_for(maker, "after_commit")
    def committed(_session):
        calls.append((names(app_engine), len(archived(app_engine))))

    run(app_engine, lambda job, _exception: job.session.add(User(id=1, name="told")), session_factory=maker)

    assert [(["told"], 1)] == calls


def test_a_constraint_that_refuses_at_the_end(database, app_engine):
    """A deferred constraint of the callback's writes is its failure, not the job's."""
    database.require("transactional_ddl")
    if app_engine.dialect.name != "postgresql":
        pytest.skip("no deferred constraints")
    with app_engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE note (id int PRIMARY KEY, about int REFERENCES users (id) DEFERRABLE INITIALLY DEFERRED)"
        )
    outcome, seen = run(app_engine, lambda job, _exception: job.session.execute(sa.text("INSERT INTO note VALUES (1, 99)")))

    assert "failed" == outcome.status
    assert_archived_all_the_same(app_engine, seen, exc.IntegrityError)


def test_a_commit_that_is_refused(database, app_engine):
    """What only the COMMIT itself refuses, as a deferred trigger does that was told so late: archived all the same."""
    database.require("transactional_ddl")
    if app_engine.dialect.name != "postgresql":
        pytest.skip("no deferred constraints")
    with app_engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF NEW.name = 'told' THEN SET CONSTRAINTS ALL DEFERRED; UPDATE users SET name = 'late' WHERE id = NEW.id; "
            "ELSE RAISE EXCEPTION 'refused' USING ERRCODE = '23514'; END IF; RETURN NULL; END $$"
        )
        connection.exec_driver_sql(
            "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON users DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    outcome, seen = run(app_engine, lambda job, _exception: job.session.add(User(id=1, name="told")))

    assert "failed" == outcome.status
    assert_archived_all_the_same(app_engine, seen, exc.DBAPIError)


def test_the_answer_to_the_commit_is_lost(app_engine):
    """The commit has happened: it is not called again, and the job has failed."""
    calls = []

    def callback(job, _exception):
        calls.append(job.job_id)
        job.session.add(User(id=1, name="told"))

    outcome, seen = run(app_engine, callback, session_factory=lambda: AnswerLost(app_engine))

    assert ("failed", 1, ["told"]) == (outcome.status, len(calls), names(app_engine))
    assert ([], [("failure", 1)]) == left(app_engine)
    assert 1 == len(seen.of(events.JobFailed))


def test_a_commit_that_never_happens(database, app_engine):
    """The connection is lost before each COMMIT: called a few times, then the job is archived without it."""
    database.require("server")
    calls = []

    def callback(job, _exception):
        calls.append(job.job_id)
        job.session.add(User(id=1, name="told"))

    outcome, seen = run(app_engine, callback, session_factory=lambda: KilledBeforeCommit(app_engine))

    assert ("failed", 3) == (outcome.status, len(calls))
    assert_archived_all_the_same(app_engine, seen, TimeoutError)
