"""Fixtures: worker processes on each kind of database, with each kind of claim."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.faults.scene import Nursery, Scene
from tests.servers.database import Database


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Return the process off which all worker processes are forked."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def scene(nursery: Nursery, database: Database, queue_engine: sa.Engine, claim: str, tmp_path: Path) -> Iterator[Scene]:
    """Return a scene on a new database, with each kind of claim."""
    with Scene(nursery, queue_engine, database.kind, claim, tmp_path) as made:
        yield made


@pytest.fixture
def leased_scene(nursery: Nursery, database: Database, queue_engine: sa.Engine, tmp_path: Path) -> Iterator[Scene]:
    """Return a scene on a new database, with leases."""
    with Scene(nursery, queue_engine, database.kind, "leased", tmp_path) as made:
        yield made
