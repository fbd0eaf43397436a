"""Where the idle workers of this process wait: one station for those that look for the same jobs."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy.engine import URL, Dialect

    from proletarian_sa.runtime import Runtime

Database = Any
"""What tells databases apart: a tuple of what the URL says, or a dialect."""


class Due(NamedTuple):
    """Jobs of a queue that are due with the commit of their transaction."""

    database: Database
    table: str
    queue: str


class Station:
    """Where the workers wait that look for the same jobs: those of one engine, of the same queues in the same order.

    Of them one polls for all. What is shared must be the same for certain, because who waits trusts the poll of another. Of two
    engines that is not known, even with one URL: `connect_args`, a `creator` or a `schema_translate_map` may lead them to other
    tables.

    Attributes:
        key: Under which it is known.
        changed: Guards what follows, and is notified of every change. Reentrant: a signal handler may commit.
        wakes: How often all who wait were woken.
        more: One of those who wait is to look, because there may be more jobs than those that were just taken.
        polled_at: When a claim was last sent, on the monotonic clock.
    """

    def __init__(self, runtime: Runtime, key: Any) -> None:
        self.key = key
        self.database = database_of(runtime.engine.url, runtime.engine.dialect)
        self.table = runtime.tables.job.fullname
        self.queues = frozenset(runtime.queues)
        self.changed = threading.Condition()
        self.members = 0
        self.wakes = 0
        self.more = False
        self.polled_at = float("-inf")

    def wake(self) -> None:
        """Let all who wait look at once."""
        with self.changed:
            self.wakes += 1
            self.changed.notify_all()

    def hand_on(self) -> None:
        """Let another one look: there may be more jobs, or it is no longer us who polls."""
        with self.changed:
            if self.members > 1:
                self.more = True
                self.changed.notify()


class _Stations:
    """The stations of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_key: dict[Any, Station] = {}
        self.all: tuple[Station, ...] = ()


_here = _Stations()


def _forget() -> None:
    """Start anew in a forked child, which has none of the threads that wait."""
    global _here  # noqa: PLW0603 - its lock may be held by a thread that is no more
    _here = _Stations()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def join(runtime: Runtime) -> Station:
    """Return the station of a worker that begins to wait there now and then."""
    key = _key(runtime)
    with _here.lock:
        station = _here.by_key.get(key)
        if station is None:
            station = _here.by_key[key] = Station(runtime, key)
            _here.all = tuple(_here.by_key.values())
        station.members += 1
    return station


def leave(station: Station) -> None:
    """Take note that a worker has stopped; another one is to poll."""
    with _here.lock:
        station.hand_on()
        station.members -= 1
        if not station.members and _here.by_key.get(station.key) is station:
            del _here.by_key[station.key]
            _here.all = tuple(_here.by_key.values())


def any_here() -> bool:
    """Return whether there are workers in this process."""
    return bool(_here.all)


def wake(due: Iterable[Due]) -> None:
    """Wake the workers of this process that look for such jobs. Waits for nobody, raises nothing."""
    wanted = set(due)
    for station in _here.all:
        if any(Due(station.database, station.table, queue) in wanted for queue in station.queues):
            station.wake()


def database_of(url: URL, dialect: Dialect) -> Database:
    """Return what engines on the same database have in common, as far as their URLs tell: kind, host, port and name.

    Where a URL tells nothing, because a `creator` knows it all, that is the engine itself. Users and drivers do not matter: an
    async engine that enqueues wakes a worker on a synchronous one. Two databases that are taken for one cost an idle poll.
    """
    query = tuple((name, url.query[name]) for name in ("host", "port", "service", "unix_socket") if name in url.query)
    if url.host is None and url.database is None and not query:
        return dialect
    name = url.database
    if name is not None and url.host is None and not name.startswith("file:"):
        name = os.path.abspath(name)  # noqa: PTH100 - of a file; of a server's database it does no harm
    return (url.get_backend_name(), url.host, url.port, name, query)


def _key(runtime: Runtime) -> Any:
    translated = runtime.engine.get_execution_options().get("schema_translate_map") or {}
    return (
        runtime.engine.dialect,
        frozenset(translated.items()),
        runtime.tables.job.fullname,
        id(runtime.tables.clock),
        runtime.queues,
    )
