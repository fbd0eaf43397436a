"""Reading jobs with SQLAlchemy: columns, payloads, and rows that a worker takes away meanwhile."""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased
from sqlalchemy.orm.exc import ObjectDeletedError, StaleDataError

from proletarian_sa import ArchivedJob, Job, PayloadError, default_tables, events, process_next_job
from tests.observing import PATIENCE, Gate, Recorder, add, change
from tests.queue_contents import archived, queued, queued_ids, run_due


def test_columns_are_columns(queue_engine: sa.Engine):
    """Both models are queried like any other: columns, groups, filters, order, joins of aliases, single values."""
    for number, queue in enumerate(("mail", "mail", "report")):
        add(queue_engine, f"type {number}", number, queue=queue)
    run_due(queue_engine, queue="report")
    counts = sa.select(Job.queue, sa.func.count()).group_by(Job.queue)
    one, other = aliased(Job), aliased(Job)  # both: beside the plain table SQLAlchemy 2.0.38 gives an alias two names
    pairs = sa.select(one.job_type, other.job_type).join(other, (one.queue == other.queue) & (one.job_id != other.job_id))
    with Session(queue_engine) as session:
        assert [("mail", 2)] == [tuple(row) for row in session.execute(counts)]
        assert 1 == session.scalar(sa.select(Job.payload_text.cast(sa.Integer)).where(Job.job_type == "type 1"))
        assert {("type 0", "type 1"), ("type 1", "type 0")} == {tuple(row) for row in session.execute(pairs)}
        assert ["type 1", "type 0"] == list(session.scalars(sa.select(Job.job_type).order_by(Job.job_type.desc())))
        assert ["type 2"] == list(session.scalars(sa.select(ArchivedJob.job_type).where(ArchivedJob.status == "success")))
        assert [2] == [job.payload for job in session.scalars(sa.select(ArchivedJob).filter_by(queue="report"))]


def test_a_payload_is_decoded_when_it_is_asked_for(queue_engine: sa.Engine):
    """Each access decodes anew: the value can be changed without harm, and is the same after a commit and in the archive."""
    value = {"to": ["Ada"], 3: b"\0"}
    job_id = add(queue_engine, "tick", value)
    with Session(queue_engine) as session:
        job = session.get_one(Job, job_id)
        job.payload["to"].append("Eve")
        assert value == job.payload
        assert not session.dirty
        session.commit()
        assert value == job.payload
    run_due(queue_engine)
    with Session(queue_engine) as session:
        assert value == session.get_one(ArchivedJob, job_id).payload


def test_a_payload_that_cannot_be_decoded_can_be_read(queue_engine: sa.Engine):
    """A spoilt text is readable as `payload_text`, queryable, shown by no repr, and can be corrected; only decoding it fails."""
    job_id = add(queue_engine, "tick")
    change(queue_engine, job_id, payload='{"cut": "o')
    with Session(queue_engine) as session:
        (job,) = session.scalars(sa.select(Job).where(Job.payload_text.startswith('{"cut"')))
        assert '{"cut": "o' == job.payload_text
        assert "cut" not in repr(job)
        assert ("due", "tick") == (job.state, job.job_type)
        with pytest.raises(PayloadError):
            _ = job.payload
        job.payload_text = job.job_tables.encode({"cut": "off"})
        session.commit()

    assert [{"cut": "off"}] == [ran.payload for ran in run_due(queue_engine)]


SAYS = r"Job\.payload.*Job\.payload_text"


@pytest.mark.parametrize(
    ("query", "error"),
    [
        (lambda: sa.select(Job).where(Job.payload == {"to": 1}), TypeError),  # type: ignore[arg-type]
        (lambda: sa.select(Job).where(Job.payload != 1), TypeError),  # type: ignore[arg-type]
        (lambda: sa.select(Job).filter_by(payload=1), TypeError),
        (lambda: sa.select(ArchivedJob).where(ArchivedJob.payload.in_([1])), AttributeError),
        (lambda: sa.select(Job).where(Job.payload["to"] == 1), TypeError),
        (lambda: sa.select(Job).where(Job.payload > 1), TypeError),
        (lambda: sa.select(Job.payload), sa.exc.ArgumentError),
        (lambda: sa.select(Job).order_by(Job.payload), sa.exc.ArgumentError),
        (lambda: sa.select(aliased(Job).payload), sa.exc.ArgumentError),
    ],
)
def test_a_payload_in_a_query_is_an_error(query: Any, error: type[Exception]):
    """SQL knows no payloads: a query of them is refused, never silently empty, and the error names `payload_text`."""
    with pytest.raises(error, match=SAYS):
        query()


def test_a_payload_is_not_assigned():
    """Assigning a payload is refused with the line that does it, which works."""
    job = Job(job_type="tick", payload=1)
    with pytest.raises(AttributeError, match=r"job\.payload_text = job\.job_tables\.encode"):
        job.payload = 2
    assert 1 == job.payload
    job.payload_text = job.job_tables.encode(2)

    assert 2 == job.payload


def test_a_deleted_job_is_cancelled(queue_engine: sa.Engine):
    """`session.delete` of a queued job cancels it: nobody runs it, nothing of it stays, and a rollback takes that back."""
    first, second = add(queue_engine, "first"), add(queue_engine, "second")
    with Session(queue_engine) as session:
        session.delete(session.get_one(Job, first))
        session.commit()
        session.delete(session.get_one(Job, second))
        session.flush()
        session.rollback()
        assert None is session.get(Job, first)

    assert [second] == [job.job_id for job in run_due(queue_engine)]
    assert [second] == [row.job_id for row in archived(queue_engine)]


def test_a_job_that_is_deleted_while_it_runs(queue_engine: sa.Engine, work: Any):
    """A running job cannot be cancelled: its handler goes on, what it writes in `job.session` is rolled back, no archive has it."""
    gate = Gate()
    job_id = add(queue_engine)
    worker, recorder = work(gate)
    with worker:
        gate.begun.get(timeout=PATIENCE)
        with queue_engine.begin() as connection:
            assert 1 == connection.execute(sa.delete(Job).where(Job.job_id == job_id)).rowcount
        gate.open.set()
        lost = recorder.wait_for(events.JobLeaseLost)

    assert job_id == lost.job_id
    assert ([], []) == (queued(queue_engine), archived(queue_engine))


def test_cancelling_only_what_nobody_has_taken(queue_engine: sa.Engine):
    """A DELETE by id and `claimed_by IS NULL` says by its row count whether it came in time."""
    job_id = add(queue_engine)
    cancel = sa.delete(Job).where(Job.job_id == job_id, Job.claimed_by.is_(None))
    seen = []

    def handler(_job: Any) -> None:
        with queue_engine.begin() as connection:
            seen.append(connection.execute(cancel).rowcount)

    assert "succeeded" == process_next_job(queue_engine, handler, handler_mode="advanced").status
    assert [0] == seen
    again = add(queue_engine)
    with queue_engine.begin() as connection:
        assert 1 == connection.execute(sa.delete(Job).where(Job.job_id == again, Job.is_due)).rowcount


def run_meanwhile(engine: sa.Engine, session: Session) -> None:
    """Let a worker take all jobs away, and the session's next statement see it."""
    session.commit()
    assert run_due(engine)


def test_a_loaded_job_that_a_worker_has_archived(queue_engine: sa.Engine):
    """What was loaded stays readable; what must be loaded again raises; the id stays, and the archive has the job under it."""
    job_id = add(queue_engine, "tick")
    with Session(queue_engine, expire_on_commit=False) as session:
        job = session.get_one(Job, job_id)
        run_meanwhile(queue_engine, session)
        assert ("tick", job_id) == (job.job_type, job.job_id)
        with pytest.raises(sa.exc.InvalidRequestError, match="Could not refresh"):
            session.refresh(job)
        session.expire(job)
        with pytest.raises(ObjectDeletedError):
            _ = job.job_type
        assert job_id == job.job_id
        assert None is session.get(Job, job_id)
        assert "success" == session.get_one(ArchivedJob, job_id).status


def test_a_change_that_comes_too_late(queue_engine: sa.Engine):
    """Changing a loaded job that was archived meanwhile raises StaleDataError at the flush; deleting it warns, in vain."""
    add(queue_engine)
    with Session(queue_engine, expire_on_commit=False) as session:
        (job,) = session.scalars(sa.select(Job))
        run_meanwhile(queue_engine, session)
        job.queue = "other"
        with pytest.raises(StaleDataError):
            session.flush()
        session.rollback()
    add(queue_engine)
    with Session(queue_engine, expire_on_commit=False) as session:
        (job,) = session.scalars(sa.select(Job))
        run_meanwhile(queue_engine, session)
        session.delete(job)
        with pytest.warns(sa.exc.SAWarning, match="expected to delete 1 row"):
            session.flush()
        session.rollback()

    assert 2 == len(archived(queue_engine))


def test_a_change_beside_a_worker(queue_engine: sa.Engine):
    """A change of one column writes that column only: a claim made meanwhile holds."""
    job_id = add(queue_engine)
    recorder = Recorder()
    with Session(queue_engine) as session:
        job = session.get_one(Job, job_id)
        assert (None, 0) == (job.claimed_by, job.attempts)
        session.expire_on_commit = False
        session.commit()

        def handler(running: Any) -> None:
            job.process_at = running.process_at.replace(year=2100)
            session.commit()

        outcome = process_next_job(queue_engine, handler, handler_mode="advanced", on_event=recorder)

    assert "succeeded" == outcome.status
    assert set() == queued_ids(queue_engine)
    assert [2100] == [row.process_at.year for row in archived(queue_engine)]
    assert default_tables.Job is type(job)
