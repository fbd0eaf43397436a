"""Tests of worker processes, or of the fixture `work`, with an AsyncQueueWorker in the place of a QueueWorker.

A test takes part by `pytest.mark.async_workers`: it then runs on each driver that is ENOUGH for what does not depend on the driver.
By `pytest.mark.async_workers("asyncpg leased", "aiosqlite held")` it runs with these drivers and claims; on demand, by
PROLETARIAN_FAULTS=real, as `make faults DURATIONS=real` has it, with each driver and each claim.

`plain=True`: handlers of the fixture `work` stay plain functions, which an AsyncQueueWorker runs in threads; those that are
coroutines are cancelled at the end of a stop. `without=`: the kinds of databases without these drivers, by default all.
"""

from typing import Any

import pytest

from tests.faults.durations import REAL
from tests.servers.kinds import ASYNC_KINDS, KINDS

ENOUGH = ("asyncpg", "asyncmy-mysql", "asyncmy-mariadb", "aiosqlite")
"""One driver for each kind of database."""


def generate(metafunc: pytest.Metafunc) -> None:
    """Let a test that takes part run on each kind of database, and with each driver for asyncio: for pytest_generate_tests."""
    test = metafunc.definition
    taking_part = test.get_closest_marker("async_workers")
    if taking_part is not None and "database_kind" in metafunc.fixturenames:
        kinds = dict.fromkeys(words.split()[0] for words in taking_part.args or ENOUGH)
        kinds = list(ASYNC_KINDS if taking_part.args and REAL else kinds)
        without = taking_part.kwargs.get("without", KINDS)
        test.add_marker(pytest.mark.parametrize("database_kind", [*without, *kinds], indirect=True))


def is_chosen(item: Any) -> bool:
    """Return whether a test is to run with its driver for asyncio, if it has one, and its claim."""
    taking_part, parameters = item.get_closest_marker("async_workers"), getattr(getattr(item, "callspec", None), "params", {})
    kind = parameters.get("database_kind")
    if REAL or taking_part is None or not taking_part.args or kind not in ASYNC_KINDS:
        return True
    chosen = [words.split() for words in taking_part.args]
    return any(kind == words[0] and parameters.get("claim") in {None, *words[1:]} for words in chosen)


def driver_of(request: pytest.FixtureRequest) -> str | None:
    """Return the driver for asyncio of a test's workers, as a URL names it; None: they are QueueWorkers."""
    kind = getattr(getattr(request.node, "callspec", None), "params", {}).get("database_kind")
    if kind not in ASYNC_KINDS or request.node.get_closest_marker("async_workers") is None:
        return None
    return ASYNC_KINDS[kind][1]


def handlers_are_plain(request: pytest.FixtureRequest) -> bool:
    """Return whether the handlers of a test's AsyncQueueWorkers are to be plain functions."""
    taking_part = request.node.get_closest_marker("async_workers")
    return taking_part is not None and taking_part.kwargs.get("plain", False)
