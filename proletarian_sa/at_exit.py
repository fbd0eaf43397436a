"""Stop workers when the interpreter ends, while their handlers may still use pools of threads."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - registers its own end: pools are closed in the reverse order, after our workers
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_stops: Final[list[Callable[[], object]]] = []
_lock: Final = threading.RLock()  # a signal handler may stop a worker while the main thread is in here


def call_at_exit(stop: Callable[[], object]) -> None:
    """Call `stop` when the main thread has ended, unless it is forgotten before."""
    with _lock:
        if stop not in _stops:
            _stops.append(stop)


def forget(stop: Callable[[], object]) -> None:
    """Do not call `stop` any more."""
    with _lock:
        if stop in _stops:
            _stops.remove(stop)


def _stop_all() -> None:
    for stop in _stops.copy():  # each forgets itself
        stop()


# Functions of `atexit` are called after concurrent.futures has closed its pools: a handler that hands work to one would fail, for
# no fault of the job's, before it is asked to stop. Python's own way to come before that has no public name.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
