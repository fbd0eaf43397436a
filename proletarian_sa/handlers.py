"""Which function runs a job: the registry, and plain callables."""

from __future__ import annotations

import datetime as dt
import difflib
import inspect
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from proletarian_sa.clock import as_timedelta
from proletarian_sa.errors import UnknownJobType
from proletarian_sa.names import check_name
from proletarian_sa.retry import RetryStrategy

if TYPE_CHECKING:
    from proletarian_sa.running import RunningJob

SHORTEST_TIMEOUT: Final = dt.timedelta(milliseconds=1)
LONGEST_TIMEOUT: Final = dt.timedelta(days=30)

HandlerMode = Literal["default", "advanced"]
ChooseRetry = Callable[["RunningJob", BaseException], Awaitable[RetryStrategy | None] | RetryStrategy | None]
Retry = RetryStrategy | ChooseRetry | None
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Found:
    """A handler ready to be called, its own retry strategy, how many seconds it has, and whether what it returns is awaited."""

    call: Callable[[RunningJob], Any]
    retry: Retry = None
    timeout: float | None = None
    is_async: bool = False


class Handlers(Protocol):
    """What the pipeline asks: which handler serves a job type."""

    def find(self, job_type: str) -> Found:
        """Return the handler.

        Raises:
            UnknownJobType: There is none.
        """
        ...


class JobRegistry:
    """Handlers by job type.

    jobs = JobRegistry()

    @jobs.handler("send-email", retry=RetryStrategy(retries=4, delays=[1, 5]))
    def send_email(payload): ...

    @jobs.handler("resize")
    def resize(payload, job): ...  # job: RunningJob
    """

    def __init__(self) -> None:
        self._found: dict[str, Found] = {}

    def handler(
        self, job_type: str, *, retry: Retry = None, timeout: dt.timedelta | float | None = None
    ) -> Callable[[Function], Function]:
        """Return a decorator that registers a function of `(payload)` or `(payload, job)`.

        Args:
            job_type: 1 to 255 characters, matched exactly.
            retry: The type's own strategy, or a function `(job, exception) -> RetryStrategy | None`; it takes precedence over the
                worker's. None: the worker's. Of an `async def` handler it may be `async def`, too.
            timeout: How long one run may take, seconds or timedelta; None: as long as it likes. When it is over, `job.stopping` is
                set, and the attempt fails with `JobTimeout` once the handler has returned; an `async def` one is cancelled; in a
                process (`executor="process"`) it is killed at once.

        Raises:
            TypeError: The function takes other arguments, or is a generator, whose body nobody would run. One that is `async def`
                is refused by a `QueueWorker`, whose threads would never run it; it is for an `AsyncQueueWorker`.
            ValueError: The type is registered already, or is no valid name; or the timeout is out of bounds.

        **Transaction:** nothing.
        """
        if inspect.isroutine(job_type):
            raise TypeError(f"The decorator needs a job type: @jobs.handler({job_type.__name__.replace('_', '-')!r}).")
        check_name(job_type, "job_type")
        check_retry(retry, is_async=True)
        seconds = None if timeout is None else _seconds(timeout)

        def register(function: Function) -> Function:
            if job_type in self._found:
                raise ValueError(f"There is a handler for {job_type!r} already. Register one function per job type.")
            found = _adapt(function, job_type)
            if not found.is_async:
                check_retry(retry)
            self._found[job_type] = replace(found, retry=retry, timeout=seconds)
            return function

        return register

    def find(self, job_type: str) -> Found:
        """Return the handler of a job type.

        Raises:
            UnknownJobType: There is none.
        """
        found = self._found.get(job_type)
        if found is None:
            names = list(self._found)  # more may be registered meanwhile
            near = difflib.get_close_matches(job_type, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            known = ", ".join(map(repr, sorted(names))) or "none"
            raise UnknownJobType(f"There is no handler for the job type {job_type!r}.{hint} Registered: {known}.")
        return found

    def _refuse_async(self) -> None:
        for job_type, found in list(self._found.items()):
            if found.is_async:
                raise TypeError(f"The handler of {job_type!r} {_NOT_IN_A_THREAD} Or give the registry to an AsyncQueueWorker.")

    def __contains__(self, job_type: object) -> bool:
        return job_type in self._found


@dataclass(frozen=True, slots=True)
class _OneCallable:
    found: Found

    def find(self, job_type: str) -> Found:  # noqa: ARG002 - it serves them all
        return self.found


def as_handlers(handler: Any, mode: HandlerMode, *, is_async: bool = False) -> Handlers:
    """Return what the user gave as a worker's handler as something that can be asked.

    Args:
        handler: A `JobRegistry`, or a callable.
        mode: How to call a callable: `default`, `(job_type, payload)`; `advanced`, `(job)`.
        is_async: Whether what handlers return can be awaited.

    Raises:
        TypeError: It is neither, or is a generator, or is `async def` and nobody would await it.
        ValueError: There is no such mode.
    """
    if mode not in ("default", "advanced"):
        raise ValueError(f"handler_mode must be 'default' or 'advanced', not {mode!r}.")
    if isinstance(handler, JobRegistry):
        if not is_async:
            handler._refuse_async()
        return handler
    if not callable(handler):
        raise TypeError(f"A handler is a JobRegistry or a function of (job_type, payload), not {handler!r}.")
    _refuse_unrunnable(handler, repr(handler), is_async=is_async)
    wanted = ("job",) if mode == "advanced" else ("job_type", "payload")
    _check_arguments(handler, len(wanted), f"With handler_mode={mode!r} a handler takes ({', '.join(wanted)})")
    if mode == "advanced":
        return _OneCallable(_found(handler, handler))
    return _OneCallable(_found(handler, lambda job: handler(job.job_type, job.payload)))


def _adapt(function: Callable[..., Any], job_type: str) -> Found:
    _refuse_unrunnable(function, f"The handler of {job_type!r}", is_async=True)
    if _wants_job(function, job_type):
        return _found(function, lambda job: function(job.payload, job))
    return _found(function, lambda job: function(job.payload))


def _found(function: Callable[..., Any], call: Callable[[RunningJob], Any]) -> Found:
    """Return what calls a function; a plain one must not return work that nobody would do."""
    return Found(call, is_async=True) if is_coroutine_function(function) else Found(lambda job: result_of(call(job)))


def _wants_job(function: Callable[..., Any], job_type: str) -> bool:
    """Return whether the function takes the job beside the payload: a second argument that is required, or is named job."""
    parameters = _positional(function)
    if parameters is None:
        return False
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    wants = len(required) == 2 or [parameter.name for parameter in parameters[1:2]] == ["job"]  # noqa: PLR2004 - payload, job
    _check_arguments(function, 2 if wants else 1, f"The handler of {job_type!r} must take (payload) or (payload, job)")
    return wants


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature
        return None
    return [parameter for parameter in parameters if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)]


def _check_arguments(function: Callable[..., Any], count: int, rule: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise TypeError(f"{rule}; {function!r} takes {signature}.") from error


_NOT_IN_A_THREAD: Final = (
    "is an `async def` function or a generator: a worker thread would call it and never run its body. Make it a plain function."
)

_NEVER_RUN: Final = (
    "is a generator: a call would never run its body. Make it a plain function, or an `async def` one without `yield`."
)


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return whether calling this makes a coroutine, as far as can be seen."""
    return any(inspect.iscoroutinefunction(candidate) for candidate in _called(function))


def _called(function: Callable[..., Any]) -> tuple[Any, Any]:
    """Return the function, and the method behind an object that is called like one."""
    return function, function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004 - its method is looked at


def _refuse_unrunnable(function: Callable[..., Any], name: str, *, is_async: bool = False) -> None:
    if inspect.isclass(function):
        raise TypeError(
            f"{name} is a class: calling it would only make an instance. Give a function, or an instance with __call__."
        )
    if is_coroutine_function(function) and not is_async:
        raise TypeError(f"{name} {_NOT_IN_A_THREAD}")
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(kind(candidate) for kind in kinds for candidate in _called(function)):
        raise TypeError(f"{name} {_NEVER_RUN if is_async else _NOT_IN_A_THREAD}")


def result_of(result: object, name: str = "The handler") -> object:
    """Return what a function of the application's returned, unless that is work that nobody would do.

    Raises:
        TypeError: It is a coroutine, another awaitable, or a generator.
    """
    if result is not None and isinstance(result, Awaitable | Generator):
        close = getattr(result, "close", None)
        if close is not None:
            close()
        raise TypeError(
            f"{name} returned a {type(result).__name__} instead of doing its work, so its body has not run. "
            "Make it a plain function, or call asyncio.run() in it."
        )
    return result


def _seconds(timeout: dt.timedelta | float) -> float:
    return as_timedelta(timeout, "timeout", minimum=SHORTEST_TIMEOUT, maximum=LONGEST_TIMEOUT).total_seconds()


def check_retry(retry: object, *, is_async: bool = False) -> None:
    """Raise TypeError unless this is a retry strategy, a function that chooses one, or None; `is_async`: it may be awaited."""
    if retry is None or isinstance(retry, RetryStrategy):
        return
    if not callable(retry) or inspect.isclass(retry):
        raise TypeError(
            f"retry must be a RetryStrategy or a function (job, exception) -> RetryStrategy | None, not {retry!r}: "
            "retry=RetryStrategy(retries=4, delays=[1, 5])."
        )
    check_callback(retry, "retry", "job", "exception", is_async=is_async)


def check_callback(callback: Callable[..., Any] | None, name: str, *arguments: str, is_async: bool = False) -> None:
    """Raise TypeError unless this is a function of these arguments whose body runs when it is called, or awaited, or None."""
    if callback is None:
        return
    if not callable(callback):
        raise TypeError(f"{name} must be a function, not {callback!r}.")
    _refuse_unrunnable(callback, f"{name} {callback!r}", is_async=is_async)
    _check_arguments(callback, len(arguments), f"{name} is called with ({', '.join(arguments)})")
