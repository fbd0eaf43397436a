"""Fixtures for tests in asyncio: each is run with each driver of its database."""

import pytest
import sqlalchemy as sa

from tests.aio.scene import DRIVERS, Scene
from tests.claims import chosen
from tests.servers.database import Database


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out drivers on databases that are not theirs."""
    left_out = [item for item in items if not fits(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if fits(item)]


def fits(item: pytest.Item) -> bool:
    """Return whether a test's driver is one for its kind of database, if it has both."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    driver, kind = parameters.get("driver"), parameters.get("database_kind")
    return driver not in DRIVERS or kind is None or kind in DRIVERS[driver]


@pytest.fixture(params=list(DRIVERS))
def driver(request: pytest.FixtureRequest) -> str:
    """Run the test once with each driver for asyncio."""
    return str(request.param)


@pytest.fixture
def scene(queue_engine: sa.Engine, database: Database, driver: str) -> Scene:
    """Return a loop to come, on a database with the queue's tables and the application's."""
    return Scene(database.url.set(drivername=f"{database.url.get_backend_name()}+{driver}"), chosen())
