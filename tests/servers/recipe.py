"""What it takes to run a server: a command or two, whether of this machine or of a container engine."""

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How to start a server in the foreground and how to end it.

    `prepare` runs first and to its end. `user` is a user id to switch to, None to stay. `patience` is how many seconds
    the server may take to answer. The data is thrown away, so the default signal does not wait for a tidy shutdown.
    """

    url: str
    command: list[str]
    prepare: list[str] | None = None
    user: int | None = None
    stop_signal: signal.Signals = signal.SIGKILL
    patience: float = 60.0
