"""What workers of threads and of asyncio have in common for those who make and watch them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from proletarian_sa.clock import as_timedelta
from proletarian_sa.health import Health

if TYPE_CHECKING:
    from proletarian_sa.lifecycle import Lifecycle

SHORTEST_INTERVAL: Final = 0.01  # seconds between polls
LONGEST_WAIT: Final = dt.timedelta(days=30)  # threads wait for up to 49 days on Windows


class WorkerBase:
    """A worker's state, seen from outside."""

    _crew: Lifecycle | None = None
    """Its last start."""

    @property
    def is_running(self) -> bool:
        """Whether it has been started and not yet stopped. False in a forked child, which has none of its threads."""
        return self._crew is not None and self._crew.is_alive()

    @property
    def health(self) -> Health:
        """What it is doing, and whether the database answers: for a health check, from any thread. Asks the database nothing.

            healthy = worker.health.state == "running" and worker.health.stalled_for < 60

        **Transaction:** nothing.
        """
        idle = Health(state="stopped", running=0, stalled_for=0.0, reason="")
        return idle if self._crew is None else self._crew.health()

    @property
    def error(self) -> BaseException | None:
        """The error that ended the worker, if one did."""
        return None if self._crew is None else self._crew.error


def check_count(value: Any, name: str, most: int) -> None:
    """Raise unless an option is an int from 1 to the most."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r}.")
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be 1 to {most}, not {value}.")


def check_flags(**flags: Any) -> None:
    """Raise unless options are True or False."""
    for name, given in flags.items():
        if not isinstance(given, bool):
            raise TypeError(f"{name} must be True or False, not {given!r}.")


def seconds_of(value: Any, name: str, minimum: float = 0.0) -> float:
    """Return an option, seconds or timedelta, in seconds."""
    return as_timedelta(value, name, minimum=dt.timedelta(seconds=minimum), maximum=LONGEST_WAIT).total_seconds()
