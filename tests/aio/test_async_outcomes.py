"""What becomes of the jobs of an `AsyncQueueWorker`: retries, timeouts, interruptions, jobs that cannot be run."""

import asyncio
import functools
import threading

import pytest

from proletarian_sa import AsyncRunningJob, JobInterrupted, JobRegistry, JobTimeout, RetryStrategy, events
from tests.aio.scene import until
from tests.observing import PATIENCE, add
from tests.queue_contents import archived, queued

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("claim")]
AGAIN = RetryStrategy(retries=1, delays=[0])
ENDS = (events.JobSucceeded, events.JobFailed, events.JobReleased, events.JobUndeliverable)


def work_off(scene, handler, count=1, **options):
    """Run a handler until so many jobs have ended, and return the events."""

    async def test():
        worker, seen = scene.work(handler, **options)
        async with worker:
            await until(lambda: sum(len(seen.of(end)) for end in ENDS) >= count)
        return seen

    return scene.run(test)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
def test_whatever_a_handler_raises_is_a_failed_attempt(queue_engine, scene, error):
    """A handler's error is a failed attempt, those that end programs and tasks included; its strategy decides."""
    add(queue_engine)

    async def handle(job):
        await asyncio.sleep(0)
        if job.attempts == 1:
            raise error

    seen = work_off(scene, handle, retry=AGAIN)
    assert [error] == [event.exception for event in seen.of(events.JobAttemptFailed)]
    assert [("success", 2)] == [(row.status, row.attempts) for row in archived(queue_engine)]


def test_retry_functions(queue_engine, scene):
    """A retry function may be `async def`, the worker's and that of a type, and is given the job as its handler was."""
    jobs, asked = JobRegistry(), []

    async def choose(job, error):
        await asyncio.sleep(0)
        asked.append((type(job), job.job_type, str(error)))
        return AGAIN

    @jobs.handler("own", retry=choose)
    async def own(_payload):
        raise ValueError("own")

    @jobs.handler("workers")
    async def workers(_payload):
        raise ValueError("worker's")

    @jobs.handler("plain")
    def plain(_payload):
        raise ValueError("plain")

    for name in ("own", "workers", "plain"):
        add(queue_engine, name)
    work_off(scene, jobs, 3, retry=choose, handler_mode="default")

    assert {("own", "own"), ("workers", "worker's"), ("plain", "plain")} == {(name, error) for _, name, error in asked}
    assert 6 == len(asked)
    assert AsyncRunningJob in {kind for kind, *_ in asked}
    assert [("failure", 2)] * 3 == [(row.status, row.attempts) for row in archived(queue_engine)]


def test_a_retry_function_that_fails(queue_engine, scene):
    """A retry function that raises means no retry, and an event."""
    add(queue_engine)

    async def choose(_job, _error):
        raise LookupError("no strategy")

    async def handle(_job):
        raise ValueError

    seen = work_off(scene, handle, retry=choose)
    assert ["no strategy"] == [str(event.exception) for event in seen.of(events.RetryStrategyFailed)]
    assert ["failure"] == [row.status for row in archived(queue_engine)]


def test_an_async_retry_function_of_a_plain_handler_is_refused():
    """Where a handler may run in a worker with threads, its retry function must be plain, too."""

    async def choose(_job, _error):
        return AGAIN

    with pytest.raises(TypeError, match=r"retry .* is an `async def` function"):
        JobRegistry().handler("plain", retry=choose)(lambda _payload: None)


@pytest.mark.parametrize("swallows", [False, True])
def test_a_timeout_cancels_the_handler(queue_engine, scene, swallows):
    """A handler whose time is over is cancelled, and its attempt has failed, whatever it makes of that."""
    add(queue_engine, "slow")
    jobs, seen_stopping = JobRegistry(), []

    @jobs.handler("slow", timeout=0.05)
    async def slow(_payload, job):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen_stopping.append(job.stopping)
            if not swallows:
                raise

    seen = work_off(scene, jobs, handler_mode="default")
    (failed,) = seen.of(events.JobAttemptFailed)
    assert isinstance(failed.exception, JobTimeout)
    assert "The handler ran for longer than its timeout of 0.05 s." == str(failed.exception)
    assert [True] == seen_stopping
    assert 1 == len(seen.of(events.JobOverTime))
    assert ["failure"] == [row.status for row in archived(queue_engine)]


def test_a_handler_that_blocks_beyond_its_timeout(queue_engine, scene):
    """A handler that blocks the loop for longer than its timeout cannot be cancelled; the attempt has failed all the same."""
    add(queue_engine, "slow")
    jobs = JobRegistry()

    @jobs.handler("slow", timeout=0.02)
    async def slow(_payload):
        threading.Event().wait(0.1)

    seen = work_off(scene, jobs, handler_mode="default")
    assert [JobTimeout] == [type(event.exception) for event in seen.of(events.JobAttemptFailed)]
    assert ["failure"] == [row.status for row in archived(queue_engine)]


def test_a_timeout_of_a_plain_handler(queue_engine, scene):
    """A plain function whose time is over is asked to stop, in its thread, and its attempt fails when it returns."""
    add(queue_engine, "slow")
    jobs = JobRegistry()

    @jobs.handler("slow", timeout=0.05)
    def slow(_payload, job):
        assert job.wait(PATIENCE)

    seen = work_off(scene, jobs, handler_mode="default")
    assert [JobTimeout] == [type(event.exception) for event in seen.of(events.JobAttemptFailed)]


def test_waiting_for_the_stop(queue_engine, scene):
    """`await job.wait(seconds)` is False after the time, and True at once when the worker is asked to stop; the job goes back."""
    add(queue_engine)
    answers = []

    async def handle(job):
        answers.append((await job.wait(0.01), job.stopping))
        answers.append((await job.wait(PATIENCE), job.stopping))
        answers.append((await job.wait(PATIENCE), job.stopping))
        raise JobInterrupted

    async def test():
        worker, _ = scene.work(handle)
        async with worker:
            await until(lambda: answers)
            assert 1 == worker.health.running

    scene.run(test)
    assert [(False, False), (True, True), (True, True)] == answers
    assert [(0, None)] == [(row.attempts, row.claimed_by) for row in queued(queue_engine)]


def test_jobs_that_cannot_be_run(queue_engine, scene):
    """A job without a handler is put back for a while, and no other waits for it; with `failed_job`, too."""
    jobs, ran = JobRegistry(), []

    @jobs.handler("known")
    async def known(payload):
        ran.append(payload)

    async def failed_job(_job, _error):
        raise AssertionError("it has not failed yet")

    for queue, options in (("one", {}), ("two", {"failed_job": failed_job})):
        add(queue_engine, "unknown", queue=queue)
        add(queue_engine, "known", 1, queue=queue)
        seen = work_off(scene, jobs, 2, queue=queue, handler_mode="default", **options)
        assert {"unknown"} == {event.job_type for event in seen.of(events.JobUndeliverable)}

    assert [1, 1] == ran
    assert ["unknown", "unknown"] == [row.job_type for row in queued(queue_engine)]


def test_what_is_a_coroutine_function(queue_engine, scene):
    """Partials and objects with an `async def __call__` run on the loop; a plain function that returns a coroutine is a failure."""
    jobs, threads = JobRegistry(), []

    async def partial(_one, _payload):
        threads.append(threading.current_thread())

    class Callable:
        async def __call__(self, _payload):
            threads.append(threading.current_thread())

    jobs.handler("partial")(functools.partial(partial, 1))
    jobs.handler("object")(Callable())
    jobs.handler("hidden")(lambda payload: partial(1, payload))
    for name in ("partial", "object", "hidden"):
        add(queue_engine, name)
    seen = work_off(scene, jobs, 3, handler_mode="default")

    assert [threading.main_thread()] * 2 == threads
    (failed,) = seen.of(events.JobAttemptFailed)
    assert "The handler returned a coroutine instead of doing its work" in str(failed.exception)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_on_shutdown(queue_engine, scene, kind):
    """`on_shutdown` is called on the loop once all handlers have returned; it may be `async def`; an error of its is told."""
    called = []

    def plain():
        called.append(asyncio.get_running_loop())

    async def later():
        await asyncio.sleep(0)
        called.append(asyncio.get_running_loop())
        raise LookupError("gone")

    async def handle(_job):
        return None

    async def test():
        worker, seen = scene.work(handle, on_shutdown=plain if kind == "plain" else later)
        async with worker:
            pass
        assert [asyncio.get_running_loop()] == called
        return [(event.callback, str(event.exception)) for event in seen.of(events.CallbackFailed)]

    told = scene.run(test)
    assert ([] if kind == "plain" else [("on_shutdown", "gone")]) == told


def test_a_callback_for_a_thread_must_be_plain(scene):
    """`on_polling_error` and `on_event` are called in threads: `async def` is refused there, and generators everywhere."""

    async def later(_error):
        return True

    def generator(*_arguments):
        yield

    async def test():
        for name in ("on_polling_error", "on_event"):
            with pytest.raises(TypeError, match=f"{name} .* is an `async def` function or a generator"):
                scene.work(print, **{name: later})
        for name in ("failed_job", "retry", "on_shutdown"):
            with pytest.raises(TypeError, match=f"{name} .* is a generator: a call would never run its body"):
                scene.work(print, **{name: generator})

    scene.run(test)
