"""Fixtures that every test may ask for: a new database on each kind of server, and engines on it."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests import async_drivers, async_workers
from tests.async_drivers import pytest_runtest_protocol, runs_in_greenlet  # noqa: F401 - hooks, as below
from tests.claims import HELD, LEASED, choose, chosen
from tests.queue_contents import Base
from tests.servers import KINDS, ServerFailedError, ServerMissingError, Servers
from tests.servers.administrator import Administrator
from tests.servers.database import Database, new_database, new_file
from tests.servers.hooks import (  # noqa: F401 - pytest finds its hooks here by name
    SERVERS,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_configure_node,
    pytest_sessionstart,
    pytest_terminal_summary,
    pytest_unconfigure,
)
from tests.servers.kinds import ASYNC_KINDS, server_kind


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let tests that take part run through drivers for asyncio, too, or with workers on event loops."""
    async_drivers.generate(metafunc)
    async_workers.generate(metafunc)


collect_ignore = ["clusters"]  # `make clusters` names the folder: three servers at a time, of which one is killed


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Servers:
    """Return the servers of this run."""
    return request.config.stash[SERVERS]


@pytest.fixture(scope="session")
def administrators() -> Iterator[dict[str, Administrator]]:
    """Keep one connection per kind that creates and drops databases."""
    administrators: dict[str, Administrator] = {}
    yield administrators
    for administrator in administrators.values():
        administrator.close()


@pytest.fixture(params=KINDS)
def database_kind(request: pytest.FixtureRequest) -> str:
    """Run the test once on each kind of database."""
    return str(request.param)


@pytest.fixture
def database(
    request: pytest.FixtureRequest,
    database_kind: str,
    servers: Servers,
    administrators: dict[str, Administrator],
    tmp_path: Path,
) -> Iterator[Database]:
    """Make a new, empty database."""
    try:
        server = servers.get(server_kind(database_kind))
    except (ServerMissingError, ServerFailedError) as error:
        pytest.skip(str(error))
    if sa.make_url(server.url).get_backend_name() == "sqlite":
        made = new_file(server.name, server.version, tmp_path)
    else:
        if server.name not in administrators:
            administrators[server.name] = Administrator(server)
        made = new_database(server.name, server.version, administrators[server.name])
    with made as database:
        if database_kind in ASYNC_KINDS:
            yield database.through(ASYNC_KINDS[database_kind][1], in_greenlet=runs_in_greenlet(request.node))
        else:
            yield database


@pytest.fixture
def engine(database: Database) -> sa.Engine:
    """Create an engine with SQLAlchemy's defaults on the new database."""
    return database.create_engine()


@pytest.fixture
def queue_engine(engine: sa.Engine) -> sa.Engine:
    """Create an engine on a database that has the queue's tables."""
    import proletarian_sa  # noqa: PLC0415 - tests of the servers alone must not depend on it

    proletarian_sa.create_all(engine)
    return engine


@pytest.fixture(params=[LEASED, HELD])
def claim(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once with each kind of claim."""
    choose(request.param)
    yield request.param
    choose(LEASED)


@pytest.fixture
def work(request: pytest.FixtureRequest, queue_engine: sa.Engine) -> Iterator[Callable[..., Any]]:
    """Return what makes a worker that polls often, and the recorder of its events; all are stopped after the test."""
    from proletarian_sa import QueueWorker  # noqa: PLC0415 - see above
    from tests.observing import PATIENCE, Recorder  # noqa: PLC0415 - see above
    from tests.workers_on_loops import WorkerOnLoop  # noqa: PLC0415 - see above

    made: list[Any] = []
    driver = async_workers.driver_of(request)

    def make(handler: Any, engine: sa.Engine = queue_engine, **options: Any) -> tuple[QueueWorker, Any]:
        defaults = {"polling_interval": 0.01, "on_event": Recorder(), "stop_timeout": PATIENCE, "handler_mode": "advanced"}
        options = defaults | {"claim": chosen()} | options
        if driver is None:
            made.append(QueueWorker(engine, handler, **options))
        else:
            made.append(WorkerOnLoop(engine, driver, handler, plain=async_workers.handlers_are_plain(request), **options))
        return made[-1], options["on_event"]

    yield make
    for worker in made:
        worker.stop() if driver is None else worker.close()


@pytest.fixture
def signalled(work: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Return what makes a worker that installs signal handlers; what was installed before is there again after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield lambda handler=lambda _job: None, **options: work(handler, **{"install_signal_handlers": True} | options)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def app_engine(queue_engine: sa.Engine) -> sa.Engine:
    """Return an engine on a database with the application's tables beside the queue's."""
    Base.metadata.create_all(queue_engine)
    return queue_engine
