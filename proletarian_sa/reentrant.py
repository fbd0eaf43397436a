"""An event for those whom a signal handler may interrupt."""

from __future__ import annotations

import threading


class ReentrantEvent(threading.Event):
    """An event that may be used by a signal handler that has interrupted its use in the same thread.

    Python's own has a lock that its owner cannot take again: a handler that stops a worker, while the main thread begins to wait
    for that worker, would wait for itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()  # with a lock that can be taken again
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all who wait."""
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Set it no longer."""
        with self._changed:
            self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at the most for so many seconds; return whether it is."""
        with self._changed:
            if not self._is_set:
                self._changed.wait(timeout)
            return self._is_set
