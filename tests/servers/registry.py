"""The servers of one run: each started once, when first asked for, and remembered even if it would not start."""

import atexit
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tests.servers.errors import ServerFailedError, ServerMissingError
from tests.servers.kinds import start
from tests.servers.server import Server

Outcome = Server | ServerMissingError | ServerFailedError


class Servers:
    """Servers by kind, stopped together."""

    def __init__(self, outcomes: dict[str, Outcome] | None = None) -> None:
        self.outcomes = {} if outcomes is None else outcomes
        atexit.register(self.stop)

    def get(self, kind: str) -> Server:
        """Return the server of a kind, starting it if nobody has asked before.

        Raises:
            ServerMissingError: None is to be had.
            ServerFailedError: It would not start.
        """
        self.attempt(kind)
        outcome = self.outcomes[kind]
        if isinstance(outcome, Server):
            return outcome
        raise outcome

    def start(self, kinds: Iterable[str]) -> None:
        """Start several kinds at the same time, since each mostly waits."""
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(self.attempt, kinds):
                pass

    def attempt(self, kind: str) -> None:
        """Start a server unless that was tried before, and remember it or why there is none."""
        if kind in self.outcomes:
            return
        try:
            self.outcomes[kind] = start(kind)
        except (ServerMissingError, ServerFailedError) as error:
            self.outcomes[kind] = error

    def stop(self) -> None:
        """Stop what was started here; a second call does nothing."""
        for outcome in self.outcomes.values():
            if isinstance(outcome, Server):
                outcome.stop()
        self.outcomes.clear()

    def problems(self) -> dict[str, Exception]:
        """Say which kinds there are none of, and why."""
        return {kind: outcome for kind, outcome in self.outcomes.items() if isinstance(outcome, Exception)}
