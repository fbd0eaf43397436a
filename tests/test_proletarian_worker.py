"""The options of Proletarian's worker, one after the other, under their names there."""

import inspect
import random
import threading
import time

import pytest
import sqlalchemy as sa

from proletarian_sa import ArchivedJob, QueueWorker, RetryStrategy, default_tables, events
from proletarian_sa.log import log_event
from tests.claims import process_next_job
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, Spoken, add
from tests.queue_contents import User, archived, queued

pytestmark = pytest.mark.usefixtures("claim")

DEFAULTS = {
    "queue": "default",
    "tables": default_tables,
    "handler_mode": "default",
    "retry": None,
    "failed_job": None,
    "on_event": log_event,
    "worker_id": None,
    "polling_interval": 0.1,
    "worker_threads": 1,
    "on_polling_error": None,
    "stop_timeout": 10.0,
    "install_signal_handlers": False,
    "on_shutdown": None,
    "claim": "leased",
    "lease": 60.0,
    "max_crashes": 5,
    "held_warning": 60.0,
}


def fail(*_arguments):
    """Fail, with a message of its own."""
    raise ValueError("no good")


def names(engine: sa.Engine) -> list[str]:
    """Return the names of the application's users."""
    with engine.connect() as connection:
        return sorted(connection.scalars(sa.select(User.name)))


@pytest.fixture
def drawn(monkeypatch):
    """Draw at most 0.2 whenever chance is asked for a number, and return what was asked."""
    asked: list[tuple[float, float]] = []

    def draw(low, high):
        asked.append((low, high))
        return max(low, min(high, 0.2))

    monkeypatch.setattr(random, "uniform", draw)
    return asked


@pytest.mark.leased
def test_the_defaults_are_the_originals(database):
    """100 ms, one thread, 10 s, one queue, no retry, nothing installed; ours beside them: leased, 60 s."""
    parameters = inspect.signature(QueueWorker).parameters
    options = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]

    assert DEFAULTS == {name: parameters[name].default for name in DEFAULTS}
    assert {*DEFAULTS, "session_factory"} == set(options)


def test_a_worker_serves_its_queue_only(queue_engine, work):
    """`:queue`: one queue a worker; each with threads of its own."""
    for queue in ("mail", "images", "elsewhere"):
        add(queue_engine, queue=queue)
    mail, seen_mail = work(lambda _job: None, queue="mail")
    images, seen_images = work(lambda _job: None, queue="images", worker_threads=2)
    for worker in (mail, images):
        worker.start()
    seen_mail.wait_for(events.JobSucceeded, queue="mail")
    seen_images.wait_for(events.JobSucceeded, queue="images")
    for worker in (mail, images):
        worker.stop()

    assert ["mail"] == [event.queue for event in seen_mail.of(events.JobSucceeded)]
    assert ["images"] == [event.queue for event in seen_images.of(events.JobSucceeded)]
    assert ["elsewhere"] == [row.queue for row in queued(queue_engine)]


def test_the_default_mode_gives_type_and_payload(queue_engine):
    """`:handler-fn-mode`: by default the handler is called with job type and payload."""
    add(queue_engine, "greet", {"to": "you"})
    given = []
    process_next_job(queue_engine, lambda *arguments: given.append(arguments), handler_mode="default")

    assert [("greet", {"to": "you"})] == given


def test_the_advanced_mode_gives_the_job(queue_engine):
    """`:handler-fn-mode`: advanced: job-type, payload, job-id, queue, enqueued-at, process-at, attempts of one object."""
    job_id = add(queue_engine, "greet", {"to": "you"}, queue="q")
    (row,) = queued(queue_engine)
    given = []
    process_next_job(queue_engine, given.append, handler_mode="advanced", queue="q")

    (job,) = given
    assert ("greet", {"to": "you"}, job_id, "q") == (job.job_type, job.payload, job.job_id, job.queue)
    assert (row.enqueued_at, row.process_at, 1) == (job.enqueued_at, job.process_at, job.attempts)


def test_the_retry_function_decides(queue_engine):
    """`:retry-strategy-fn`: called with job and exception; a strategy means another attempt, None that there is none."""
    given = []
    strategies = [RetryStrategy(retries=1), None]

    def choose(job, exception):
        given.append((job.job_type, job.attempts, str(exception)))
        return strategies.pop(0)

    add(queue_engine)
    outcomes = [process_next_job(queue_engine, fail, retry=choose).status for _ in range(2)]

    assert ["retrying", "failed"] == outcomes
    assert [("work", 1, "no good"), ("work", 2, "no good")] == given


def test_failed_job_joins_the_transaction_that_archives(app_engine):
    """`:failed-job-fn`: called with job and exception after the archiving, in its transaction, when no retry is left."""
    told = []

    def tell(job, exception):
        inside = job.session.scalars(sa.select(ArchivedJob.status).where(ArchivedJob.job_id == job.job_id)).all()
        told.append((job.job_id, job.payload, job.attempts, str(exception), inside, len(archived(app_engine))))
        job.session.add(User(id=7, name="told"))

    job_id = add(app_engine, payload=[1])
    options = {"failed_job": tell, "retry": RetryStrategy(retries=1)}
    process_next_job(app_engine, fail, **options)
    assert [] == told
    process_next_job(app_engine, fail, **options)

    assert [(job_id, [1], 2, "no good", ["failure"], 0)] == told
    assert ["told"] == names(app_engine)
    assert ["failure"] == [row.status for row in archived(app_engine)]


def test_a_failed_job_that_raises_does_not_repeat_the_job(app_engine):
    """`:failed-job-fn`: if it throws, its own writes are undone and the job stays archived: nothing runs again for ever."""
    calls = []

    def tell(job, _exception):
        calls.append(job.job_id)
        job.session.add(User(id=7, name="told"))
        job.session.flush()
        raise LookupError("nobody to tell")

    add(app_engine)
    seen = Recorder()
    outcome = process_next_job(app_engine, fail, failed_job=tell, on_event=seen)
    assert process_next_job(app_engine, fail, failed_job=tell) is None

    assert "failed" == outcome.status
    assert [outcome.job_id] == calls
    assert [] == names(app_engine)
    assert ["nobody to tell"] == [str(event.exception) for event in seen.of(events.FailedJobCallbackFailed)]
    assert [("failure", 1)] == [(row.status, row.attempts) for row in archived(app_engine)]


def test_failed_job_is_called_by_a_worker(app_engine, work):
    """`:failed-job-fn`: a worker's threads call it likewise, also for a job that cannot have a retry."""
    worker, seen = work(fail, failed_job=lambda job, _exception: job.session.add(User(id=7, name=job.job_type)))
    add(app_engine, "doomed")
    worker.start()
    seen.wait_for(events.JobFailed)
    worker.stop()

    assert ["doomed"] == names(app_engine)


def test_on_event_is_a_function_of_one_event(queue_engine, work):
    """`:log`: what is given gets every event, from every thread, and nothing goes elsewhere."""
    worker, seen = work(lambda _job: None)
    add(queue_engine)
    worker.start()
    seen.wait_for(events.JobSucceeded)
    worker.stop()

    assert ["WorkerStarted", "JobsClaimed", "JobStarted", "JobSucceeded", "WorkerStopping", "WorkerStopped"] == sorted(
        seen.names(), key=["WorkerStarted", "JobsClaimed", "JobStarted", "JobSucceeded", "WorkerStopping", "WorkerStopped"].index
    )


@pytest.mark.parametrize(("given", "expected"), [(None, "proletarian[mail]"), ("mailer", "mailer")])
def test_the_worker_id_names_threads_and_events(queue_engine, work, given, expected):
    """`:queue-worker-id`: `proletarian[queue]` unless given; the prefix of the threads' names, and in every event."""
    before = set(threading.enumerate())
    worker, seen = work(gate := Gate(), queue="mail", worker_id=given, worker_threads=2)
    add(queue_engine, queue="mail")
    worker.start()
    gate.begun.get(timeout=PATIENCE)
    threads = {thread.name for thread in set(threading.enumerate()) - before}
    gate.open.set()
    seen.wait_for(events.JobSucceeded)
    worker.stop()

    assert {f"{expected} handler 1", f"{expected} handler 2"} < threads
    assert [] == [name for name in threads if not name.startswith(f"{expected} ")]
    assert {expected} == {event.worker_id for event in seen.events}


def test_an_empty_queue_is_polled_at_the_interval(queue_engine, work):
    """`:polling-interval-ms`: the pause between the end of a polling run and the next, with a tenth of jitter."""
    worker, _seen = work(lambda _job: None, polling_interval=0.05)
    spoken = Spoken(queue_engine)
    worker.start()
    spoken.wait_for_a_poll()
    began = time.monotonic()
    for _ in range(4):
        spoken.wait_for_a_poll()
    took = time.monotonic() - began
    worker.stop()

    assert took >= 3 * 0.05 * 0.9  # the first of them may have been late


def test_a_polling_run_ends_when_no_job_is_due(queue_engine, work, drawn):
    """`:polling-interval-ms`: jobs are taken one after the other until none is due; only then comes the pause, which jitters."""
    ids = [add(queue_engine, process_in=-number) for number in range(3)]
    worker, seen = work(lambda _job: None, polling_interval=3600)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=3)
    wait_until(lambda: (0.9, 1.1) in drawn, PATIENCE)
    worker.stop()

    assert set(ids) == {event.job_id for event in seen.of(events.JobSucceeded)}


@pytest.mark.parametrize(("interval", "longest"), [(0.1, 0.1), (3600, 1.0)])
def test_the_first_poll_is_staggered(queue_engine, work, drawn, interval, longest):
    """`:worker-threads`: workers that start together do not poll together: a random pause, of an interval, at most a second."""
    add(queue_engine)
    worker, seen = work(lambda _job: None, polling_interval=interval)
    began = time.monotonic()
    worker.start()
    seen.wait_for(events.JobStarted)
    took = time.monotonic() - began
    worker.stop()

    assert (0, longest) == drawn[0]
    assert took >= min(longest, 0.2)


def test_threads_run_jobs_side_by_side(queue_engine, work):
    """`:worker-threads`: as many jobs run at the same time."""
    both = threading.Barrier(2)
    worker, seen = work(lambda _job: both.wait(PATIENCE), worker_threads=2)
    for _ in range(2):
        add(queue_engine)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=2)
    worker.stop()

    assert [] == seen.of(events.JobAttemptFailed)


def test_stop_does_not_raise_when_its_time_is_over(queue_engine, work):
    """`:await-termination-timeout-ms`: `stop` waits for running jobs as long as that, and returns those that still run."""
    gate = Gate()
    called = []
    worker, seen = work(gate, stop_timeout=0.01, on_shutdown=lambda: called.append(len(archived(queue_engine))))
    job_id = add(queue_engine)
    worker.start()
    gate.begun.get(timeout=PATIENCE)

    assert [job_id] == [job.job_id for job in worker.stop()]
    assert [1] == [event.running for event in seen.of(events.WorkerStopped)]
    assert [] == called
    gate.open.set()
    assert worker.join(PATIENCE)
    assert [1] == called  # `:on-shutdown`: once all handlers have returned


def test_start_and_stop_twice(queue_engine, work):
    """`start!` twice and `stop!` twice do nothing the second time, and tell nothing."""
    worker, seen = work(lambda _job: None)
    worker.start()
    worker.start()
    assert 1 == len(seen.of(events.WorkerStarted))
    assert [] == worker.stop()
    told = len(seen.events)

    assert [] == worker.stop()
    assert told == len(seen.events)
    assert not worker.is_running
