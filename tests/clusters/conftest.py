"""Fixtures for clusters, and the lines that say in the end what came of each."""

from collections.abc import Callable, Generator

import pytest

LINES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin with no lines."""
    config.stash[LINES] = []


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return what adds a line to those that are printed at the end."""
    return request.config.stash[LINES].append


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Print a line for each cluster."""
    yield
    for line in terminalreporter.config.stash[LINES]:
        terminalreporter.write_line(line)
