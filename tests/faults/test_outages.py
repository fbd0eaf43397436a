"""A database that is away for a while: workers wait for it quietly, can be stopped meanwhile, and go on by themselves."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import create_all
from tests.faults.asking import health, pauses, threads, wait_for_handlers
from tests.faults.durations import HANDFUL, LONGEST_PAUSE, OUTAGE, REAL
from tests.faults.own_server import OwnServer
from tests.faults.scene import Nursery, Scene, Worker
from tests.faults.traps import ARCHIVED
from tests.servers.database import Database

pytestmark = pytest.mark.long

THREADS = 8
IN_HAND = 5
"""Jobs, when the server goes."""
LOOPS = 3
"""Claims, finishes, heartbeats, each with a connection; and each handler with its own."""
CAP = LONGEST_PAUSE or 30.0
FIRST = 0.1
"""Seconds: the first pause, at most; the next ones double. See `proletarian_sa.backoff`."""
SHARE = 0.05 if REAL else 0.75
"""Of a processor: a worker that waits uses nearly nothing, one that does not all of it. With short pauses it tries more often: of
seconds with 30 tries to connect PyMySQL takes a quarter."""
LEASE = 90.0
"""Seconds, so that heartbeats wait as long as anybody."""
NEVER = 600.0
"""Seconds: a pause that no test waits for the end of."""
TICK = 1e-5
ENOUGH = 3
"""Failures in a row, after which pauses have grown."""
BEGIN_AND_END = 3
"""Lines of an activity, however many threads it has: that it fails, for another reason then, and that it works again."""


def most_tries(seconds: float) -> int:
    """Return how often an activity can have been tried in this time, with all pauses at their shortest."""
    tries, elapsed = 1, 0.0
    while elapsed < seconds:
        elapsed += min(FIRST * 2 ** (tries - 1), CAP) / 2
        tries += 1
    return tries


def endure(scene: Scene, worker: Worker, end: Callable[[], Any]) -> dict[str, Any]:
    """Let the outage, which has begun, last its time, and end it; return what the worker has done meanwhile, and its health."""
    before = worker.cpu_seconds(), len(worker.lines()), len(scene.told("Connecting", worker.pid))
    threading.Event().wait(OUTAGE)
    facts = {
        "cpu": worker.cpu_seconds() - before[0],
        "lines": len(worker.lines()) - before[1],
        "connecting": len(scene.told("Connecting", worker.pid)) - before[2],
        "health": health(scene, worker),
    }
    end()
    return facts


def check_calm(scene: Scene, worker: Worker, facts: dict[str, Any]) -> None:
    """Hold the pauses, the log and the processor against what is promised of an outage."""
    waited = pauses(scene, worker)
    claims = [(failures, seconds) for failures, seconds in waited["claiming jobs"] if failures]
    for failures, seconds in claims:
        longest = min(FIRST * 2 ** (failures - 1), CAP)
        assert longest / 2 - TICK <= seconds <= longest + TICK, (failures, seconds)

    assert max(failures for failures, _ in claims) >= ENOUGH
    assert any(seconds < min(FIRST * 2 ** (failures - 1), CAP) - TICK for failures, seconds in claims), "no jitter"
    assert facts["connecting"] <= (LOOPS + THREADS) * most_tries(OUTAGE)
    assert facts["lines"] <= HANDFUL * OUTAGE / 60 + len(waited) * BEGIN_AND_END + IN_HAND
    assert facts["cpu"] < SHARE * OUTAGE
    assert facts["health"]["stalled_for"] > 0
    assert facts["health"]["reason"]


@pytest.mark.async_workers("asyncpg leased", "asyncmy-mariadb held")
def test_the_server_is_down(own_scene: Scene, own_server: OwnServer) -> None:
    """Spin and log flood: with the database down 8 threads wait, ever longer, quietly, and go on; a stop meanwhile is prompt."""
    sign, go = own_scene.folder / "sign", own_scene.folder / "go"
    given = {"worker_threads": THREADS, "queue": ["busy", "default"], "lease": LEASE}
    worker = own_scene.start(worker=given, longest_pause=LONGEST_PAUSE, point=ARCHIVED, sign=str(sign))
    asleep = own_scene.start(worker={"worker_threads": THREADS, "queue": "none", "stop_timeout": NEVER}, first_pause=NEVER)
    before = threads(own_scene, worker, THREADS)
    in_hand = own_scene.add(1, queue="busy")
    own_scene.wait(sign.exists)
    waiting = own_scene.add(2, queue="busy", wait=str(go)) + own_scene.add(2, queue="busy", opens=True, wait=str(go))
    in_hand += waiting
    assert IN_HAND == len(in_hand)
    wait_for_handlers(own_scene, go, waiting)
    own_server.stop("immediate")
    sign.unlink()
    go.touch()
    own_scene.wait(lambda: any(told[-1][0] > 1 for told in pauses(own_scene, worker).values()) and pauses(own_scene, asleep))
    code = asleep.stop()
    facts = endure(own_scene, worker, own_server.start)
    recovered = own_scene.wait_for_end()
    own_scene.check_alive()

    assert 0 == code
    check_calm(own_scene, worker, facts)
    own_scene.check()
    own_scene.wait(lambda: health(own_scene, worker)["stalled_for"] < 1)
    own_scene.measured("server down", recovered, in_hand)
    assert before == threads(own_scene, worker, THREADS)
    assert "PendingRollbackError" not in worker.text()
    assert 0 == worker.stop()


@pytest.mark.async_workers("psycopg-async leased", "asyncmy-mariadb held")
def test_a_stop_with_an_outcome_in_hand(own_scene: Scene, own_server: OwnServer) -> None:
    """Database outage: a stop ends within its limit though an outcome cannot be recorded; that job runs again elsewhere."""
    go = own_scene.folder / "go"
    worker = own_scene.start(worker={"stop_timeout": 0.5}, longest_pause=LONGEST_PAUSE)
    (job_id,) = own_scene.add(effect=False, wait=str(go))
    wait_for_handlers(own_scene, go, [job_id])
    own_server.stop("kill")
    go.touch()
    own_scene.wait(lambda: pauses(own_scene, worker).get("recording outcomes"))
    worker.stop()
    own_server.start()
    own_scene.start()
    recovered = own_scene.wait_for_end()

    own_scene.check(lost={str(job_id): 1}, effectless=[job_id])
    own_scene.measured("server down: stopped meanwhile", recovered)


@pytest.fixture
def file_scene(database: Database, leased_scene: Scene) -> Scene:
    """Return a scene on a database that is a file."""
    if database.server:
        pytest.skip("no file of its own")
    return leased_scene


def test_the_file_is_locked(file_scene: Scene) -> None:
    """Spin and log flood: while somebody has a SQLite database to himself, 8 threads wait, quietly, and go on."""
    worker = file_scene.start(
        worker={"worker_threads": THREADS, "lease": LEASE},
        longest_pause=LONGEST_PAUSE,
        engine={"connect_args": {"timeout": 0.1}},
    )
    go = file_scene.folder / "go"
    file_scene.add(4, wait=str(go))
    wait_for_handlers(file_scene, go, file_scene.jobs)
    somebody = file_scene.engine.connect()
    somebody.exec_driver_sql("BEGIN EXCLUSIVE")
    go.touch()
    file_scene.wait(lambda: any(told[-1][0] > 1 for told in pauses(file_scene, worker).values()))
    facts = endure(file_scene, worker, somebody.rollback)
    somebody.close()
    recovered = file_scene.wait_for_end()
    file_scene.check_alive()

    check_calm(file_scene, worker, facts)
    file_scene.check()
    file_scene.measured("file locked", recovered)
    assert 0 == worker.stop()


def test_the_folder_is_away(nursery: Nursery, file_scene: Scene, tmp_path: Path) -> None:
    """Database outage: while the folder of a SQLite database is away, an outcome waits to be recorded; then all goes on."""
    here, away, go = tmp_path / "here", tmp_path / "away", tmp_path / "go"
    here.mkdir()
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(here / "test.db")), poolclass=sa.NullPool)
    create_all(engine)
    with Scene(nursery, engine, file_scene.kind, file_scene.claim, tmp_path) as scene:
        worker = scene.start(longest_pause=LONGEST_PAUSE, worker={"lease": LEASE})
        ids = scene.add(wait=str(go))
        wait_for_handlers(scene, go, ids)
        here.rename(away)
        go.touch()
        scene.wait(lambda: scene.told("TransientErrorMet"))
        endure(scene, worker, lambda: away.rename(here))
        recovered = scene.wait_for_end()
        scene.check_alive()

        scene.check()
        scene.measured("folder away", recovered, ids)
        assert 0 == worker.stop()
