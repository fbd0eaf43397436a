"""What is run and what came of it: plain facts that travel as JSON, and the stopwatch that handlers hold."""

from __future__ import annotations

import operator
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

Numbers = dict[str, float]
GLANCE: Final = 0.5
"""Seconds between two looks at whether a worker lives."""


class HasError(Protocol):
    """A worker, which knows what has ended it; peers have none of ours."""

    @property
    def error(self) -> BaseException | None:
        """What has ended it, if anything has."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One call of a function in a process of its own, on a new database.

    Attributes:
        name: Unique; targets are about names.
        environment: Which virtual environment it runs in; the name of a peer, or `ours`.
        function: `module:function`; takes the URL of its database and the options, returns numbers.
        database: The kind of server.
        options: What the function is given beside the URL: the settings.
        repeats: How often it runs.
    """

    name: str
    environment: str
    function: str
    database: str
    options: dict[str, Any] = field(default_factory=dict)
    repeats: int = 1


@dataclass(kw_only=True)
class Outcome:
    """What came of a run: the numbers of each repeat, and what went wrong, if anything did."""

    run: Run
    numbers: list[Numbers] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def median(self, number: str) -> float | None:
        """Return the median of one number over the repeats, None if there is none."""
        values = [numbers[number] for numbers in self.numbers if number in numbers]
        return statistics.median(values) if values else None


class Stopwatch:
    """Count calls of handlers; know when the first came and when there were as many as there are jobs.

    Times are of time.perf_counter. `marked` is when three quarters were done.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.last_quarter = max(jobs // 4, 1)
        self._numbers = iter(range(1, sys.maxsize))  # of the calls: handlers run in threads, and to take a number is one step
        self.started = self.marked = self.ended = 0.0
        self._cpu = 0.0  # of time.process_time at the first call
        self.done = threading.Event()

    @property
    def count(self) -> int:
        """How many calls there were."""
        return sys.maxsize - 1 - operator.length_hint(self._numbers)

    def tick(self, *_: object) -> None:
        """Note one call of a handler."""
        number = next(self._numbers)
        if number == 1:
            self.started, self._cpu = time.perf_counter(), time.process_time()
        if number == self.jobs - self.last_quarter:
            self.marked = time.perf_counter()
        if number == self.jobs:
            self.ended = time.perf_counter()
            self.done.set()

    def wait_for(self, worker: HasError) -> None:
        """Wait until there were as many calls as there are jobs.

        Raises:
            Exception: What has ended the worker meanwhile.
        """
        while not self.done.wait(GLANCE):
            if worker.error is not None:
                raise worker.error

    def rate(self, ended: float | None = None) -> float:
        """Return jobs per second, from the first call of a handler to the last, or to a later moment."""
        return self.jobs / ((ended or self.ended) - self.started)

    def numbers(self, ended: float) -> Numbers:
        """Return the rate until a moment, and the processor time of this process for each job until now."""
        return {"jobs/s": self.rate(ended), "CPU µs/job": (time.process_time() - self._cpu) / self.jobs * 1e6}


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
