"""Leave alone, in a forked child, what belongs to the process that it was forked from."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Final

from sqlalchemy import event
from sqlalchemy.engine import Engine

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.pool import Pool

_OWNER: Final = "proletarian_sa_owner"  # attribute of a pool: the process that was the first to connect through it
_inherited: Final[list[Pool]] = []  # kept, so that nothing closes their connections, which are in use elsewhere


class Process:
    """A process, as it is told from those forked off it: by identity, because to ask for its number is a system call."""

    __slots__ = ()


_this = Process()


def _become_another() -> None:
    global _this  # noqa: PLW0603 - a forked child is another process
    _this = Process()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_become_another)


def this_process() -> Process:
    """Return the process that calls."""
    return _this


@event.listens_for(Engine, "engine_connect")
def _note_owner(connection: Connection) -> None:
    connection.engine.pool.__dict__.setdefault(_OWNER, os.getpid())


def leave_inherited(engine: Engine) -> None:
    """Give an engine a new pool if this process was forked off one that had connected through it.

    Both processes would speak on the same connections. The old ones are not closed: that would end them for the other process.
    """
    pool = engine.pool
    if pool.__dict__.get(_OWNER, os.getpid()) != os.getpid():
        _inherited.append(pool)
        engine.dispose(close=False)


def end_child(process: Process, error: BaseException | None = None) -> None:
    """End this process if it is not the one in which the handler was called, but a child that the handler has forked.

    What comes after the handler is done by the parent: in a child that returns, or raises, it would be done a second time, on the
    parent's connection.

    Args:
        process: The one that called the handler.
        error: What the handler has raised.
    """
    if _this is process:
        return
    code: object = 0
    with contextlib.suppress(BaseException):
        if isinstance(error, SystemExit):
            code = 0 if error.code is None else error.code
            if not isinstance(code, int):
                print(code, file=sys.stderr)  # noqa: T201 - as Python does
        elif error is not None:
            code = 1
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF if isinstance(code, int) else 1)
