"""What the open transaction of a connection has enqueued, and what is to happen when it commits.

SQLAlchemy tells of a commit before it is sent, which is too early for a worker to find anything. So the few methods of a dialect
that end transactions and savepoints are told about us, on those engines that enqueue where somebody waits; they are the same for
Sessions, Connections, and async ones. What is noted lies in the `info` of the pooled connection: names only.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from proletarian_sa.wakeups.stations import Due, database_of, wake

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

Note = Due | str
"""Jobs that are due with the commit, or the topic of a notification that has been sent."""

_PENDING: Final = "proletarian_sa_enqueued"  # key of Connection.info
_DATABASE: Final = "proletarian_sa_database"  # attribute of a dialect that was told
_telling: Final = threading.RLock()  # a signal handler may enqueue, too; what it tells twice does no harm


class _Part:
    """What was noted since a savepoint, or since the first note of the transaction."""

    def __init__(self, savepoint: str | None) -> None:
        self.savepoint = savepoint
        self.notes: set[Note] = set()


def note(connection: Connection, one: Note) -> bool:
    """Take a note for the commit; return False if the transaction has it already."""
    parts: list[_Part] = connection.info.setdefault(_PENDING, [])
    if any(one in part.notes for part in parts):
        return False
    if not parts:
        parts.append(_Part(None))
    parts[-1].notes.add(one)
    return True


def database(connection: Connection) -> Any:
    """Return which database this is, for `Due`; from then on, the ends of its engine's transactions are heard of."""
    dialect = connection.dialect
    found = getattr(dialect, _DATABASE, None)
    if found is None:
        with _telling:
            found = getattr(dialect, _DATABASE, None)
            if found is None:
                found = database_of(connection.engine.url, dialect)
                _tell(dialect)
                setattr(dialect, _DATABASE, found)
    return found


def _take(info: Any) -> set[Note]:
    """Return what is noted, and forget it. A connection that is no pool's has no `info`, or something else of that name."""
    parts = info.pop(_PENDING, ()) if isinstance(info, dict) else ()
    return {one for part in parts for one in part.notes}


def _wake(notes: set[Note]) -> None:
    if notes:
        wake([one for one in notes if isinstance(one, Due)])


def _tell(dialect: Any) -> None:
    """Wrap the methods of a dialect, and so of the engine that it is part of."""

    def committed(plain: Callable[..., Any]) -> Callable[..., Any]:
        def end(connection: Any, *arguments: Any, **options: Any) -> Any:
            notes = _take(getattr(connection, "info", None))
            result = plain(connection, *arguments, **options)
            _wake(notes)
            return result

        return end

    def rolled_back(plain: Callable[..., Any]) -> Callable[..., Any]:
        def end(connection: Any, *arguments: Any, **options: Any) -> Any:
            _take(getattr(connection, "info", None))
            return plain(connection, *arguments, **options)

        return end

    def at_savepoint(change: Callable[[list[_Part], str], None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def around(plain: Callable[..., Any]) -> Callable[..., Any]:
            def end(connection: Connection, name: str, *arguments: Any) -> Any:
                result = plain(connection, name, *arguments)
                parts = connection.info.get(_PENDING)
                if parts:
                    change(parts, name)
                return result

            return end

        return around

    for method, around in {
        "do_commit": committed,
        "do_commit_twophase": committed,
        "do_rollback": rolled_back,
        "do_rollback_twophase": rolled_back,
        "do_savepoint": at_savepoint(_set),
        "do_release_savepoint": at_savepoint(_release),
        "do_rollback_to_savepoint": at_savepoint(_roll_back),
    }.items():
        plain = getattr(dialect, method)
        setattr(dialect, method, wraps(plain)(around(plain)))


def _set(parts: list[_Part], name: str) -> None:
    parts.append(_Part(name))


def _release(parts: list[_Part], name: str) -> None:
    at = _find(parts, name)
    if at:
        for part in parts[at:]:
            parts[at - 1].notes |= part.notes
        del parts[at:]


def _roll_back(parts: list[_Part], name: str) -> None:
    """Forget what was noted since the savepoint. One that is unknown was set before the first note: that is all of them."""
    del parts[_find(parts, name) :]


def _find(parts: list[_Part], name: str) -> int:
    return next((at for at, part in enumerate(parts) if part.savepoint == name), 0)
