"""Find what a command line or an option names: an object of the application's, or what a function of its returns."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class WrongTargetError(ValueError):
    """There is nothing of the kind under that name. What the application's own code raises is never one."""


def load(
    target: str, wanted: type | tuple[type, ...], what: str, run: Callable[[Coroutine[Any, Any, Any]], Any] | None = None
) -> Any:
    """Import `MODULE:NAME`, and return it if it is wanted, else what it returns when it is called without arguments.

    Args:
        target: The current folder is on the path.
        wanted: The type of what is to be returned, or several.
        what: How that is called, for messages: `a QueueWorker`.
        run: Returns what a coroutine returns: the function may be `async def`. Without it, it may not.

    Raises:
        WrongTargetError: The message says what to type.
        Exception: What the module, or the function, raises.

    **Transaction:** nothing.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name or module_name.startswith("."):
        raise WrongTargetError(f"{target!r} is not of the form MODULE:NAME, for example: proletarian-sa worker myapp:make_worker")
    folder = os.getcwd()  # noqa: PTH109 - a string is what belongs there
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise WrongTargetError(f"There is no module {error.name!r} in {folder} or on the path.") from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise WrongTargetError(f"{module_name!r} has no {name!r}. Name {what}, or a function that returns one.")
        found = getattr(found, part)
    if not isinstance(found, wanted) and callable(found):
        _check(found, target, what)
        found = found()
        if inspect.iscoroutine(found):
            found = _awaited(found, target, what, run)
    if not isinstance(found, wanted):
        raise WrongTargetError(f"{target} must be {what}, or a function that returns one; this is {found!r}.")
    return found


def _awaited(
    coroutine: Coroutine[Any, Any, Any], target: str, what: str, run: Callable[[Coroutine[Any, Any, Any]], Any] | None
) -> Any:
    if run is None:
        coroutine.close()
        raise WrongTargetError(f"{target} is `async def`. Name {what}, or a plain function that returns one.")
    return run(coroutine)


def _check(factory: Callable[..., Any], target: str, what: str) -> None:
    try:
        signature = inspect.signature(factory)
    except ValueError:  # a builtin without a signature
        return
    try:
        signature.bind()
    except TypeError as error:
        raise WrongTargetError(f"{target} takes {signature}. Name {what}, or a function without arguments.") from error
