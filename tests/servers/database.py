"""One new, empty database for one test."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from tests.servers.administrator import Administrator

ROLE_PASSWORD = "role"  # noqa: S105 - for roles that are dropped after the test
ASYNC_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+asyncmy",
    "mariadb": "mariadb+asyncmy",
    "sqlite": "sqlite+aiosqlite",
}


@dataclass(frozen=True)
class Database:
    """Where the database is and what its kind can do; engines made through it are disposed of after the test.

    Tests ask for what they need by capability, never by kind: `database.require("row_locks")` skips with that reason.
    """

    kind: str
    url: sa.URL
    version: str
    async_driver: str | None = None
    """The name in a URL of the driver for asyncio of this test; None: any that its kind has."""
    in_greenlet: bool = False
    """The test runs on that driver; see `tests.async_drivers`."""
    server: bool = True
    """A process that other processes can talk to, not a file."""
    row_locks: bool = True
    """Rows can be locked one by one, and locked ones skipped."""
    lock_table: bool = False
    """The server tells how many rows a transaction has locked."""
    default_isolation: bool = False
    """A database can have an isolation level of its own, whatever the server's is."""
    character_sets: bool = False
    """A table can have a character set of its own."""
    listen: bool = False
    """Sessions can wait for each other's notifications."""
    copy: bool = False
    """Rows can be streamed into a table, and inserted as arrays."""
    schemas: bool = True
    """More schemas can be made; see `create_schema`."""
    roles: bool = True
    """Users with rights of their own; see `new_role` and `create_engine_as`."""
    two_phase: bool = True
    """Transactions can be prepared and committed later."""
    snapshot_check: bool = False
    """A session can be told to refuse locks on rows that have changed since the statement began to read."""
    transactional_ddl: bool = False
    """A rolled-back transaction leaves no table behind, in Alembic's judgement of the driver too."""
    storage_parameters: bool = False
    """Each table can be told how it is stored."""
    engines: list[sa.Engine] = field(default_factory=list)
    created_schemas: list[str] = field(default_factory=list)
    created_roles: list[str] = field(default_factory=list)

    @property
    def async_url(self) -> sa.URL:
        """The URL for `create_async_engine`; the test disposes of such an engine itself, in its own event loop."""
        return self.url.set(drivername=self.async_driver or ASYNC_DRIVERS[self.url.get_backend_name()])

    @property
    def url_text(self) -> str:
        """The URL with its password, for a command line or an environment variable."""
        return self.url.render_as_string(hide_password=False)

    def create_engine(self, **options: Any) -> sa.Engine:
        """Create an engine on this database with options of `sqlalchemy.create_engine`."""
        engine = self._create_engine(self.url, **options)
        self.engines.append(engine)
        return engine

    def create_schema(self) -> str:
        """Create another schema with a new name, dropped after the test; on MySQL and MariaDB that is a database."""
        self.require("schemas")
        name = new_name()
        with self.create_engine().begin() as connection:
            connection.execute(sa.schema.CreateSchema(name))
        self.created_schemas.append(name)
        return name

    def new_role(self, suffix: str = "") -> str:
        """Choose a name for a role, which is dropped after the test if it is there: roles belong to the whole server."""
        self.require("roles")
        self.created_roles.append(new_name() + suffix)
        return self.created_roles[-1]

    def create_engine_as(self, role: str, **options: Any) -> sa.Engine:
        """Create an engine that connects as a role, which must have `ROLE_PASSWORD`."""
        engine = self._create_engine(self.url.set(username=role, password=ROLE_PASSWORD), **options)
        self.engines.append(engine)
        return engine

    def create_engine_at(self, **place: Any) -> sa.Engine:
        """Create an engine that connects elsewhere, such as to a port where nobody listens."""
        engine = self._create_engine(self.url.set(**place))
        self.engines.append(engine)
        return engine

    def _create_engine(self, url: sa.URL, **options: Any) -> sa.Engine:
        if not self.in_greenlet:
            return sa.create_engine(url, **options)
        return create_async_engine(url.set(drivername=self.async_url.drivername), **options).sync_engine

    def through(self, async_driver: str, *, in_greenlet: bool) -> "Database":
        """Return the same database with this driver for asyncio; `in_greenlet`: `create_engine` uses it, too."""
        return replace(self, async_driver=async_driver, in_greenlet=in_greenlet)

    def require(self, *capabilities: str) -> None:
        """Skip the test unless the database has all these capabilities."""
        for capability in capabilities:
            if not getattr(self, capability):
                pytest.skip(f"no {capability.replace('_', ' ')}")


@contextmanager
def new_file(kind: str, version: str, folder: Path) -> Iterator[Database]:
    """Make a SQLite database in a folder that the test framework cleans."""
    database = Database(
        kind,
        sa.URL.create("sqlite", database=str(folder / "test.db")),
        version,
        server=False,
        row_locks=False,
        schemas=False,
        roles=False,
        two_phase=False,
    )
    try:
        yield database
    finally:
        dispose(database)


@contextmanager
def new_database(kind: str, version: str, administrator: Administrator) -> Iterator[Database]:
    """Make a database on a server and drop it afterwards, whatever connections are left in it."""
    name = new_name()
    administrator.create_database(name)
    is_postgresql = administrator.url.get_backend_name() == "postgresql"
    database = Database(
        kind,
        administrator.url.set(database=name),
        version,
        lock_table=not is_postgresql,
        character_sets=not is_postgresql,
        default_isolation=is_postgresql,
        listen=is_postgresql,
        copy=is_postgresql,
        transactional_ddl=is_postgresql,
        storage_parameters=is_postgresql,
        snapshot_check=kind == "mariadb",
        two_phase=administrator.can_prepare(),
    )
    try:
        yield database
    finally:
        dispose(database)
        for dropped in [name] if is_postgresql else [*database.created_schemas, name]:
            administrator.drop_database(dropped)
        for role in database.created_roles:  # PostgreSQL drops none that has rights in a database
            administrator.drop_role(role)


def new_name() -> str:
    """Choose a name that no other test has, in this process or another."""
    return f"test_{secrets.token_hex(6)}"


def dispose(database: Database) -> None:
    """Close the pooled connections of all engines made."""
    for engine in database.engines:
        engine.dispose()
