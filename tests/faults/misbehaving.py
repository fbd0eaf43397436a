"""Handlers, retry functions and callbacks of the worst kind, for the worker processes of `tests.faults.application`."""

import asyncio
import contextvars
import ctypes
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from proletarian_sa import JobRegistry, RetryStrategy, RunningJob
from tests.faults.application import PATIENCE
from tests.stress import tables
from tests.stress.application import mark_run

Payload = dict[str, Any]
LARGE = 10_000_000
"""Characters."""
MEMORY = 50_000_000
"""Bytes."""
LEFT_OPEN: list[sa.Connection] = []
SEEN: list[str] = []
TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


class Mute(Exception):  # noqa: N818 - see what it does
    """Has a text that fails."""

    def __str__(self) -> str:
        raise SystemExit(7)


class Derived(BaseException):
    """Of the application's own, and no Exception."""


TEXTS: dict[str, Callable[[], BaseException]] = {
    "NUL": lambda: ValueError("a\0b"),
    "emoji": lambda: ValueError("🐞 жук"),
    "10 MB": lambda: ValueError("x" * LARGE + " the end"),
    "mute": lambda: Mute("x"),
}
"""What an attempt fails of, by the name that the payload has for it."""
EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(0),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "Derived": lambda: Derived("own"),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [SystemExit(1), KeyboardInterrupt()]),
    "BaseException": BaseException,
    "StopIteration": lambda: StopIteration(7),
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "AssertionError": AssertionError,
}
"""Likewise: whatever there is beside Exception, and those that Python itself treats in ways of their own."""


def error_path(jobs: JobRegistry) -> dict[str, Any]:
    """Add a handler that fails, and let what is asked next fail, too: the retry function, `failed_job`."""
    jobs.handler("fails")(fail_after_writing)
    return {"retry": retry, "failed_job": failed_job}


def leave_effect(job: RunningJob) -> None:
    """Write through `job.session`."""
    job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})


def fail_after_writing(payload: Payload, job: RunningJob) -> None:
    """Fail with a text of the worst kind."""
    leave_effect(job)
    failure = TEXTS[payload["text"]]()
    raise failure


def retry(job: RunningJob, _exception: BaseException) -> Any:
    """Allow one retry, if it can be told."""
    match job.payload.get("retry"):
        case "raises":
            raise Derived
        case "nonsense":
            return 7
        case "mute":
            raise Mute
    return RetryStrategy(retries=1)


def failed_job(job: RunningJob, _exception: BaseException) -> None:
    """Leave an effect of the failure, and fail."""
    leave_effect(job)
    match job.payload.get("failed_job"):
        case "raises":
            raise Mute
        case "exits":
            raise SystemExit(3)
        case "spoils":
            job.session.execute(sa.text("SELECT no_such_column FROM no_such_table"))


def handlers(jobs: JobRegistry) -> dict[str, Any]:
    """Add handlers that raise what nobody catches, end the process, never return, or leave behind what they should not."""
    functions: dict[str, Callable[..., Any]] = {
        "raises": fail,
        "dies": die,
        "endless": loop_for_ever,
        "leaves": leave_open,
        "context": look_and_set,
        "large": take_memory,
        "small": lambda _payload: None,
    }
    for name, function in functions.items():
        jobs.handler(name)(function)
    return {}


def mark(payload: Payload, job: RunningJob) -> None:
    """Tell of a run."""
    mark_run(sa.create_engine(payload["url"], isolation_level="AUTOCOMMIT", poolclass=sa.NullPool), job)


def fail(payload: Payload) -> None:
    """Raise what is no Exception."""
    failure = EXCEPTIONS[payload["error"]]()
    raise failure


def die(payload: Payload, job: RunningJob) -> None:
    """End the process, once."""
    mark(payload, job)
    if Path(payload["once"]).exists():
        return
    Path(payload["once"]).touch()
    leave_effect(job)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if payload["how"] == "os._exit":
        os._exit(5)
    ctypes.string_at(0)


def loop_for_ever(payload: Payload, job: RunningJob) -> None:
    """Use a processor, and do not look whether to stop."""
    mark(payload, job)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not Path(payload["calm"]).exists():
        pass


def leave_open(payload: Payload) -> None:
    """Begin a transaction of the application's own, and never end it."""
    connection = sa.create_engine(payload["url"]).connect()
    connection.execute(sa.select(tables.runs)).all()
    if payload["writes"]:
        connection.execute(sa.insert(tables.effects), {"job_id": "never committed"})
    LEFT_OPEN.append(connection)


def look_and_set(payload: Payload) -> None:
    """Tell what all such jobs have seen, then set what none of them should see."""
    SEEN.append(TENANT.get())
    TENANT.set(payload["tenant"])
    Path(payload["seen"]).write_text(" ".join(SEEN))


def take_memory(payload: Payload) -> None:
    """Fail with much in a variable."""
    memory = bytearray(os.urandom(1000)) * (MEMORY // 1000)
    Path(payload["seen"]).write_text(str(resident()))
    raise LookupError(len(memory))


def resident(pid: int | None = None) -> int:
    """Return how much memory a process has, in bytes."""
    pages = Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()
