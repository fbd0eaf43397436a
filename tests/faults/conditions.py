"""What a database may be in for a while, and a worker that goes through it with jobs in hand."""

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tests.faults.asking import wait_for_handlers
from tests.faults.durations import OUTAGE, REAL
from tests.faults.scene import PATIENCE, Scene, Worker

MOST_LINES = 18
"""Lines of the log that a worker may write in a condition that lasts for seconds: four of each of its three activities, that it
fails, for another reason then, that it meets a connection that was lost at the beginning, and that it works again; and three of
each of two jobs in hand, whose transaction dies, and whose lease lapses: the heartbeat finds that out, and the outcome is refused.
"""
MOMENT = 0.1
"""Seconds."""
FAILURES = 3
"""How many tries a worker must have made in vain."""


@dataclass(frozen=True)
class Condition:
    """One of them.

    Attributes:
        fault: What it is, in the words of the table.
        begin: Bring it about.
        end: End it.
        words: The driver's, one of which the log must have.
        lines: How many lines the log may have of it.
    """

    fault: str
    begin: Callable[[], object]
    end: Callable[[], object]
    words: tuple[str, ...]
    lines: int = MOST_LINES


def go_through(scene: Scene, worker: Worker, condition: Condition, **payload: Any) -> None:
    """Let it come over a worker of two threads with two jobs in hand and three waiting, and go.

    Both handlers return meanwhile: one has its transaction open when it comes, the other wants one while it is there. The payload
    goes to all jobs.
    """
    gate = scene.folder / f"gate{len(scene.jobs)}"
    ids = scene.add(wait=str(gate), opens=scene.kind != "sqlite", **payload) + scene.add(wait=str(gate), **payload)
    wait_for_handlers(scene, gate, ids)
    ids += scene.add(3, **payload)
    lines, text = len(worker.lines()), len(worker.text())
    try:
        come_about(worker, condition)
        worker.signal(signal.SIGCONT)
        gate.touch()
        wait_for_failures(scene, worker, lambda: any(word in worker.text()[text:] for word in condition.words))
    finally:
        condition.end()
    recovered = scene.wait_for_end(ids)
    news = worker.lines()[lines:]

    assert worker.code is None
    assert len(news) <= condition.lines, "\n".join(news)
    scene.measured(condition.fault, recovered, ids)


def come_about(worker: Worker, condition: Condition) -> None:
    """Bring a condition about while the worker stands still, so that it sees the condition and nothing of how that comes about.

    Where it has come to a stop with a lock in its hand that is in the way, it goes on for a moment.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        worker.signal(signal.SIGSTOP)
        try:
            condition.begin()
        except sa.exc.OperationalError:
            if time.monotonic() > deadline:
                raise
            worker.signal(signal.SIGCONT)
            time.sleep(MOMENT)
        else:
            return


def wait_for_failures(scene: Scene, worker: Worker, named: Callable[[], bool]) -> None:
    """Wait until the log names the reason and the worker has tried in vain some times; in real durations, as long as an outage."""
    end = time.monotonic() + OUTAGE if REAL else 0.0
    told = len(scene.told())

    def enough() -> bool:
        return failures(scene.told()[told:]) >= FAILURES and named() and time.monotonic() >= end

    scene.wait(lambda: worker.ended.is_set() or enough(), OUTAGE + PATIENCE)
    assert not worker.ended.is_set(), worker.text()[-5000:]


def failures(told: Iterable[dict[str, object]]) -> int:
    """Return how many times in vain something was tried that is tried again."""
    return sum(line["name"] in {"TransientErrorMet", "JobTransactionDied"} for line in told)


def meet_idle(scene: Scene, worker: Worker, condition: Condition) -> None:
    """Let it come over an idle worker, with three jobs that come just before, and go."""
    lines, text = len(worker.lines()), len(worker.text())
    worker.signal(signal.SIGSTOP)
    ids = scene.add(3)
    try:
        come_about(worker, condition)
        worker.signal(signal.SIGCONT)
        wait_for_failures(scene, worker, lambda: any(word in worker.text()[text:] for word in condition.words))
    finally:
        condition.end()
    recovered = scene.wait_for_end(ids)
    news = worker.lines()[lines:]

    assert worker.code is None
    assert len(news) <= condition.lines, "\n".join(news)
    scene.measured(condition.fault, recovered, ids)
