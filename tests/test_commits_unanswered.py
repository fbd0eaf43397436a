"""Commits that fail, or whose answer is lost, where what follows must not mistake the one for the other."""

import pytest
import sqlalchemy as sa

from proletarian_sa import events
from proletarian_sa.finish import Recorder as Finisher
from proletarian_sa.finish import Recording
from proletarian_sa.own_connection import OwnConnection
from proletarian_sa.run import Decision
from proletarian_sa.runtime import build_runtime, prepare
from proletarian_sa.step import claim_leased
from tests.observing import Recorder, add
from tests.queue_contents import User, archived, queued
from tests.queue_workers import Faults


def new_runtime(engine, sink, **options):
    """Return a worker's runtime."""
    return prepare(build_runtime(engine, lambda *_: None, on_event=sink, **{"queue": "default"} | options))


def test_what_restores_settings_does_not_commit_what_failed_to_commit(app_engine):
    """A transaction whose commit failed before it reached the database stays undone when the connection is given back."""

    def restore(connection, _before):
        connection.execute(sa.select(1))
        connection.commit()

    own, faults = OwnConnection(app_engine, settle=lambda _connection: True, restore=restore), Faults(app_engine)
    own.begin()
    with faults.at("refused"), pytest.raises(sa.exc.OperationalError, match="injected"), own.transaction() as connection:
        connection.execute(sa.insert(User).values(name="undone"))

    assert own.commit_failed
    assert 0 == app_engine.pool.checkedout()
    with app_engine.connect() as connection:
        assert [] == list(connection.scalars(sa.select(User.name)))


def test_a_failure_whose_recording_was_not_answered_is_told_as_a_failure(queue_engine):
    """The handler's commit is uncertain, the job then archived as failure and the answer to that lost: it is no success."""
    seen, faults = Recorder(), Faults(queue_engine)
    runtime = new_runtime(queue_engine, seen)
    add(queue_engine)
    own, finisher = OwnConnection(runtime.engine), Finisher(runtime)
    (claimed,) = claim_leased(runtime, own, limit=1)
    own.close()
    recording = Recording(Decision(claimed=claimed, verdict="failure", exception=LookupError("the reason"), uncertain=True))
    finisher._own.begin()
    with faults.at("unanswered, outage"):
        assert [recording] == finisher.record([recording])
    assert [] == finisher.record([recording])
    finisher.close()

    assert ["failure"] == [row.status for row in archived(queue_engine)]
    assert "failed" == recording.outcome.status
    assert isinstance(recording.outcome.exception, LookupError)
    assert 1 == len(seen.of(events.JobFailed))
    assert [] == seen.of(events.JobSucceeded)


def test_what_was_claimed_is_kept_when_the_claim_of_the_next_queue_fails(queue_engine):
    """Jobs of the first queue, whose claim was committed, are returned: forgotten, they would lapse and count as crashed."""
    seen, faults = Recorder(), Faults(queue_engine)
    runtime = new_runtime(queue_engine, seen, queue=["first", "second"])
    for queue in runtime.queues:
        add(queue_engine, queue=queue)
    own = OwnConnection(runtime.engine)
    with faults.at("unanswered", commit=2):
        claimed = claim_leased(runtime, own, limit=4)
    own.close()

    assert faults.struck
    assert ["first"] == [job.queue for job in claimed]
    assert 1 == len(seen.of(events.TransientErrorMet))
    assert 2 == len(queued(queue_engine))
