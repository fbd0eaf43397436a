"""Connections that are half open: nothing comes over them any more, and nobody closes them."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.faults.asking import health, pauses, wait_for_handlers
from tests.faults.durations import LONGEST_PAUSE, REAL
from tests.faults.network import LossyProxy, NetworkMissingError, network
from tests.faults.scene import Scene, Worker
from tests.proxies import Proxy, proxy
from tests.servers.database import Database

pytestmark = pytest.mark.long

SILENT = 0.3
"""Seconds after which a missing answer is told in these tests."""
STOP_TIMEOUT = 1.0
IMPATIENT = {"connect_timeout": 1, "read_timeout": 1}
"""Seconds that PyMySQL waits for an answer; see docs/operations.md."""
PROBING = {"connect_timeout": 2, "keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2}
UNANSWERED = {"connect_timeout": 2, "tcp_user_timeout": 1500}
"""Options of libpq: how a connection is found dead that waits for an answer, and one on which something is sent; likewise."""


@pytest.fixture
def way(scene: Scene, database: Database) -> Iterator[Proxy]:
    """Return a way to the database that can lose all that is sent."""
    database.require("server")
    with proxy(scene.engine.url) as made:
        yield made


@pytest.fixture
def lossy(scene: Scene, database: Database) -> Iterator[tuple[LossyProxy, dict[str, Any]]]:
    """Return a way to the database on which packets get lost, and options for workers that go there."""
    if not database.listen:
        pytest.skip("no keepalives of the driver's")  # one that has time-outs needs none
    try:
        with network() as made:
            way, undisturbed = LossyProxy(made, scene.engine.url), LossyProxy(made, scene.engine.url, "127.0.0.1")
            yield way, {"network": made.path, "marks": undisturbed.url.render_as_string(hide_password=False)}
            way.close()
            undisturbed.close()
    except NetworkMissingError as error:
        pytest.skip(f"no network of one's own: {error}")


def start(scene: Scene, way: Proxy, **options: Any) -> Worker:
    """Start a worker whose connections go that way, with two jobs in hand: one in a transaction, and one without."""
    url = way.url.render_as_string(hide_password=False)
    given = {"worker_threads": 2, "stop_timeout": STOP_TIMEOUT}
    worker = scene.start(url=url, worker=given, silent=SILENT, longest_pause=LONGEST_PAUSE, **options)
    go = scene.folder / "go"
    scene.add(opens=True, wait=str(go))
    scene.add(wait=str(go))
    wait_for_handlers(scene, go, scene.jobs)
    return worker


def let_go(scene: Scene) -> None:
    """Let the jobs in hand go on."""
    (scene.folder / "go").touch()


def wait_for_silence(scene: Scene, worker: Worker) -> dict[str, Any]:
    """Return the worker's health once it has no answer, and has told so."""
    found: dict[str, Any] = {}

    def is_silent() -> bool:
        found.update(health(scene, worker))
        return found["stalled_for"] >= SILENT and found["reason"].endswith(": no answer")

    scene.wait(is_silent)
    scene.wait(lambda: scene.told("DatabaseSilent", worker.pid))
    return found


@pytest.mark.async_workers("asyncpg leased held", "asyncmy-mysql leased")
def test_a_stop_without_answers(scene: Scene, way: Proxy) -> None:
    """Half-open connections: a stop ends within its limit, as does the process; leased jobs in hand then run elsewhere."""
    worker = start(scene, way)
    way.freeze()
    let_go(scene)
    stalled = wait_for_silence(scene, worker)
    worker.stop()
    way.let_server_know()  # until then it keeps the locks of held claims
    scene.start()
    recovered = scene.wait_for_end()

    assert "running" == stalled["state"]
    scene.check(lost=dict.fromkeys(map(str, scene.jobs), 1))
    scene.measured("half-open connections: stopped meanwhile", recovered)


@pytest.mark.async_workers("asyncpg held", "asyncmy-mariadb leased", "psycopg-async leased")
def test_bytes_flow_again(scene: Scene, way: Proxy) -> None:
    """Half-open connections: without settings of the driver a worker waits until bytes flow again, says so, and goes on."""
    worker = start(scene, way)
    way.freeze()
    let_go(scene)
    wait_for_silence(scene, worker)
    way.thaw()
    recovered = scene.wait_for_end()
    scene.wait(lambda: scene.told("DatabaseAnswered", worker.pid))
    scene.check_alive()

    scene.wait(lambda: health(scene, worker)["stalled_for"] < SILENT)
    scene.check()
    scene.measured("half-open connections: bytes flow again", recovered)
    assert 0 == worker.stop()


def test_an_impatient_driver(scene: Scene, way: Proxy, database: Database) -> None:
    """Half-open connections: with time-outs of the driver a worker gives them up by itself, and goes on over new ones."""
    if database.listen:
        pytest.skip("no time-out of the driver's for an answer")
    worker = start(scene, way, engine={"connect_args": IMPATIENT})
    way.freeze()
    let_go(scene)
    scene.wait(lambda: len(scene.told("TransientErrorMet", worker.pid)) >= 2)
    scene.wait(lambda: health(scene, worker)["stalled_for"] > 0)  # not in the moment after an outcome was given up
    way.let_server_know()  # likewise
    way.renew()
    recovered = scene.wait_for_end()
    scene.check_alive()

    scene.wait(lambda: health(scene, worker)["stalled_for"] < SILENT)
    scene.check()
    scene.measured("half-open connections: time-outs of the driver", recovered)
    assert 0 == worker.stop()


@pytest.mark.parametrize("waiting", [False, True], ids=["asking", "waiting"])
def test_keepalives(scene: Scene, lossy: tuple[LossyProxy, dict[str, Any]], *, waiting: bool) -> None:
    """Half-open connections: packets get lost; with keepalives and a time-out of TCP a worker goes on by itself, over new ones."""
    if waiting and not REAL:
        pytest.skip("only with DURATIONS=real")  # probes come seconds apart, and several must be lost
    way, options = lossy
    worker = start(scene, way, engine={"connect_args": UNANSWERED | PROBING}, **options)
    with scene.engine.connect() as other:
        if waiting:
            other.execute(sa.text("LOCK TABLE proletarian.archived_job"))  # held claims would keep that of the jobs from us
            let_go(scene)
            scene.wait(lambda: scene.told("DatabaseSilent", worker.pid))  # what was asked has arrived there
        way.freeze()
        let_go(scene)
        scene.wait(lambda: max((times for times, _ in pauses(scene, worker).get("claiming jobs", [])), default=0) >= 2)
        stalled = health(scene, worker)
    way.let_server_know()  # likewise
    way.restore()
    recovered = scene.wait_for_end()
    scene.check_alive()

    assert stalled["stalled_for"] > 0
    scene.wait(lambda: health(scene, worker)["stalled_for"] < SILENT)
    scene.check()
    scene.measured("packets get lost: keepalives", recovered)
    assert 0 == worker.stop()
