"""Handlers by job type: what the registry accepts, refuses, and says about it."""

import asyncio
import functools

import pytest

from proletarian_sa import JobRegistry, QueueWorker, RetryStrategy, UnknownJobType, events, process_next_job
from tests.observing import Recorder, add
from tests.queue_contents import archived


async def coroutine(payload):
    """Never runs in a thread worker."""


async def asynchronous_generator(payload):
    """Likewise."""
    yield payload


def generator(payload):
    """Runs only when somebody iterates."""
    yield payload


class Callable:
    """An object that can be called."""

    def __call__(self, payload):
        return payload


class AsyncCallable:
    """An object of which the call is a coroutine."""

    async def __call__(self, payload):
        """Never runs."""


class Methods:
    """Bound, class and static methods."""

    def bound(self, payload):
        return payload

    @classmethod
    def of_class(cls, payload, job):
        return payload

    @staticmethod
    def static(payload):
        return payload


ACCEPTED = {
    "payload": lambda payload: None,
    "job": lambda payload, job: None,
    "other names": lambda this, that: None,
    "job with default": lambda payload, job=None: None,
    "option": lambda payload, verbose=True: None,
    "keyword only option": lambda payload, *, verbose=True: None,
    "any": lambda *arguments: None,
    "any options": lambda payload, **options: None,
    "object": Callable(),
    "bound": Methods().bound,
    "class": Methods.of_class,
    "static": Methods.static,
    "partial": functools.partial(lambda x, payload: None, 1),
    "builtin": print,
}


def test_functions_of_payload_or_of_payload_and_job(queue_engine):
    """Whatever can be called with `(payload)` or `(payload, job)` is accepted, and is called so."""
    jobs = JobRegistry()
    for name, function in ACCEPTED.items():
        jobs.handler(name)(function)
        add(queue_engine, name, [name])
    for _ in ACCEPTED:
        process_next_job(queue_engine, jobs)

    assert {(name, "success") for name in ACCEPTED} == {(row.job_type, row.status) for row in archived(queue_engine)}


def test_the_second_argument_is_the_job_if_it_is_required_or_is_named_so(queue_engine):
    """An optional second argument of another name keeps its default."""
    jobs, given = JobRegistry(), []
    jobs.handler("required")(lambda payload, second: given.append(second.job_type))
    jobs.handler("named")(lambda payload, job=None: given.append(job.job_type))
    jobs.handler("other")(lambda payload, verbose=7: given.append(verbose))
    for job_type in ("required", "named", "other"):
        add(queue_engine, job_type)
        process_next_job(queue_engine, jobs)

    assert ["required", "named", 7] == given


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda payload, job, more: None,
        lambda payload, *, token: None,
        lambda *, payload: None,
        functools.partial(lambda payload: None, 1),
    ],
    ids=["none", "three", "keyword only", "only keywords", "partial"],
)
def test_a_function_of_other_arguments_is_refused_at_registration(function):
    """Handler cannot be called: the message names the job type, the rule and the function's own arguments."""
    with pytest.raises(TypeError, match=r"The handler of 'resize' must take \(payload\) or \(payload, job\); .* takes \(.*\)\."):
        JobRegistry().handler("resize")(function)


@pytest.mark.parametrize(
    "function",
    [asynchronous_generator, generator, functools.partial(generator)],
    ids=["async generator", "generator", "partial generator"],
)
def test_what_nobody_would_ever_run_is_refused(function):
    """Handler cannot be called: generators are refused at registration."""
    expected = "is a generator: a call would never run its body. Make it a plain function, or an `async def` one without `yield`."
    with pytest.raises(TypeError, match="a plain function") as caught:
        JobRegistry().handler("later")(function)
    assert f"The handler of 'later' {expected}" == str(caught.value)


@pytest.mark.parametrize(
    "function",
    [coroutine, AsyncCallable(), functools.partial(coroutine)],
    ids=["coroutine", "object", "partial coroutine"],
)
def test_what_a_thread_would_never_run_is_refused(queue_engine, function):
    """Handler cannot be called: a registry takes `async def` for an AsyncQueueWorker, and a worker with threads refuses that."""
    jobs = JobRegistry()
    assert function is jobs.handler("later")(function)
    expected = (
        "is an `async def` function or a generator: a worker thread would call it and never run its body. Make it a plain "
        "function. Or give the registry to an AsyncQueueWorker."
    )
    for use in (QueueWorker, process_next_job):
        with pytest.raises(TypeError, match="a plain function") as caught:
            use(queue_engine, jobs)
        assert f"The handler of 'later' {expected}" == str(caught.value)


def test_an_async_handler_that_comes_late_is_a_failure(queue_engine):
    """Handler cannot be called: registered after the worker was made, `async def` is a failed attempt, never a success unrun."""
    jobs = JobRegistry()
    worker = QueueWorker(queue_engine, jobs, polling_interval=0.01, on_event=(seen := Recorder()))
    jobs.handler("later")(coroutine)
    add(queue_engine, "later")
    with worker:
        failed = seen.wait_for(events.JobAttemptFailed)

    assert "The handler returned a coroutine instead of doing its work" in str(failed.exception)


def test_a_worker_refuses_async_handlers(queue_engine):
    """Handler cannot be called: so does `process_next_job`, before it claims anything."""
    with pytest.raises(TypeError, match="async def"):
        process_next_job(queue_engine, coroutine)


class Awaitable:
    """A thing to be awaited, without `close`."""

    def __await__(self):
        yield


def test_a_coroutine_that_is_returned_is_a_failure(queue_engine):
    """Handler cannot be called: a coroutine or generator behind a plain function is a failed attempt, never a success unrun."""
    ran = []

    async def work():
        ran.append(1)

    def walk():
        ran.append(1)
        yield

    returned = {"coroutine": work, "generator": walk, "Awaitable": Awaitable}
    for name, make in returned.items():
        add(queue_engine, name)
        outcome = process_next_job(queue_engine, lambda *_, make=make: make())

        assert "failed" == outcome.status
        assert f"The handler returned a {name} instead of doing its work" in str(outcome.exception)
    assert [] == ran


def test_a_handler_may_run_a_loop_of_its_own(queue_engine):
    """`asyncio.run` in a plain function is the way to call asynchronous code."""
    ran = []

    async def work(payload):
        ran.append(payload)

    add(queue_engine, payload=3)

    assert "succeeded" == process_next_job(queue_engine, lambda _type, payload: asyncio.run(work(payload))).status
    assert [3] == ran


@pytest.mark.parametrize(
    "result", [0, True, "x", [], {}, ValueError("returned"), object()], ids=lambda result: type(result).__name__
)
def test_what_a_handler_returns_does_not_matter(result):
    """Returning is success, whatever is returned."""
    jobs = JobRegistry()
    jobs.handler("any")(lambda payload: result)

    class Job:
        payload = None

    assert result is jobs.find("any").call(Job())


def test_a_job_type_has_one_handler():
    """A second function for a type is refused; the first stays."""
    jobs = JobRegistry()
    first = jobs.handler("send-email")(lambda payload: None)

    with pytest.raises(ValueError, match="There is a handler for 'send-email' already"):
        jobs.handler("send-email")(lambda payload: None)
    assert callable(first)
    assert "send-email" in jobs
    assert "send-mail" not in jobs


def test_the_decorator_returns_the_function():
    """A handler stays a function that can be called and tested."""

    def function(payload):
        return payload * 2

    assert function is JobRegistry().handler("double")(function)


@pytest.mark.parametrize(
    ("job_type", "error", "message"),
    [
        ("", ValueError, "job_type must have 1 to 255 characters"),
        ("x" * 256, ValueError, "has 256"),
        (" a", ValueError, "white space at an end"),
        ("a\0", ValueError, "NUL"),
        (None, TypeError, "job_type must be a string, not None"),
        (lambda payload: None, TypeError, "The decorator needs a job type"),
    ],
    ids=["empty", "long", "white space", "nul", "none", "bare decorator"],
)
def test_a_job_type_is_checked(job_type, error, message):
    """Handler cannot be called: a name that no job can have is refused, `@jobs.handler` without its name too."""
    with pytest.raises(error, match=message):
        JobRegistry().handler(job_type)


@pytest.mark.parametrize("retry", [3, "4", [1, 5], {"retries": 1}, RetryStrategy], ids=repr)
def test_a_retry_is_checked(retry):
    """What is no strategy, its class included, is refused at registration, with an example of one."""
    with pytest.raises(TypeError, match=r"retry=RetryStrategy\(retries=4, delays=\[1, 5\]\)"):
        JobRegistry().handler("x", retry=retry)


def test_an_unknown_type_is_explained():
    """The error suggests the type that was meant, and lists those that are there."""
    jobs = JobRegistry()
    jobs.handler("send-email")(lambda payload: None)
    jobs.handler("resize")(lambda payload: None)

    with pytest.raises(UnknownJobType) as caught:
        jobs.find("send-emial")
    assert (
        "There is no handler for the job type 'send-emial'. Did you mean 'send-email'? Registered: 'resize', 'send-email'."
        == str(caught.value)
    )
    with pytest.raises(UnknownJobType, match="Registered: none"):
        JobRegistry().find("x")


def test_types_are_matched_exactly(queue_engine):
    """Case and accents matter on every database."""
    jobs, ran = JobRegistry(), []
    for job_type in ("a", "A", "ä"):
        jobs.handler(job_type)(lambda payload, job: ran.append(job.job_type))
        add(queue_engine, job_type)
    for _ in range(3):
        process_next_job(queue_engine, jobs)

    assert ["a", "A", "ä"] == ran


def test_arguments_of_a_plain_function_are_checked(queue_engine):
    """Without a registry a handler takes `(job_type, payload)`, or `(job)` in the advanced mode; else it is refused at once."""
    with pytest.raises(TypeError, match=r"With handler_mode='default' a handler takes \(job_type, payload\); .* takes \(job\)"):
        process_next_job(queue_engine, lambda job: None)
    with pytest.raises(TypeError, match=r"With handler_mode='advanced' a handler takes \(job\); .* takes \(job_type, payload\)"):
        process_next_job(queue_engine, lambda job_type, payload: None, handler_mode="advanced")
