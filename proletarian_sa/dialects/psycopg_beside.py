"""A connection of psycopg's to where an engine for asyncio connects: something that waits in a thread needs no event loop."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.engine import create as sqlalchemys

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

DRIVER: Final = "psycopg"
OLDEST: Final = (3, 2)

_SAME: Final = ("host", "port", "user", "password")
_NAMES: Final = {"database": "dbname", "ssl": "sslmode", "timeout": "connect_timeout", "passfile": "passfile"}
"""What asyncpg calls otherwise."""
_NOT_NEEDED: Final = {
    "asyncpg": (
        *("server_settings", "command_timeout", "statement_cache_size", "max_cached_statement_lifetime"),
        *("max_cacheable_statement_size", "prepared_statement_cache_size", "prepared_statement_name_func"),
    ),
    "psycopg": ("autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory"),
}
"""Arguments that do not say where a server is, nor who one is there."""


def why_not(engine: Engine) -> str | None:
    """Return why there can be no such connection, and what to type, if that helps; None if there can."""
    if importlib.util.find_spec(DRIVER) is None:
        return (
            f"{engine.dialect.driver} is not used to listen, and {DRIVER} is not there to do it. "
            "Type: python -m pip install 'proletarian-sa[postgresql]'"
        )
    reason = too_old(importlib.import_module(DRIVER).__version__)
    arguments = _arguments(engine)
    if reason is None and isinstance(arguments, str):
        reason = f"{DRIVER}, which listens beside {engine.dialect.driver}, cannot connect as the engine does: {arguments}"
    return reason


def too_old(version: str | tuple[int, ...]) -> str | None:
    """Return what to say of a version of psycopg that cannot wait for notifications."""
    numbers = version if isinstance(version, tuple) else tuple(int(part) for part in version.split(".")[:2])
    if numbers >= OLDEST:
        return None
    spelt = version if isinstance(version, str) else ".".join(map(str, version))
    return f"psycopg {spelt} cannot wait for notifications. Type: python -m pip install 'psycopg>=3.2'"


def connect(engine: Engine) -> Any:
    """Return a new connection.

    Raises:
        ValueError: `why_not` says why.
    """
    arguments = _arguments(engine)
    if isinstance(arguments, str):
        raise ValueError(arguments)  # noqa: TRY004 - of the engine's
    return importlib.import_module(DRIVER).connect(**arguments)


def _arguments(engine: Engine) -> dict[str, Any] | str:
    """Return what psycopg is to be given, or why that is not known."""
    creator = engine.pool._creator
    if getattr(creator, "__module__", "") != sqlalchemys.__name__:
        return "it has a creator of its own"
    if list(getattr(engine.dialect.dispatch, "do_connect", ())):
        return "it has `do_connect` hooks"
    given: dict[str, Any] = dict(inspect.getclosurevars(creator).nonlocals.get("cparams", {"cparams": None}))
    for name in _NOT_NEEDED.get(engine.dialect.driver.removesuffix("_async"), ()):
        given.pop(name, None)
    if engine.dialect.driver != "asyncpg":
        odd = sorted(name for name, value in given.items() if not isinstance(value, str | int))
        return given if not odd else f"of {', '.join(odd)} it is not known what that means"
    arguments = {_NAMES.get(name, name): _spelt(value) for name, value in given.items() if name in (*_SAME, *_NAMES)}
    odd = sorted(name for name, value in given.items() if not isinstance(arguments.get(_NAMES.get(name, name)), str | int))
    return arguments if not odd else f"of {', '.join(odd)} it is not known what that means"


def _spelt(value: Any) -> Any:
    """Spell several hosts or ports as libpq has them, and seconds as a whole number."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return int(value) if isinstance(value, float) else value
