"""The facts about one running database server."""

from collections.abc import Callable
from dataclasses import dataclass


def leave_running() -> None:
    """Stop nothing: this server belongs to somebody else, or is no process."""


@dataclass(frozen=True)
class Server:
    """A server that answers, and how to make it go away.

    `url` is a SQLAlchemy URL with its password, of a user who may create databases; `version` is what the server says.
    """

    name: str
    url: str
    version: str
    stop: Callable[[], None] = leave_running
