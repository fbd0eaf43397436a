"""Proletarian's log events, under their names there."""

import datetime as dt
import threading

import pytest

from proletarian_sa import JobInterrupted, RetryStrategy, events
from tests.claims import process_next_job
from tests.observing import PATIENCE, Gate, Recorder, add

pytestmark = pytest.mark.usefixtures("claim")

SECOND = dt.timedelta(seconds=1)


def fail(*_arguments):
    """Fail, with a message of its own."""
    raise ValueError("no good")


def interrupt(*_arguments):
    """Give the job back."""
    raise JobInterrupted


JOB = {"worker_id", "job_id", "job_type", "queue", "attempt"}
EVENTS = {
    "polling-for-jobs": (events.JobsClaimed, {"worker_id", "queue", "count"}),
    "handling-job": (events.JobStarted, JOB),
    "job-finished": (events.JobSucceeded, JOB),
    "handle-job-exception": (events.JobAttemptFailed, JOB | {"exception", "retry_in", "retries_left"}),
    "retrying": (events.JobRetried, JOB | {"retry_in"}),
    "not-retrying": (events.JobFailed, JOB),
    "job-interrupted": (events.JobReleased, JOB),
    "sql-transient-exception": (
        events.TransientErrorMet,
        {"worker_id", "activity", "exception", "retry_in", "consecutive", "news"},
    ),
    "job-worker-error": (events.WorkerFailed, {"worker_id", "exception"}),
    "shutting-down": (events.WorkerStopping, {"worker_id", "running"}),
    "completed-shutdown": (events.WorkerStopped, {"worker_id", "running"}),
    "queue-worker-shutdown-error": (events.CallbackFailed, {"worker_id", "callback", "exception"}),
}


@pytest.mark.leased
@pytest.mark.parametrize("name", EVENTS)
def test_the_fields_of_events(name):
    """Events of jobs: job id, job type and attempt, and the worker in every one; the exception, the delay, the retries left."""
    kind, fields = EVENTS[name]

    assert fields == set(kind.__dataclass_fields__)


def test_what_is_told_of_each_ending(queue_engine):
    """handling-job, job-finished, handle-job-exception, retrying, not-retrying, job-interrupted: in this order, of this job."""
    endings = [
        (lambda *_: None, None, ["JobSucceeded"]),
        (fail, RetryStrategy(retries=2, delays=[60]), ["JobAttemptFailed", "JobRetried"]),
        (fail, None, ["JobAttemptFailed", "JobFailed"]),
        (interrupt, None, ["JobReleased"]),
    ]
    for number, (handler, retry, told) in enumerate(endings):
        seen = Recorder()
        job_id = add(queue_engine, queue=str(number))
        process_next_job(queue_engine, handler, retry=retry, queue=str(number), on_event=seen)

        assert ["JobsClaimed", "JobStarted", *told] == seen.names()
        assert {(job_id, "work", 1)} == {(event.job_id, event.job_type, event.attempt) for event in seen.of(events.JobEvent)}
        retried = [(event.retry_in, event.retries_left) for event in seen.of(events.JobAttemptFailed) if event.retry_in]
        assert [(60 * SECOND, 1)] * ("JobRetried" in told) == retried


def test_the_thread_of_an_event(queue_engine, work):
    """Worker thread id: handling-job and handle-job-exception are told in the handler's thread, which is named after the worker."""
    threads = []

    def sink(event):
        threads.append((type(event).__name__, threading.current_thread().name))
        seen(event)

    seen = Recorder()
    worker, _sink = work(fail, on_event=sink, worker_id="w")
    add(queue_engine)
    worker.start()
    seen.wait_for(events.JobFailed)
    worker.stop()

    assert {("JobStarted", "w handler 1"), ("JobAttemptFailed", "w handler 1")} < set(threads)


def test_what_is_told_of_a_stop(queue_engine, work):
    """shutting-down with what is running, completed-shutdown; already-shut-down is no event."""
    worker, seen = work(gate := Gate())
    add(queue_engine)
    worker.start()
    gate.begun.get(timeout=PATIENCE)
    worker.stop(0)
    gate.open.set()
    assert worker.join(PATIENCE)
    worker.stop()

    assert [1] == [event.running for event in seen.of(events.WorkerStopping)]
    assert [1, 0] == [event.running for event in seen.of(events.WorkerStopped)]
