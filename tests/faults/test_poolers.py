"""PgBouncer in transaction mode, with fewer connections to the server than the workers have threads."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.clusters.node import Node
from tests.clusters.pooler import keeps_prepared_statements, pooler_before
from tests.faults.scene import Scene
from tests.helpers import scaled
from tests.servers import Servers
from tests.servers.errors import ServerFailedError, ServerMissingError

pytestmark = pytest.mark.long

CONNECTIONS = 4
WORKERS, THREADS = 2, 8
WITHOUT = {"connect_args": {"prepare_threshold": None}, "pool_size": THREADS + 3}
AT_ONCE = {"connect_args": {"prepare_threshold": 0}, "pool_size": THREADS + 3}


@pytest.fixture(params=["postgresql"])
def database_kind(request: pytest.FixtureRequest) -> str:
    """Run on the one database that the pooler serves."""
    return str(request.param)


@pytest.fixture(scope="module")
def pooler(servers: Servers) -> Iterator[Node]:
    """Run a pooler before the tests' server."""
    try:
        with pooler_before(sa.make_url(servers.get("postgresql").url), CONNECTIONS) as pooler:
            yield pooler
    except (ServerMissingError, ServerFailedError) as error:
        pytest.skip(str(error))


def through(pooler: Node, scene: Scene) -> str:
    """Return the way to the scene's database through the pooler."""
    return sa.make_url(pooler.url).set(database=scene.engine.url.database).render_as_string(hide_password=False)


def test_without_prepared_statements(pooler: Node, scene: Scene) -> None:
    """Prepared statements, turned off as documented: sixteen threads on four connections do all jobs, without an error."""
    options = {"worker": {"worker_threads": THREADS, "lease": 60}, "engine": WITHOUT, "url": through(pooler, scene), "retries": 1}
    workers = [scene.start(**options) for _ in range(WORKERS)]
    effectless = scene.add(scaled(60), effect=False)
    scene.add(scaled(60))
    scene.add(6, ends="flaky")
    failed = scene.add(2, ends="failure")
    scene.wait_for_end()
    scene.check_alive()
    codes = [worker.stop() for worker in workers]

    scene.check(failed=failed, effectless=effectless)
    assert [0] * WORKERS == codes
    assert [] == scene.told("TransientErrorMet") + scene.told("JobTransactionDied") + scene.told("WorkerFailed")


def test_prepared_statements_that_the_pooler_does_not_keep(pooler: Node, scene: Scene) -> None:
    """Prepared statements, wrong settings: the worker ends, names the error and the setting, and no job is lost or failed by it."""
    if keeps_prepared_statements():
        pytest.skip("a pooler that keeps prepared statements")
    scene.add(scaled(40), effect=False)
    worker = scene.start(worker={"worker_threads": THREADS}, engine=AT_ONCE, url=through(pooler, scene), ready=False)
    # Where one connection of the pooler's serves everything, nothing is missing on it: there is work for several at a time.
    scene.wait(lambda: worker.ended.wait(0.1) or not scene.add(2, effect=False))
    assert 1 == worker.wait(), worker.text()
    said = worker.text()
    effectless = list(scene.jobs)
    lost = scene.in_hand()
    scene.start(worker={"worker_threads": THREADS}, engine=WITHOUT, url=through(pooler, scene))
    scene.wait_for_end()

    assert "prepared statement" in said
    assert "prepare_threshold" in said
    scene.check(lost=lost, effectless=effectless, allowed=["WorkerFailed"])
