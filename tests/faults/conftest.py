"""Fixtures: worker processes on each kind of database, with each kind of claim."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from proletarian_sa import create_all
from tests.async_workers import driver_of, is_chosen
from tests.faults.own_server import OwnServer, OwnServers
from tests.faults.scene import Nursery, Scene
from tests.servers.database import Database
from tests.servers.errors import ServerMissingError
from tests.servers.kinds import server_kind


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the drivers for asyncio, and the claims with them, that a test has not chosen."""
    left_out = [item for item in items if not is_chosen(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_chosen(item)]


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Return the process off which all worker processes are forked."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> str | None:
    """Return the driver for asyncio of the workers, if they are AsyncQueueWorkers: see `tests.async_workers`."""
    return driver_of(request)


@pytest.fixture
def scene(
    nursery: Nursery, database: Database, queue_engine: sa.Engine, claim: str, tmp_path: Path, *, driver: str | None
) -> Iterator[Scene]:
    """Return a scene on a new database, with each kind of claim."""
    with Scene(nursery, queue_engine, database.kind, claim, tmp_path, driver=driver) as made:
        yield made


@pytest.fixture
def leased_scene(nursery: Nursery, database: Database, queue_engine: sa.Engine, tmp_path: Path) -> Iterator[Scene]:
    """Return a scene on a new database, with leases."""
    with Scene(nursery, queue_engine, database.kind, "leased", tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def own_servers() -> Iterator[OwnServers]:
    """Return the servers of this process's own, started when they are asked for."""
    made = OwnServers()
    yield made
    made.close()


@pytest.fixture
def own_server(database_kind: str, own_servers: OwnServers) -> OwnServer:
    """Return a server of each kind that a test may stop, kill and restart, running; it is the same one in each test."""
    try:
        return own_servers.get(server_kind(database_kind))
    except ServerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def own_scene(nursery: Nursery, own_server: OwnServer, claim: str, tmp_path: Path, *, driver: str | None) -> Iterator[Scene]:
    """Return a scene on a new database of the test's own server, with each kind of claim."""
    with own_server.new_database() as database:
        engine = database.create_engine(poolclass=sa.NullPool)
        create_all(engine)
        with Scene(nursery, engine, database.kind, claim, tmp_path, driver=driver) as made:
            yield made
            if not own_server.is_running:
                own_server.start()
