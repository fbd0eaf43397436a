"""What notifications ask of a database: implemented beside its statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection, Engine


class Ear(Protocol):
    """A connection of its own, in autocommit, that hears notifications."""

    def fileno(self) -> int:
        """Return the socket to wait at."""
        ...

    def heard(self) -> set[str]:
        """Return what has come since; does not wait.

        Raises:
            Exception: The connection is lost.
        """
        ...

    def check(self) -> None:
        """Make sure that the connection lives, by a round trip.

        Raises:
            Exception: It does not.
        """
        ...

    def close(self) -> None:
        """Close it. Raises nothing."""
        ...


class Notifications(Protocol):
    """How sessions tell each other of new jobs."""

    def send(self, connection: Connection, topic: str) -> None:
        """Send a topic, which is ASCII letters and digits, to all who listen: with the commit, never after a rollback.

        **Transaction:** the caller's.
        """
        ...

    def why_deaf(self, engine: Engine) -> str | None:
        """Return why nothing can be heard through the driver of this engine, and what to type; None if it can."""
        ...

    def listen(self, engine: Engine) -> Ear:
        """Connect, and hear all topics sent from now on.

        **Transaction:** none: a connection taken out of the engine's pool for good, in autocommit.
        """
        ...

    def until_next(self, connection: Connection, queues: Sequence[str]) -> float | None:
        """Return in how many seconds the next job of these queues can be taken, as far as is known; None: there is none.

        Below or at 0: there is one that is due and locked, or due since the last claim.

        **Transaction:** reads.
        """
        ...
