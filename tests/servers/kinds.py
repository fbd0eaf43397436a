"""The kinds of servers by name, and where each is looked for first."""

import os
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from tests.servers import mariadb, mysql, postgresql
from tests.servers.errors import ServerFailedError, ServerMissingError
from tests.servers.launch import launch
from tests.servers.recipe import Recipe
from tests.servers.server import Server
from tests.servers.version import ask_version

RECIPES: dict[str, Callable[[Path, int], Recipe]] = {
    "postgresql": postgresql.newest,
    "postgresql-oldest": postgresql.oldest,
    "mysql": mysql.recipe,
    "mariadb": mariadb.recipe,
}
KINDS = (*RECIPES, "sqlite")
ASYNC_KINDS = {
    "psycopg-async": ("postgresql", "postgresql+psycopg_async"),
    "asyncpg": ("postgresql", "postgresql+asyncpg"),
    "asyncmy-mysql": ("mysql", "mysql+asyncmy"),
    "asyncmy-mariadb": ("mariadb", "mariadb+asyncmy"),
    "aiosqlite": ("sqlite", "sqlite+aiosqlite"),
}
"""The drivers for asyncio: the kind of server, and the name of the driver in a URL. Each is tested with its server."""


def server_kind(database_kind: str) -> str:
    """Return the kind of server of a kind of database."""
    return ASYNC_KINDS[database_kind][0] if database_kind in ASYNC_KINDS else database_kind


def start(name: str) -> Server:
    """Return a server of this kind: the one named in the environment, else one started here.

    Raises:
        ServerMissingError: None is to be had; says what would help.
        ServerFailedError: One is there but does not answer.
    """
    if name == "sqlite":
        return Server(name, "sqlite://", ask_version("sqlite://"))
    if url := os.environ.get(variable(name)):
        return connect(name, url)
    if name == "postgresql-oldest" and os.environ.get(variable("postgresql")):
        raise ServerMissingError(f"no second PostgreSQL: set {variable(name)} too")
    return launch(name, RECIPES[name])


def variable(name: str) -> str:
    """Name the environment variable that holds the URL of a server of this kind."""
    return f"PROLETARIAN_TEST_{name.upper().replace('-', '_')}_URL"


def connect(name: str, url: str) -> Server:
    """Use a server that somebody else runs, and leave it running."""
    try:
        return Server(name, url, ask_version(url))
    except DBAPIError as error:
        raise ServerFailedError(f"{name} does not answer at {variable(name)}: {error.orig}") from error
