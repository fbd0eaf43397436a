"""What each stop leaves behind: wherever a worker is when it is asked to stop, and whichever way it claims.

After each of them every job is in exactly one of the two tables, and one that is back in the queue belongs to nobody.
"""

import datetime as dt
import queue
import signal
import threading
import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import JobInterrupted, RetryStrategy, backoff, default_tables, events, process_next_job
from tests.observing import PATIENCE, Gate, Recorder, Spoken, add
from tests.queue_contents import User, left, queued

pytestmark = pytest.mark.long

NOW = dt.datetime.now(dt.UTC)
FREE = (0, None, None, None)  # attempts, claimed_by, lease_until, crashes: as it was enqueued


@pytest.fixture
def make(claim, work):
    """Return what makes a worker of either claim, not started, and the recorder of its events."""
    return work


@pytest.fixture
def watched(database, queue_engine):
    """Return an engine for the worker alone, and what its threads say."""
    engine = database.create_engine()
    return engine, Spoken(engine)


def names(engine):
    """Return what handlers have written."""
    with Session(engine) as session:
        return list(session.scalars(sa.select(User.name)))


# Without a job


def test_idle(queue_engine, make, watched):
    """A worker that waits for its next poll stops at once; a job that came meanwhile, of which nobody told it, is untouched."""
    engine, statements = watched
    worker, seen = make(lambda _job: None, engine, polling_interval=3600)
    worker.start()
    statements.wait_for_a_poll()
    row = {"job_id": uuid.uuid4(), "queue": "default", "job_type": "work", "payload": "null", "attempts": 0}
    with queue_engine.begin() as connection:
        connection.execute(sa.insert(default_tables.job), row | dict.fromkeys(["enqueued_at", "process_at"], NOW))

    assert [] == worker.stop(PATIENCE)
    assert not worker.is_running
    assert ([FREE], []) == left(queue_engine)
    assert 0 == engine.pool.checkedout()
    assert ["WorkerStarted", "WorkerStopping", "WorkerStopped"] == seen.names()


def test_polling(queue_engine, make, watched):
    """A claim that is on its way when the stop comes is put back: nothing has begun, no attempt is counted."""
    engine, statements = watched
    add(queue_engine)
    statements.hold = lambda statement: "process_at" in statement
    worker, seen = make(lambda _job: None, engine)
    worker.start()
    assert statements.arrived.wait(PATIENCE)
    assert [] == worker.stop(0)
    statements.go.set()
    assert worker.join(PATIENCE)

    assert ([FREE], []) == left(queue_engine)
    assert [] == seen.of(events.JobStarted)


def test_between_claim_and_handler(queue_engine, make):
    """Jobs that were claimed and not begun are put back as they were."""
    claimed, go, seen = threading.Event(), threading.Event(), Recorder()

    def sink(event):
        seen(event)
        if isinstance(event, events.JobsClaimed):
            claimed.set()
            assert go.wait(PATIENCE)

    add(queue_engine)
    worker, _ = make(lambda _job: None, on_event=sink)
    worker.start()
    assert claimed.wait(PATIENCE)
    assert [] == worker.stop(0)
    go.set()
    assert worker.join(PATIENCE)

    assert ([FREE], []) == left(queue_engine)
    assert [] == seen.of(events.JobStarted)


# In the handler

ENDS = {
    "returns": (None, None, [], [("success", 1)], ["written"]),
    "is interrupted": (JobInterrupted, RetryStrategy(retries=1), [FREE], [], []),
    "raises, retries are left": (ValueError, RetryStrategy(retries=1, delays=[60]), [(1, None, None, None)], [], []),
    "raises, none is left": (ValueError, None, [], [("failure", 1)], []),
}


@pytest.mark.parametrize("end", ENDS)
def test_in_the_handler(app_engine, make, end):
    """`stop!`: it is asked to stop, and waited for. Only JobInterrupted gives the attempt back; other exceptions are failures."""
    exception, retry, waiting, done, written = ENDS[end]
    begun = threading.Event()

    def handler(job):
        job.session.add(User(name="written"))
        job.session.flush()
        begun.set()
        assert job.wait(PATIENCE)
        if exception is not None:
            raise exception

    add(app_engine)
    (before,) = queued(app_engine)
    worker, seen = make(handler, retry=retry)
    worker.start()
    assert begun.wait(PATIENCE)

    assert [] == worker.stop(PATIENCE)
    assert (waiting, done) == left(app_engine)
    assert written == names(app_engine)
    assert [1] == [event.running for event in seen.of(events.WorkerStopping)]
    if waiting == [FREE]:
        assert before.process_at == queued(app_engine)[0].process_at


def test_in_a_handler_that_ignores_it(queue_engine, make):
    """After the time it is returned, still ours and nobody else's; a second stop waits for it, and it is recorded as ever."""
    gate = Gate()
    worker, seen = make(gate)
    job_id = add(queue_engine)
    worker.start()
    job = gate.begun.get(timeout=PATIENCE)

    assert [job_id] == [one.job_id for one in worker.stop(0.01)]
    assert job.stopping
    assert worker.is_running
    assert None is process_next_job(queue_engine, lambda *_: None)
    assert 1 == len(queued(queue_engine))
    gate.open.set()
    assert [] == worker.stop(PATIENCE)
    assert not worker.is_running
    assert ([], [("success", 1)]) == left(queue_engine)
    assert [1, 0] == [event.running for event in seen.of(events.WorkerStopped)]


def test_by_a_signal(queue_engine, make, request):
    """A signal leaves behind what `stop` does."""

    def handler(job):
        begun.set()
        assert job.wait(PATIENCE)
        raise JobInterrupted

    begun, calls = threading.Event(), []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: calls.append(number))
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))
    worker, _ = make(handler, install_signal_handlers=True)
    add(queue_engine)
    worker.start()
    assert begun.wait(PATIENCE)
    signal.raise_signal(signal.SIGTERM)
    assert worker.join(PATIENCE)
    worker.stop()

    assert ([FREE], []) == left(queue_engine)
    assert [signal.SIGTERM] == calls


# In the finish

FINISHES = {
    "success": (None, None, "archived_job", [], [("success", 1)]),
    "failure": (ValueError, None, "archived_job", [], [("failure", 1)]),
    "retry": (ValueError, RetryStrategy(retries=1, delays=[60]), "last_error", [(1, None, None, None)], []),
}


@pytest.mark.parametrize("outcome", FINISHES)
def test_in_the_finish(queue_engine, make, watched, outcome):
    """An outcome that is on its way into the database gets there, once, before the worker has stopped."""
    exception, retry, part, waiting, done = FINISHES[outcome]
    engine, statements = watched
    returned = threading.Event()

    def handler(_job):
        returned.set()
        if exception is not None:
            raise exception

    add(queue_engine)
    statements.hold = lambda statement: returned.is_set() and part in statement and not statement.startswith("SELECT")
    worker, _ = make(handler, engine, retry=retry)
    worker.start()
    assert statements.arrived.wait(PATIENCE)
    worker.stop(0)
    assert worker.is_running
    statements.go.set()

    assert worker.join(PATIENCE)
    assert (waiting, done) == left(queue_engine)


# In the back-off


def test_in_the_back_off_of_the_claim(queue_engine, make, watched, monkeypatch):
    """A worker that waits for its database does not wait for the end of that, and touches nothing more."""
    engine, statements = watched
    monkeypatch.setattr(backoff, "FIRST", 3600.0)
    statements.fail = lambda statement: "process_at" in statement
    worker, seen = make(lambda _job: None, engine)
    add(queue_engine)
    worker.start()
    assert seen.wait_for(events.TransientErrorMet).retry_in.total_seconds() > 10

    assert [] == worker.stop(PATIENCE)
    assert not worker.is_running
    assert ([FREE], []) == left(queue_engine)


def test_in_the_back_off_of_the_finish(queue_engine, make, watched):
    """An outcome that the database could not take yet is kept, ours, and stored when the database is back."""
    engine, statements = watched
    returned = threading.Event()
    statements.fail = lambda statement: returned.is_set() and "archived_job" in statement
    worker, seen = make(lambda _job: returned.set(), engine)
    add(queue_engine)
    worker.start()
    seen.wait_for(events.TransientErrorMet)
    worker.stop(0.01)
    assert worker.is_running
    assert 1 == len(queued(queue_engine))
    statements.fail = lambda _statement: False

    assert worker.join(PATIENCE)
    assert ([], [("success", 1)]) == left(queue_engine)


# Start and stop


def test_during_the_start(queue_engine, make, watched):
    """A stop while another thread is in `start`, connecting, wins: the worker does not go on running behind its back."""
    engine, statements = watched
    worker, seen = make(lambda _job: None, engine, polling_interval=3600)
    statements.hold = lambda _statement: True
    starting = threading.Thread(target=worker.start)
    starting.start()
    assert statements.arrived.wait(PATIENCE)

    assert [] == worker.stop()
    add(queue_engine)
    statements.go.set()
    starting.join(PATIENCE)
    assert worker.join(PATIENCE)
    assert not worker.is_running
    assert ([FREE], []) == left(queue_engine)
    assert [] == seen.of(events.JobStarted)


def test_twice_at_the_same_time(queue_engine, make):
    """Stops from several threads are one stop: all return the same, once that is so."""
    gate, returned = Gate(), queue.Queue()
    worker, seen = make(gate)
    add(queue_engine)
    worker.start()
    gate.begun.get(timeout=PATIENCE)
    stops = [threading.Thread(target=lambda: returned.put(worker.stop(PATIENCE))) for _ in range(3)]
    for thread in stops:
        thread.start()
    seen.wait_for(events.WorkerStopping)
    gate.open.set()

    assert [[], [], []] == [returned.get(timeout=PATIENCE) for _ in stops]
    assert 1 == len(seen.of(events.WorkerStopping))
    assert [0] == [event.running for event in seen.of(events.WorkerStopped)]
    assert ([], [("success", 1)]) == left(queue_engine)


def test_start_after_a_stop(queue_engine, make):
    """The same worker goes on with what it has put back, as a first attempt."""
    begun = queue.Queue()

    def handler(job):
        begun.put(job.attempts)
        if begun.qsize() == 1:
            assert job.wait(PATIENCE)
            raise JobInterrupted

    worker, seen = make(handler)
    add(queue_engine)
    worker.start()
    while not begun.qsize():
        assert worker.is_running
    assert [] == worker.stop(PATIENCE)
    assert ([FREE], []) == left(queue_engine)
    worker.start()
    seen.wait_for(events.JobSucceeded)

    assert [1, 1] == [begun.get(), begun.get()]
    assert [] == worker.stop(PATIENCE)
    assert ([], [("success", 1)]) == left(queue_engine)


def test_start_while_it_is_still_stopping(queue_engine, make):
    """A start that could only be forgotten is refused, and says what to wait for; then it works."""
    gate = Gate()
    worker, seen = make(gate)
    add(queue_engine)
    worker.start()
    gate.begun.get(timeout=PATIENCE)
    worker.stop(0)

    with pytest.raises(RuntimeError, match=r"^The worker is still stopping: 1 of its handlers have not returned\. Wait for them"):
        worker.start()
    gate.open.set()
    assert worker.join(PATIENCE)
    worker.start()
    add(queue_engine)
    seen.wait_for(events.JobSucceeded, count=2)


def test_start_twice(queue_engine, make):
    """A second start does nothing: one stop ends it all. Nor does a stop before the first one, which is not held against it."""
    worker, seen = make(lambda _job: None)
    assert [] == worker.stop()
    worker.start()
    worker.start()
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)

    assert worker.is_running
    assert [] == worker.stop(PATIENCE)
    assert not worker.is_running
    assert 1 == len(seen.of(events.WorkerStarted))
    assert ([], [("success", 1)]) == left(queue_engine)
