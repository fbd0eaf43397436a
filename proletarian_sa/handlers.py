"""Which function runs a job: the registry, and plain callables."""

from __future__ import annotations

import datetime as dt
import difflib
import inspect
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
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
ChooseRetry = Callable[["RunningJob", BaseException], RetryStrategy | None]
Retry = RetryStrategy | ChooseRetry | None
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Found:
    """A handler ready to be called, its own retry strategy, and how many seconds it has."""

    call: Callable[[RunningJob], object]
    retry: Retry = None
    timeout: float | None = None


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
                worker's. None: the worker's.
            timeout: How long one run may take, seconds or timedelta; None: as long as it likes. When it is over, `job.stopping` is
                set, and the attempt fails with `JobTimeout` once the handler has returned; in a process (`executor="process"`) it
                is killed at once.

        Raises:
            TypeError: The function takes other arguments, or is `async def` or a generator, which a worker thread would never run.
            ValueError: The type is registered already, or is no valid name; or the timeout is out of bounds.

        **Transaction:** nothing.
        """
        if inspect.isroutine(job_type):
            raise TypeError(f"The decorator needs a job type: @jobs.handler({job_type.__name__.replace('_', '-')!r}).")
        check_name(job_type, "job_type")
        check_retry(retry)
        seconds = None if timeout is None else _seconds(timeout)

        def register(function: Function) -> Function:
            if job_type in self._found:
                raise ValueError(f"There is a handler for {job_type!r} already. Register one function per job type.")
            self._found[job_type] = Found(_adapt(function, job_type), retry, seconds)
            return function

        return register

    def find(self, job_type: str) -> Found:
        """Return the handler of a job type.

        Raises:
            UnknownJobType: There is none.
        """
        found = self._found.get(job_type)
        if found is None:
            near = difflib.get_close_matches(job_type, self._found, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            known = ", ".join(map(repr, sorted(self._found))) or "none"
            raise UnknownJobType(f"There is no handler for the job type {job_type!r}.{hint} Registered: {known}.")
        return found

    def __contains__(self, job_type: object) -> bool:
        return job_type in self._found


@dataclass(frozen=True, slots=True)
class _OneCallable:
    found: Found

    def find(self, job_type: str) -> Found:  # noqa: ARG002 - it serves them all
        return self.found


def as_handlers(handler: Any, mode: HandlerMode) -> Handlers:
    """Return what the user gave as a worker's handler as something that can be asked.

    Args:
        handler: A `JobRegistry`, or a callable.
        mode: How to call a callable: `default`, `(job_type, payload)`; `advanced`, `(job)`.

    Raises:
        TypeError: It is neither, or is `async def` or a generator.
        ValueError: There is no such mode.
    """
    if mode not in ("default", "advanced"):
        raise ValueError(f"handler_mode must be 'default' or 'advanced', not {mode!r}.")
    if isinstance(handler, JobRegistry):
        return handler
    if not callable(handler):
        raise TypeError(f"A handler is a JobRegistry or a function of (job_type, payload), not {handler!r}.")
    _refuse_unrunnable(handler, repr(handler))
    wanted = ("job",) if mode == "advanced" else ("job_type", "payload")
    _check_arguments(handler, len(wanted), f"With handler_mode={mode!r} a handler takes ({', '.join(wanted)})")
    if mode == "advanced":
        return _OneCallable(Found(lambda job: result_of(handler(job))))
    return _OneCallable(Found(lambda job: result_of(handler(job.job_type, job.payload))))


def _adapt(function: Callable[..., Any], job_type: str) -> Callable[[RunningJob], object]:
    _refuse_unrunnable(function, f"The handler of {job_type!r}")
    if _wants_job(function, job_type):
        return lambda job: result_of(function(job.payload, job))
    return lambda job: result_of(function(job.payload))


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


def _refuse_unrunnable(function: Callable[..., Any], name: str) -> None:
    if inspect.isclass(function):
        raise TypeError(
            f"{name} is a class: calling it would only make an instance. Give a function, or an instance with __call__."
        )
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004 - its method is looked at
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(kind(candidate) for kind in kinds for candidate in (function, called)):
        raise TypeError(
            f"{name} is an `async def` function or a generator: a worker thread would call it and never run its body. "
            "Make it a plain function."
        )


def result_of(result: object, name: str = "The handler") -> object:
    """Return what a function of the application's returned, unless that is work that nobody would do.

    Raises:
        TypeError: It is a coroutine, another awaitable, or a generator.
    """
    if isinstance(result, Awaitable | Generator):
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


def check_retry(retry: object) -> None:
    """Raise TypeError unless this is a retry strategy, a function that chooses one, or None."""
    if retry is None or isinstance(retry, RetryStrategy):
        return
    if not callable(retry) or inspect.isclass(retry):
        raise TypeError(
            f"retry must be a RetryStrategy or a function (job, exception) -> RetryStrategy | None, not {retry!r}: "
            "retry=RetryStrategy(retries=4, delays=[1, 5])."
        )
    check_callback(retry, "retry", "job", "exception")


def check_callback(callback: Callable[..., Any] | None, name: str, *arguments: str) -> None:
    """Raise TypeError unless this is a function of these arguments whose body runs when it is called, or None."""
    if callback is None:
        return
    if not callable(callback):
        raise TypeError(f"{name} must be a function, not {callback!r}.")
    _refuse_unrunnable(callback, f"{name} {callback!r}")
    _check_arguments(callback, len(arguments), f"{name} is called with ({', '.join(arguments)})")
