"""A server that restarts, and connections that it ends, while workers are idle, in a job, and in the finish of one."""

import random
from contextlib import suppress

import pytest
import sqlalchemy as sa

from tests.faults.asking import threads, wait_for_handlers
from tests.faults.durations import LONGEST_PAUSE, REAL
from tests.faults.own_server import How, OwnServer
from tests.faults.scene import Scene, Worker
from tests.faults.traps import ARCHIVED
from tests.helpers import wait_until
from tests.proxies import Proxy, proxy
from tests.servers.database import Database
from tests.servers.sessions import sessions

pytestmark = pytest.mark.long

KILLS = 20 if REAL else 10
THREADS = 4


class Three:
    """Workers that are idle, in two jobs, and in the finish of one."""

    def __init__(self, scene: Scene, url: str | None = None) -> None:
        self.scene = scene
        self.sign, self.go = scene.folder / "sign", scene.folder / "go"
        self.workers = [
            self._start("idle", url),
            self._start("handler", url, worker_threads=2),
            self._start("finish", url, point=ARCHIVED, sign=str(self.sign)),
        ]
        self.threads = {worker: threads(scene, worker, number) for worker, number in zip(self.workers, (1, 2, 1), strict=True)}
        self.jobs = [
            *scene.add(queue="handler", wait=str(self.go)),
            *scene.add(queue="handler", opens=True, wait=str(self.go)),
            *scene.add(queue="finish"),
        ]
        scene.wait(self.sign.exists)
        wait_for_handlers(scene, self.go, self.jobs[:2])

    def _start(self, queue: str, url: str | None, worker_threads: int = 1, **options: str) -> Worker:
        worker = {"queue": [queue, "default"], "worker_threads": worker_threads}
        return self.scene.start(url=url, worker=worker, longest_pause=LONGEST_PAUSE, **options)

    def go_on(self) -> float:
        """Let all of them go on; return the seconds until all jobs are archived, those of the idle one too."""
        self.sign.unlink()
        self.go.touch()
        return self.scene.wait_for_end(self.jobs + self.scene.add(queue="idle"))

    def check(self) -> None:
        """Each works as before: the same threads, no session that was left broken."""
        self.scene.check_alive()
        self.scene.check()
        for worker in self.workers:
            check_threads(self.scene, worker, self.threads[worker])
            assert "PendingRollbackError" not in worker.text()
            assert worker.stop() == 0


@pytest.mark.async_workers("psycopg-async held")
@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_the_server_restarts(own_scene: Scene, own_server: OwnServer, how: How) -> None:
    """Database outage: a restart is waited out by workers that are idle, in a job, in the finish; all three go on by themselves."""
    three = Three(own_scene)
    own_server.restart(how)
    recovered = three.go_on()

    own_scene.measured(f"server restart, {how}", recovered)
    three.check()


@pytest.mark.async_workers("asyncpg leased held", "asyncmy-mysql leased", "psycopg-async held")
def test_all_connections_are_ended(scene: Scene, database: Database) -> None:
    """Session never cleaned after a lost connection: ended while idle, in a job, in the finish, the next use is a good one."""
    database.require("server")
    with proxy(scene.engine.url) as way:
        three = Three(scene, way.url.render_as_string(hide_password=False))
        assert end_connections(scene.engine, way) >= 4
        recovered = three.go_on()

        scene.measured("backends ended: idle, in a job, in the finish", recovered)
        three.check()


@pytest.mark.async_workers("asyncpg held leased")
def test_connections_are_ended_at_random_moments(scene: Scene, database: Database) -> None:
    """Session never cleaned after a lost connection: all at once, many times under load, cost at most the jobs in flight a run."""
    database.require("server")
    with proxy(scene.engine.url) as way:
        url = way.url.render_as_string(hide_password=False)
        worker = scene.start(url=url, worker={"worker_threads": THREADS}, longest_pause=LONGEST_PAUSE)
        before = threads(scene, worker, THREADS)
        effectless, kills = scene.add(1, effect=False), 0
        while kills < KILLS:
            done = len(scene.told("JobSucceeded")) + random.randint(1, 5)
            scene.add(4, milliseconds=5)
            effectless += scene.add(2, effect=False)
            scene.wait(lambda done=done: len(scene.told("JobSucceeded")) >= done)
            kills += end_connections(scene.engine, way) > 0
        recovered = scene.wait_for_end()

        scene.check_alive()
        scene.check(effectless=effectless)
        scene.measured(f"backends ended: {KILLS} times at random under load", recovered)
        check_threads(scene, worker, before)
        assert "PendingRollbackError" not in worker.text()


def check_threads(scene: Scene, worker: Worker, before: list[str]) -> None:
    """Let the worker have the threads that it had before."""
    with suppress(AssertionError):
        wait_until(lambda: threads(scene, worker) == before)

    assert before == threads(scene, worker)


def end_connections(engine: sa.Engine, way: Proxy) -> int:
    """End all sessions that have come this way, on the server; return how many."""
    ports = set(way.ports())
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            rows = connection.execute(sa.text("SELECT pid, client_port FROM pg_stat_activity WHERE client_port IS NOT NULL"))
            found = [pid for pid, port in rows if port in ports]
            for pid in found:
                connection.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        else:
            found = [one.number for one in sessions(engine.url) if one.host.rpartition(":")[2] in map(str, ports)]
            for pid in found:
                with suppress(sa.exc.OperationalError, sa.exc.InternalError):  # one that has just ended by itself
                    connection.exec_driver_sql(f"KILL {pid}")
    return len(found)
