"""Stopping a worker: what becomes of the jobs that it has in hand, whoever stops it."""

import queue
import threading

import pytest

from proletarian_sa import JobInterrupted, events
from tests.claims import LEASED, chosen
from tests.observing import PATIENCE, Gate, Recorder, add
from tests.queue_contents import archived, queued

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("claim")]


def test_a_handler_is_asked_to_stop(queue_engine, work):
    """InterruptedException: at `stop` `job.wait` returns True, `job.stopping` is set; `JobInterrupted` gives the attempt back."""
    begun, waited = threading.Event(), []

    def handler(job):
        begun.set()
        waited.append((job.stopping, job.wait(PATIENCE), job.stopping))
        raise JobInterrupted

    worker, seen = work(handler)
    add(queue_engine)
    (before,) = queued(queue_engine)
    worker.start()
    assert begun.wait(PATIENCE)

    assert [] == worker.stop()
    (row,) = queued(queue_engine)
    assert [(False, True, True)] == waited
    assert (0, None, None, None) == (row.attempts, row.claimed_by, row.lease_until, row.last_error)
    assert before.process_at == row.process_at
    assert 1 == len(seen.of(events.JobReleased))


def test_a_handler_that_returns_in_time_is_recorded(queue_engine, work):
    """A handler that ends its work after the stop was asked for is done, or has failed, as usual."""
    for error, status in ((None, "success"), (ValueError, "failure")):
        begun = threading.Event()

        def handler(job, begun=begun, error=error):
            begun.set()
            job.wait(PATIENCE)
            if error:
                raise error

        worker, _ = work(handler)
        job_id = add(queue_engine)
        worker.start()
        assert begun.wait(PATIENCE)
        assert [] == worker.stop()
        assert [status] == [row.status for row in archived(queue_engine) if row.job_id == job_id]


def test_stop_returns_the_jobs_that_are_still_running(queue_engine, work):
    """`:await-termination-timeout-ms`: `stop` returns jobs that outlive it; they stay owned, and are recorded when they return."""
    gate = Gate()
    worker, seen = work(gate, worker_threads=2)
    ids = {add(queue_engine) for _ in range(2)}
    worker.start()
    running = {gate.begun.get(timeout=PATIENCE) for _ in range(2)}

    left = worker.stop(0.05)

    assert running == set(left)
    assert ids == {job.job_id for job in left}
    assert worker.is_running
    leased = chosen() == LEASED  # a held row is not written before the finish
    assert {int(leased)} == {row.attempts for row in queued(queue_engine)}
    assert {leased} == {row.claimed_by is not None for row in queued(queue_engine)}
    gate.open.set()
    assert worker.join(PATIENCE)
    assert ["success", "success"] == [row.status for row in archived(queue_engine)]
    assert [0, 2] == sorted(event.running for event in seen.of(events.WorkerStopped))


def test_a_worker_that_is_stopping_takes_no_more_jobs(queue_engine, work):
    """Once stop is asked for, no other job begins, not even one that was taken ahead; those are put back as they were."""
    gate, quick = Gate(), threading.Event()

    def handler(job):
        if job.payload == "gate":
            gate(job)
        quick.set()

    worker, seen = work(handler)
    for _ in range(30):  # quick ones, so that the worker takes jobs ahead
        add(queue_engine)
    add(queue_engine, payload="gate")
    for _ in range(30):
        add(queue_engine)
    worker.start()
    gate.begun.get(timeout=PATIENCE)
    worker.stop(0)
    gate.open.set()
    assert worker.join(PATIENCE)

    assert 31 == len(archived(queue_engine))
    assert {(0, None, None, None)} == {(row.attempts, row.claimed_by, row.lease_until, row.crashes) for row in queued(queue_engine)}
    assert 30 == len(queued(queue_engine))
    assert 31 == len(seen.of(events.JobStarted))


def test_a_handler_may_stop_its_worker(queue_engine, work):
    """`stop` from inside a handler does not wait for the handler that calls it, and the job is recorded."""
    left = queue.Queue()
    worker, seen = work(lambda job: left.put(worker.stop()))
    job_id = add(queue_engine)
    worker.start()
    seen.wait_for(events.WorkerStopped, running=0)

    assert [job_id] == [job.job_id for job in left.get(timeout=PATIENCE)]
    assert ["success"] == [row.status for row in archived(queue_engine)]


@pytest.mark.parametrize(
    "kind", [events.WorkerStarted, events.JobsClaimed, events.JobStarted, events.JobSucceeded, events.WorkerStopping]
)
def test_a_sink_may_stop_its_worker(queue_engine, work, kind):
    """`stop` from inside a sink, at whichever event, ends the worker without waiting for itself, and loses no job."""
    seen = Recorder()

    def sink(event):
        seen(event)
        if isinstance(event, kind):
            worker.stop()

    worker, _ = work(lambda *_: None, on_event=sink)
    add(queue_engine)
    worker.start()
    if kind is events.WorkerStopping:
        worker.stop()
    assert worker.join(PATIENCE)

    assert 1 == len(queued(queue_engine)) + len(archived(queue_engine))
    assert [None] * len(queued(queue_engine)) == [row.claimed_by for row in queued(queue_engine)]
