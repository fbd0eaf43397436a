"""Handlers that raise what nobody catches, that cannot be called, and that leave sessions of the application's own broken."""

import asyncio
import queue
import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import JobRegistry, RetryStrategy, default_tables, events
from tests.claims import HELD, chosen
from tests.helpers import wait_until
from tests.observing import PATIENCE, add
from tests.queue_contents import User, archived, queued

pytestmark = pytest.mark.usefixtures("claim")

THREADS = 4


class Derived(BaseException):
    """Of the application's own, and no Exception."""


EXCEPTIONS = [
    SystemExit(0),
    SystemExit(3),
    SystemExit("text"),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    Derived("own"),
    BaseExceptionGroup("several", [SystemExit(1), KeyboardInterrupt()]),
    BaseException(),
    StopIteration(7),
    MemoryError(),
    RecursionError(),
]


def test_every_base_exception_with_several_threads(app_engine, work):
    """BaseException: each class is a failed attempt, retried as allowed and archived as failure; all threads go on."""
    jobs = JobRegistry()

    def fail(payload, job):
        if job.attempts == 2:
            job.session.add(User(id=1000 + payload, name="taken back"))
            job.session.flush()
        raise EXCEPTIONS[payload]

    meeting = threading.Barrier(THREADS)
    jobs.handler("bad", retry=RetryStrategy(retries=2))(fail)
    jobs.handler("good")(lambda payload: None)
    jobs.handler("together")(lambda payload: meeting.wait(PATIENCE))
    for number in range(len(EXCEPTIONS)):
        add(app_engine, "bad", number)
        add(app_engine, "good", number)
    worker, seen = work(jobs, worker_threads=THREADS)
    worker.start()
    wait_until(lambda: not queued(app_engine), timeout=PATIENCE)
    for _ in range(THREADS):  # each thread is needed for these
        add(app_engine, "together")
    seen.wait_for(events.JobSucceeded, count=THREADS, job_type="together")
    rows = archived(app_engine)
    stuck = worker.stop()

    assert [] == stuck
    assert not worker.is_running
    assert {("bad", "failure", 3), ("good", "success", 1), ("together", "success", 1)} == {
        (row.job_type, row.status, row.attempts) for row in rows
    }
    assert 2 * len(EXCEPTIONS) + THREADS == len(rows)
    for row in rows:
        if row.job_type == "bad":
            assert type(EXCEPTIONS[int(row.payload)]).__name__ in row.last_error
    with app_engine.connect() as connection:
        assert 0 == connection.scalar(sa.select(sa.func.count()).select_from(User))


def anything_but():
    """Take no arguments."""


def called_wrongly(_payload):
    """Call something else with arguments that do not fit."""
    return anything_but(1)


def anything(*arguments, **options):
    """Pass for a function of any arguments, as many decorators do."""
    return needs_three(*arguments, **options)


def needs_three(_first, _second, _third):
    """Take three arguments."""


def hidden_coroutine(payload):
    """Return what nobody will await."""
    return asyncio.sleep(payload)


class Callable:
    """Can be called, with too many arguments only once it is called."""

    def __call__(self, *arguments):
        return needs_three(*arguments)


class Broken:
    """Cannot be called any more."""

    def __call__(self, payload):
        return self.missing(payload)


def test_handlers_that_turn_out_not_to_fit(queue_engine, work):
    """Handler cannot be called: what registration cannot see is an ordinary failure, by the retry policy, with a clear message."""
    jobs = JobRegistry()
    functions = {
        "inner call": (called_wrongly, "anything_but() takes 0 positional arguments but 1 was given"),
        "any arguments": (anything, "needs_three() missing 2 required positional arguments"),
        "any arguments, as object": (Callable(), "needs_three() missing 2 required positional arguments"),
        "attribute": (Broken(), "AttributeError: 'Broken' object has no attribute 'missing'"),
        "hidden coroutine": (hidden_coroutine, "The handler returned a coroutine instead of doing its work"),
        "hidden generator": (lambda payload: (one for one in [payload]), "The handler returned a generator instead of doing"),
    }
    for job_type, (function, _message) in functions.items():
        jobs.handler(job_type, retry=RetryStrategy(retries=2))(function)
        add(queue_engine, job_type, 0)
    jobs.handler("good")(lambda payload: None)
    add(queue_engine, "good")
    worker, seen = work(jobs)
    worker.start()
    seen.wait_for(events.JobFailed, count=len(functions))
    worker.stop()
    rows = {row.job_type: row for row in archived(queue_engine)}

    assert "success" == rows.pop("good").status
    assert {(name, "failure", 3) for name in functions} == {(row.job_type, row.status, row.attempts) for row in rows.values()}
    for name, (_function, message) in functions.items():
        assert message in rows[name].last_error
    assert 3 * len(functions) == len(seen.of(events.JobAttemptFailed))


NO_HANDLERS = [None, 7, "tests.module:function", object(), {"mail": print}, Callable, asyncio.sleep, lambda: None]


def test_what_is_no_handler_is_refused_by_the_worker(queue_engine, work):
    """Handler cannot be called: a worker that is given no handler says so when it is made; no job is touched."""
    for handler in NO_HANDLERS:
        for options in ({}, {"handler_mode": "default"}):
            with pytest.raises(TypeError, match=r"handler|class|async def"):
                work(handler, **options)


def test_a_handler_that_deletes_its_own_job(app_engine, work):
    """In `job.session` that is refused and undone. A held run has failed; a leased one is lost, and repeated after its lease."""
    runs = queue.SimpleQueue()

    def handler(job):
        runs.put(job.attempts)
        job.session.execute(sa.delete(default_tables.job).where(default_tables.job.c.job_id == job.job_id))

    worker, seen = work(handler)  # with more threads another may take the job in the moment in which its row is there again
    add(app_engine)
    worker.start()
    if chosen() == HELD:
        failed = seen.wait_for(events.JobFailed)
        (row,) = archived(app_engine)
        assert (1, "failure") == (failed.attempt, row.status)
        assert "has changed or deleted the row of its own job" in row.last_error
    else:
        seen.wait_for(events.JobLeaseLost, handler_finished=True)
        assert [] == archived(app_engine)
    worker.stop()
    assert 1 == runs.qsize()
