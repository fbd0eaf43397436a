"""Ask a worker process what it is like, and read what it has told of its database."""

import datetime as dt
import re
import signal
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.faults.scene import Scene, Worker

RETRY_IN = re.compile(
    r"activity='([^']*)'.*retry_in=datetime\.timedelta\((?:(\w+)=([\d]+)(?:, (\w+)=([\d]+))?|0)\), consecutive=(\d+)", re.DOTALL
)


DRIVERS = ("Thread-", "asyncio_")
"""How names of threads begin that asyncio and aiosqlite start."""


def threads(scene: Scene, worker: Worker, handlers: int = 0) -> list[str]:
    """Return the names of the worker's threads, as soon as so many of them are handlers: on an event loop, none.

    The driver's own threads are left out: they come and go with connections.
    """
    if scene.driver is not None:
        handlers = 0
    found: list[str] = []

    def all_there() -> bool:
        found[:] = [name for name in _answer(scene, worker, signal.SIGUSR1, "Threads") if not name.startswith(DRIVERS)]
        return sum(" handler " in name for name in found) >= handlers

    scene.wait(all_there)
    return found


def wait_for_handlers(scene: Scene, gate: Path, ids: Iterable[uuid.UUID]) -> None:
    """Wait until the handlers of these jobs wait for this file: the marks of their runs are made, so no fault fails those."""
    signs = [gate.with_name(f"{gate.name}.{job_id}") for job_id in ids]
    scene.wait(lambda: all(sign.exists() for sign in signs))


def health(scene: Scene, worker: Worker) -> dict[str, Any]:
    """Return what the worker's `health` says now."""
    found: dict[str, Any] = _answer(scene, worker, signal.SIGUSR2, "Health")
    return found


def _answer(scene: Scene, worker: Worker, number: signal.Signals, name: str) -> Any:
    before = len(scene.told(name, worker.pid))
    worker.signal(number)
    return scene.wait(lambda: scene.told(name, worker.pid)[before:])[0]["text"]


def pauses(scene: Scene, worker: Worker) -> dict[str, list[tuple[int, float]]]:
    """Return how often in a row each activity had failed, and the seconds until it was to be tried again."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in scene.told("TransientErrorMet", worker.pid):
        told = RETRY_IN.search(line["text"])
        assert told is not None, line["text"]
        activity, one, first, other, second, consecutive = told.groups()
        parts = {name: int(value) for name, value in ((one, first), (other, second)) if name}
        found.setdefault(activity, []).append((int(consecutive), dt.timedelta(**parts).total_seconds()))
    return found
