"""Which servers a test run uses, when they start and stop, and what a missing one means; `conftest.py` takes these in.

One process runs all tests: a server starts when the first test asks for it. Several processes (pytest-xdist), or
`CI=true`: the controlling process starts all selected ones first, and hands their URLs to the others.
"""

import os
from collections.abc import Generator
from typing import Any, Final

import pytest

from tests.servers.errors import ServerMissingError
from tests.servers.kinds import KINDS, server_kind
from tests.servers.launch import IN_MEMORY, is_roomy
from tests.servers.registry import Servers
from tests.servers.server import Server

SERVERS = pytest.StashKey[Servers]()
MAY_MISS = {"mysql", "postgresql-oldest"}
"""Kinds that even CI can go without if there is none to be had: no distribution is sure to carry them."""

THOROUGH = {"postgresql-oldest"}
"""Kinds that a run on a developer's machine leaves out, to stay below ten minutes, unless they are asked for."""

BESIDE_SQL: Final = (
    "tests/aio/",
    "tests/field_cases/",
    *(
        f"tests/test_{name}"
        for name in ["autogenerate", "callbacks", "cli", "health", "idle", "log", "processes", "proletarian", "registry"]
    ),
    *(f"tests/test_{name}" for name in ["retries", "signals", "stopping", "timeouts", "wakeups", "worker"]),
)
"""How files begin whose tests are about threads, processes or words: another version of the same server is nothing new to them."""

LONG: Final = pytest.StashKey[int]()
ENOUGH_FOR_LONG = {"sqlite"}
"""On a developer's machine tests that are marked as long run on this kind only, unless others are asked for."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the choice of kinds."""
    parser.addoption(
        "--database",
        action="append",
        metavar="NAME",
        help=f"test on this kind of database only; repeatable; one of {', '.join(KINDS)}",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Remember the servers of this run, which another process may have started; put tests' files where the servers' are."""
    selected_kinds(config)
    if "TMPDIR" not in os.environ and is_roomy(IN_MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))  # pytest's name for where its temporary folders are
    config.stash[SERVERS] = Servers({kind: unpack(kind, facts) for kind, facts in received(config).items()})


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start all servers now where that cannot wait."""
    config = session.config
    shared = config.getoption("dist", "no") != "no"
    if is_worker(config) or config.option.collectonly or not (shared or is_ci()):
        return
    config.stash[SERVERS].start(selected_kinds(config))
    if is_ci() and (needed := needed_problems(config)):
        raise pytest.UsageError("\n".join(["CI=true and a database server is missing.", *needed]))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the servers to one of pytest-xdist's processes."""
    outcomes = node.config.stash[SERVERS].outcomes
    node.workerinput["servers"] = {
        kind: {"url": outcome.url, "version": outcome.version} if isinstance(outcome, Server) else {"missing": str(outcome)}
        for kind, outcome in outcomes.items()
    }


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests on kinds that are not selected."""
    selected = {*selected_kinds(config), None}
    enough = {None} | (selected if asked_for(config) else selected - THOROUGH if is_ci() else ENOUGH_FOR_LONG)
    long = {item for item in items if item.get_closest_marker("long") and kind_of(item) in selected - enough}
    config.stash[LONG] = len(long)
    left_out = [
        item
        for item in items
        if kind_of(item) not in selected or item in long or is_held_without_need(item) or is_nothing_new(item, asked_for(config))
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Say last which databases were not tested, so that nobody takes silence for success."""
    yield
    problems = terminalreporter.config.stash[SERVERS].problems()
    for kind, problem in problems.items():
        terminalreporter.write_line(f"NOT TESTED on {kind}: {str(problem).partition(chr(10))[0]}", yellow=True)
    if not is_ci() and (long := terminalreporter.config.stash.get(LONG, 0)):
        terminalreporter.write_line(
            f"{long} long tests were left out on other databases than {', '.join(sorted(ENOUGH_FOR_LONG))}."
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what was started here."""
    if SERVERS in config.stash:
        config.stash[SERVERS].stop()


def is_nothing_new(item: pytest.Item, asked: list[str]) -> bool:
    """Return whether a test would only be repeated on another version of a server, and nobody has asked for that."""
    return not asked and kind_of(item) in THOROUGH and item.nodeid.startswith(BESIDE_SQL)


def selected_kinds(config: pytest.Config) -> list[str]:
    """Return what was asked for, else all that this run is to be thorough about."""
    usual = [kind for kind in KINDS if is_ci() or kind not in THOROUGH]
    selected: list[str] = asked_for(config) or usual
    if unknown := set(selected) - set(KINDS):
        raise pytest.UsageError(f"unknown database {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    return selected


def asked_for(config: pytest.Config) -> list[str]:
    """Return the kinds that somebody has asked for, by the option or the environment."""
    environment = os.environ.get("PROLETARIAN_TEST_DATABASES", "").replace(",", " ").split()
    asked: list[str] = config.getoption("--database") or environment
    return asked


def needed_problems(config: pytest.Config) -> list[str]:
    """List the problems that must not be skipped over."""
    return [
        f"{kind}: {problem}"
        for kind, problem in config.stash[SERVERS].problems().items()
        if not (kind in MAY_MISS and isinstance(problem, ServerMissingError))
    ]


def is_ci() -> bool:
    """Tell whether this is the run that decides, where a missing server must not go unnoticed."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def is_worker(config: pytest.Config) -> bool:
    """Tell whether this is one of pytest-xdist's processes."""
    return hasattr(config, "workerinput")


def received(config: pytest.Config) -> dict[str, dict[str, str]]:
    """Return the servers that the controlling process handed over."""
    servers: dict[str, dict[str, str]] = getattr(config, "workerinput", {}).get("servers", {})
    return servers


def unpack(kind: str, facts: dict[str, str]) -> Server | ServerMissingError:
    """Read what was handed over about one kind."""
    if "missing" in facts:
        return ServerMissingError(facts["missing"])
    return Server(kind, facts["url"], facts["version"])


def is_held_without_need(item: pytest.Item) -> bool:
    """Tell whether a test that runs with each kind of claim has nothing to say of held ones: it is about leases, or SQLite."""
    callspec = getattr(item, "callspec", None)
    held = callspec is not None and callspec.params.get("claim") == "held"
    return held and (kind_of(item) == "sqlite" or item.get_closest_marker("leased") is not None)


def kind_of(item: pytest.Item) -> str | None:
    """Return the kind of server a test runs on, None if it needs none."""
    callspec = getattr(item, "callspec", None)
    kind = callspec.params.get("database_kind") if callspec else None
    return None if kind is None else server_kind(kind)
