"""How far claims are spread over the due jobs, where those of a cluster's nodes undo one another."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


class Spread:
    """The oldest due jobs, until a claim loses a race against one on another node; then some among several times as many.

    Where row locks hold on one node only, claims on several nodes that all take the oldest jobs undo each other when they commit.
    Each race that is lost doubles the number of jobs that are chosen from, and a row of claims that lose none halves it: jobs
    are out of order no further than races call for. Where locks keep claims apart, as on one server, none is ever lost.

    Attributes:
        times: From how many times as many jobs as are wanted they are chosen; 1 while there is no choice.
    """

    FEWEST: Final = 16
    MOST: Final = 128
    MOST_ROWS: Final = 2000  # that one claim looks at
    CALM: Final = 100  # claims

    def __init__(self) -> None:
        self.times = 1
        self._calm = 0

    def lost(self) -> None:
        """Take note of a claim that another node's has undone."""
        self.times = min(max(self.FEWEST, 2 * self.times), self.MOST)
        self._calm = 0

    def won(self) -> None:
        """Take note of a claim that was not undone."""
        self._calm += 1
        if self._calm >= self.CALM:
            self._calm = 0
            self.times = self.times // 2 if self.times > self.FEWEST else 1

    def width(self, limit: int) -> int:
        """Return how many jobs to choose from where `limit` are wanted."""
        return min(self.times * limit, max(self.MOST_ROWS, limit))

    @staticmethod
    def choose(found: Sequence[Any], limit: int) -> Sequence[Any]:
        """Return up to `limit` of those found, neighbours: of two such choices fewer meet than of jobs drawn one by one."""
        start = random.randrange(max(1, len(found) - limit + 1))
        return found[start : start + limit]
