"""Where a job's id comes from when the application makes it: the protocol and the two usual ways."""

from typing import Protocol
from uuid import UUID

from uuid_utils.compat import uuid4, uuid7


class JobIds(Protocol):
    """Make job ids in the application's process.

    An implementation must be safe to call from several threads, must not repeat itself after a fork, and must never
    return the same id twice.
    """

    def new(self) -> UUID:
        """Return an id that was never returned before."""
        ...


class UUIDv7:
    """Make ids that sort by the time they were made (RFC 9562, version 7): the default.

    Within a process each id is greater than the one before; across machines the order is that of their clocks, to the
    millisecond. New rows then land side by side in the primary key's index, which random ids scatter. The time of
    enqueue can be read from the id: use `UUIDv4` where ids are shown to strangers who must not learn it.
    """

    def new(self) -> UUID:
        """Return a new id."""
        return uuid7()


class UUIDv4:
    """Make random ids (RFC 9562, version 4), which tell nothing about the job."""

    def new(self) -> UUID:
        """Return a new id."""
        return uuid4()
