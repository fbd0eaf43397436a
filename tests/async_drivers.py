"""Existing tests on the drivers for asyncio, unchanged: a whole test, its fixtures included, runs in a greenlet on an event loop.

SQLAlchemy's dialects for asyncio are the same code as those for threads, in a greenlet that waits where the driver does. So a test
that starts no threads of its own need not know which driver it runs on: its engine is `create_async_engine(url).sync_engine`.

A module, or a test, takes part by `pytest.mark.async_drivers`; one of its tests stays behind by `pytest.mark.plain_drivers`.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from _pytest.runner import runtestprotocol
from sqlalchemy.util import greenlet_spawn

from tests.servers.kinds import ASYNC_KINDS, KINDS

ENOUGH = [kind for kind in ASYNC_KINDS if kind != "asyncmy-mysql"]
"""The drivers that existing tests run on: asyncmy is the same on MySQL as on MariaDB, and MySQL is not had everywhere."""
NEVER = 3600.0
"""Seconds until the watch of held jobs looks, which is no time that a test lasts."""


def generate(metafunc: pytest.Metafunc) -> None:
    """Let a test that takes part run on each kind of database, and through each driver for asyncio: for pytest_generate_tests."""
    test = metafunc.definition
    if "database_kind" not in metafunc.fixturenames or test.get_closest_marker("async_drivers") is None:
        return
    if test.get_closest_marker("plain_drivers") is None:
        test.add_marker(pytest.mark.parametrize("database_kind", [*KINDS, *ENOUGH], indirect=True))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test on a driver for asyncio in a greenlet."""
    if not runs_in_greenlet(item):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    loop = asyncio.new_event_loop()
    try:
        with _steps_are_let_in():
            loop.run_until_complete(greenlet_spawn(runtestprotocol, item, nextitem=nextitem))
    finally:
        loop.close()
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def runs_in_greenlet(item: Any) -> bool:
    """Tell whether a test takes part, and is to run on a driver for asyncio."""
    callspec = getattr(item, "callspec", None)
    kind = None if callspec is None else callspec.params.get("database_kind")
    return kind in ASYNC_KINDS and item.get_closest_marker("async_drivers") is not None


@contextmanager
def _steps_are_let_in() -> Iterator[None]:
    """Let `process_next_job` have such an engine: its threads do nothing while a test lasts, also on a busy machine."""
    from proletarian_sa import held, step  # noqa: PLC0415 - tests of the servers alone must not depend on it

    checked = step.build_runtime

    def build(engine: Any, *arguments: Any, **options: Any) -> Any:
        dialect = getattr(engine, "dialect", None)
        if dialect is None:  # what a test gives in its place
            return checked(engine, *arguments, **options)
        with mock.patch.object(dialect, "is_async", new=False):
            return checked(engine, *arguments, **options)

    with mock.patch.object(step, "build_runtime", build), mock.patch.object(held, "LOOK", NEVER):
        yield
