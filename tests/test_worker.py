"""`QueueWorker`: start, run, stop, and what it leaves behind."""

import contextvars
import decimal
import os
import queue
import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import JobRegistry, QueueWorker, TablesMissing, default_tables, enqueue_many, events
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, add
from tests.queue_contents import archived, queued

pytestmark = pytest.mark.usefixtures("claim")


def worker_threads():
    """Return the names of the threads of workers that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("proletarian[")]


def test_start_and_stop(queue_engine, work):
    """Started, it runs jobs until it is stopped; then its threads are gone and its connections are back."""
    worker, seen = work(lambda *_: None)
    assert not worker.is_running

    worker.start()
    assert worker.is_running
    job_id = add(queue_engine)
    seen.wait_for(events.JobSucceeded, job_id=job_id)

    assert [] == worker.stop()
    assert not worker.is_running
    assert worker.error is None
    assert worker.join(0)
    assert [] == worker_threads()
    assert 0 == queue_engine.pool.checkedout()
    assert ["WorkerStarted", "WorkerStopping", "WorkerStopped"] == [name for name in seen.names() if name.startswith("Worker")]


def test_nothing_happens_before_start(database):
    """Making a worker connects to nothing: options are checked, the database is not."""
    worker = QueueWorker(sa.create_engine(database.url.set(database="/no/such/place")), lambda *_: None)

    assert not worker.is_running
    assert [] == worker.stop()
    assert worker.join(0)


def test_starting_twice_is_starting_once(queue_engine, work):
    """`start!`: a second start of a running worker does nothing, from several threads too."""
    worker, seen = work(lambda *_: None)
    starts = [threading.Thread(target=worker.start) for _ in range(4)]
    for thread in starts:
        thread.start()
    for thread in starts:
        thread.join(PATIENCE)
    worker.start()
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)
    worker.stop()

    assert 1 == len(seen.of(events.WorkerStarted))
    assert [] == worker_threads()


def test_stopping_twice_is_stopping_once(work):
    """`stop!`: a second one does nothing, nor does one of a worker that never started."""
    worker, seen = work(lambda *_: None)
    assert [] == worker.stop()
    worker.start()
    assert [] == worker.stop()
    assert [] == worker.stop()
    assert 1 == len(seen.of(events.WorkerStopped))


def test_a_worker_may_be_started_again(queue_engine, work):
    """After a stop the same worker can be started, as often as one likes."""
    worker, seen = work(lambda *_: None)
    for number in range(3):
        worker.start()
        add(queue_engine)
        seen.wait_for(events.JobSucceeded, count=number + 1)
        assert [] == worker.stop()

    assert 3 == len(archived(queue_engine))


def test_the_context_manager(queue_engine, work):
    """`with worker:` starts it and stops it, whatever happens inside."""
    worker, seen = work(lambda *_: None)
    with worker as entered:
        assert worker is entered
        add(queue_engine)
        seen.wait_for(events.JobSucceeded)
    assert not worker.is_running
    with pytest.raises(LookupError), worker:
        raise LookupError
    assert not worker.is_running


def test_run_returns_when_it_is_stopped(queue_engine, work):
    """`run` blocks until somebody stops the worker."""
    worker, seen = work(lambda *_: None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)
    assert thread.is_alive()
    worker.stop()
    thread.join(PATIENCE)

    assert not thread.is_alive()


def test_handlers_run_at_the_same_time(queue_engine, work):
    """`:worker-threads`: as many jobs run at once, and not one more."""
    gate = Gate()
    worker, seen = work(gate, worker_threads=3)
    for _ in range(5):
        add(queue_engine)
    worker.start()
    for _ in range(3):
        gate.begun.get(timeout=PATIENCE)

    assert gate.begun.empty()
    gate.open.set()
    seen.wait_for(events.JobSucceeded, count=5)


def test_every_job_runs_once(queue_engine, work):
    """Two workers of several threads share a queue: each job runs once, in one attempt."""
    ran = queue.Queue()
    seen = Recorder()
    with queue_engine.begin() as connection:
        enqueue_many(connection, [{"job_type": "work", "payload": number} for number in range(60)])
    for _ in range(2):
        worker, _ = work(lambda job: ran.put(job.payload), worker_threads=2, on_event=seen)
        worker.start()
    seen.wait_for(events.JobSucceeded, count=60)

    assert list(range(60)) == sorted(ran.get_nowait() for _ in range(ran.qsize()))
    assert {("success", 1, None)} == {(row.status, row.attempts, row.crashes) for row in archived(queue_engine)}


class Refused(BaseException):
    """What `except Exception` does not catch."""


@pytest.mark.parametrize("exception", [ValueError, SystemExit, Refused])
def test_a_sink_that_raises_ends_no_thread(queue_engine, work, exception):
    """A sink that raises at every event costs neither a job nor a thread."""
    seen = Recorder()

    def sink(event):
        seen(event)
        raise exception("broken sink")

    worker, _ = work(lambda *_: None, on_event=sink, worker_threads=2)
    for _ in range(5):
        add(queue_engine)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=5)

    assert [] == worker.stop()
    assert 5 == len(archived(queue_engine))


def test_missing_tables_are_an_error_at_start(engine):
    """Lost job, claim error swallowed: start says which table is missing and what to type; nothing is started."""
    worker = QueueWorker(engine, lambda *_: None)

    with pytest.raises(TablesMissing) as caught:
        worker.start()
    with pytest.raises(TablesMissing):
        worker.run()

    assert "There is no table " in str(caught.value)
    assert "proletarian_sa.create_all(engine)" in str(caught.value)
    assert not worker.is_running
    assert [] == worker_threads()


TENANT = contextvars.ContextVar("tenant", default="nobody")


def test_context_variables_do_not_leak(queue_engine, work):
    """Context leaks between jobs: each job sees the defaults, not what the job before set, nor what the starter had set."""
    found = queue.Queue()

    def handler(_job):
        found.put((TENANT.get(), decimal.getcontext().prec))
        TENANT.set("a job")
        decimal.getcontext().prec = 3

    worker, seen = work(handler)
    token = TENANT.set("the starter")
    add(queue_engine)
    add(queue_engine)
    try:
        worker.start()
        seen.wait_for(events.JobSucceeded, count=2)
    finally:
        TENANT.reset(token)

    assert [("nobody", 28)] * 2 == [found.get_nowait() for _ in range(2)]


def test_any_exception_of_a_handler_leaves_the_threads_alive(queue_engine, work):
    """BaseException: SystemExit and its like are failed attempts in a worker too; its one thread goes on."""
    exceptions = [SystemExit(0), KeyboardInterrupt(), GeneratorExit(), MemoryError(), RecursionError(), Refused(), StopIteration()]

    def handler(job):
        if job.payload < len(exceptions):
            raise exceptions[job.payload]

    worker, seen = work(handler)
    for number in range(len(exceptions) + 1):
        add(queue_engine, payload=number)
    worker.start()
    seen.wait_for(events.JobSucceeded)

    assert ["failure"] * len(exceptions) + ["success"] == [row.status for row in archived(queue_engine)]
    assert len(exceptions) == len(seen.of(events.JobAttemptFailed))
    assert worker.is_running


def test_unknown_types_do_not_stop_a_worker(queue_engine, work):
    """Lost job, cannot be restored: jobs that this worker cannot run are put back, and the others run."""
    jobs = JobRegistry()
    jobs.handler("known")(lambda payload: None)
    add(queue_engine, "unknown")
    add(queue_engine, "known")
    worker, seen = work(jobs)
    worker.start()
    seen.wait_for(events.JobSucceeded)
    seen.wait_for(events.JobUndeliverable)
    worker.stop()

    assert ["unknown"] == [row.job_type for row in queued(queue_engine)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_no_worker(queue_engine, work):
    """A child has none of the threads: `is_running` is False there, `stop` does nothing, and the parent's worker goes on."""
    worker, seen = work(lambda *_: None)
    worker.start()
    seen.wait_for(events.WorkerStarted)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # no pytest here, only what is to be tested
        try:
            os.write(writer, f"{worker.is_running} {worker.stop()}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = os.read(reader, 100).decode()
    os.close(reader)
    os.waitpid(child, 0)
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)

    assert "False []" == said
    assert worker.is_running


def test_options_can_be_replaced(queue_engine, work):
    """`with_options` makes another worker that differs in what is given, and refuses what it does not know."""
    worker, seen = work(lambda *_: None)
    other = worker.with_options(queue="mail", worker_threads=2)
    add(queue_engine, queue="mail")
    with other:
        seen.wait_for(events.JobSucceeded, queue="mail")

    assert not worker.is_running
    assert [(("mail",), 2)] == [(event.queues, event.threads) for event in seen.of(events.WorkerStarted)]
    with pytest.raises(TypeError, match="thread"):
        worker.with_options(threads=2)


@pytest.mark.leased
def test_rows_deleted_or_changed_from_outside_stop_nobody(queue_engine, work):
    """Row changed from outside: a job deleted while it runs is an event, and the worker goes on with the next."""
    gate = Gate()
    worker, seen = work(gate)
    job_id = add(queue_engine)
    worker.start()
    gate.begun.get(timeout=PATIENCE)
    with queue_engine.begin() as connection:
        connection.execute(sa.delete(default_tables.job).where(default_tables.job.c.job_id == job_id))
    gate.open.set()
    seen.wait_for(events.JobLeaseLost, job_id=job_id)
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)

    assert 1 == wait_until(lambda: len(archived(queue_engine)))
