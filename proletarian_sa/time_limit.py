"""Ask a handler to stop when its time is over."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from proletarian_sa.errors import JobTimeout

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


class TimeLimit:
    """The time that one run of a handler has.

    Args:
        seconds: How long.
        over: Called once, in a thread of its own, if the time is over before the handler has returned.

    Attributes:
        exceeded: It was.
    """

    def __init__(self, seconds: float, over: Callable[[], None]) -> None:
        self.exceeded = False
        self._over = over
        self._returned = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._pass)
        self._timer.daemon = True
        self._seconds = seconds

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._returned = True
        self._timer.cancel()

    def _pass(self) -> None:
        with self._lock:
            if self._returned:
                return
            self.exceeded = True
        self._over()

    def failure(self, raised: BaseException | None) -> BaseException:
        """Return the error of the attempt, whatever the handler has raised after its time was over."""
        error = JobTimeout(f"The handler ran for longer than its timeout of {self._seconds:g} s.")
        error.__cause__ = raised
        return error
