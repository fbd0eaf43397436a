"""Enqueueing and the application's transaction: what it decides, what is seen before, and what does not fit into one statement."""

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import Job, enqueue, enqueue_many, events
from tests.field_cases.watching import polls_of
from tests.helpers import scaled, wait_until
from tests.observing import PATIENCE
from tests.queue_contents import User, queued_ids

KIBIBYTE = 1024


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_an_eager_worker_sees_nothing_early(database, app_engine, work, journal):
    """Visible before commit: while the transaction that enqueued stays open an eager worker does not start the job.

    Open for ten of the worker's polls, not for five seconds.
    """
    if database.server and journal == "wal":
        pytest.skip("no journal modes")
    if not database.server:
        with app_engine.connect() as connection:
            assert journal == connection.exec_driver_sql(f"PRAGMA journal_mode={journal}").scalar()
    found = []
    engine = database.create_engine()
    polls = polls_of(engine)

    def handler(job):
        with Session(app_engine) as session:
            found.append(session.get(User, job.payload))

    worker, seen = work(handler, engine)
    worker.start()
    wait_until(lambda: len(polls) > 0, PATIENCE)
    with Session(app_engine) as session:
        session.add(User(id=1, name="Ada"))
        job_id = enqueue(session, "welcome", 1)
        session.flush()
        before = len(polls)
        wait_until(lambda: len(polls) >= before + 10, PATIENCE)
        early = seen.of(events.JobsClaimed) + seen.of(events.TransientErrorMet)
        session.commit()
    seen.wait_for(events.JobSucceeded, job_id=job_id)

    assert [] == early
    assert ["Ada"] == [user.name for user in found]


ENQUEUE = {
    "model": lambda session: session.add(Job(job_type="tick")),
    "session": lambda session: enqueue(session, "tick"),
    "connection": lambda session: enqueue(session.connection(), "tick"),
    "many": lambda session: enqueue_many(session, [{"job_type": "tick"}] * 3),
    "stream": lambda session: enqueue_many(session, iter([{"job_type": "tick"}] * 3)),
}


def test_enqueueing_ends_no_transaction(app_engine):
    """Rollback and nesting: enqueueing neither commits nor rolls back, in a savepoint or out of it: the application decides."""
    ends = []
    for name in ("commit", "rollback"):
        sa.event.listen(app_engine, name, lambda _connection, name=name: ends.append(name))
    for way in ENQUEUE.values():
        with Session(app_engine) as session:
            session.add(User(id=1, name="before"))
            session.flush()
            transaction = session.get_transaction()
            way(session)
            with session.begin_nested():
                way(session)
                session.flush()
            session.add(User(id=2, name="after"))
            session.flush()
            assert (transaction, True, []) == (session.get_transaction(), transaction.is_active, ends)
            assert session.scalar(sa.select(sa.func.count()).select_from(Job)) in (2, 6)
            session.rollback()
            assert ["rollback"] == ends
            assert 0 == session.scalar(sa.select(sa.func.count()).select_from(User))
            session.rollback()
            ends.clear()

    assert set() == queued_ids(app_engine)


@pytest.mark.parametrize("as_iterator", [False, True], ids=["sequence", "iterator"])
def test_large_payloads_in_bulk(app_engine, as_iterator):
    """Bulk enqueue: a hundred payloads of 100 KiB go in one call and one transaction, in statements that a server takes, in order.

    Ten MiB, not five hundred.
    """
    count, size = scaled(100), 100 * KIBIBYTE
    sent = []

    def note(_connection, _cursor, _statement, parameters, _context, executemany):
        sent.append(sum(len(str(value)) for row in (parameters if executemany else [parameters]) for value in texts(row)))

    sa.event.listen(app_engine, "before_cursor_execute", note)
    rows = ({"job_type": "tick", "payload": f"{number:05}" + "x" * size} for number in range(count))
    with Session(app_engine) as session:
        answer = enqueue_many(session, rows if as_iterator else list(rows))
        session.commit()
    sent_by_enqueue = list(sent)
    with app_engine.connect() as connection:
        start = sa.func.substr(Job.payload_text, 2, 5)
        stored = connection.execute(sa.select(Job.job_id, start, sa.func.length(Job.payload_text)).order_by(Job.process_at)).all()

    assert count == (answer if as_iterator else len(answer))
    assert [f"{number:05}" for number in range(count)] == [number for _, number, _ in stored]
    assert {size + 7} == {length for _, _, length in stored}
    assert as_iterator or answer == [job_id for job_id, _, _ in stored]
    assert max(sent_by_enqueue) <= 2 * KIBIBYTE**2


def texts(row):
    """Return the values of a row of parameters."""
    return row.values() if isinstance(row, dict) else row


def test_a_bad_payload_in_the_middle(app_engine):
    """Bulk enqueue: one payload that cannot be stored fails before the first insert, and the session goes on."""
    sent = []
    rows = [{"job_type": "tick", "payload": "x" * KIBIBYTE} for _ in range(scaled(2000))]
    rows.insert(len(rows) // 2, {"job_type": "tick", "payload": object()})
    sa.event.listen(app_engine, "before_cursor_execute", lambda *arguments: sent.append(arguments[2]))
    with Session(app_engine) as session:
        with pytest.raises(TypeError, match=rf"^rows\[{len(rows) // 2}\]: "):
            enqueue_many(session, rows)
        assert [] == sent
        kept = enqueue(session, "kept")
        session.commit()

    assert {kept} == queued_ids(app_engine)
