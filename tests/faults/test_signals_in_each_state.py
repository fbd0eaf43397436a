"""Signals, once and twice, in each state of a worker process: of the command, and of a program that has the option.

What comes of a signal is the same whatever the database; one with a server, for held claims, and one without.
"""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from proletarian_sa import create_all, drop_all
from tests.command import APP, Command
from tests.faults.asking import wait_for_handlers
from tests.faults.scene import PATIENCE, Nursery, Scene, Worker
from tests.helpers import wait_until
from tests.observing import add, lapse
from tests.queue_contents import archived, queued
from tests.test_worker_limits import lock_archive

pytestmark = pytest.mark.long

SIGTERM, SIGINT, SIGHUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
AT_ONCE = {128 + SIGTERM, 128 + SIGINT}
"""The code of the command when two signals wait for it: that of the one which Python takes last, mostly the higher number."""
INTERRUPTED = 1
"""The code of a KeyboardInterrupt: Python's own, or the one that `asyncio.run` makes of SIGINT once the worker has stopped."""
SLOW = {"stop_timeout": PATIENCE, "lease": PATIENCE}
"""What no signal waits for within a test, nor a job that was left behind."""


ENOUGH = ("sqlite", "postgresql")


@pytest.fixture(params=ENOUGH)
def database_kind(request: pytest.FixtureRequest) -> str:
    """Run on a database without a server, and on one with."""
    return str(request.param)


def both(worker: Worker) -> None:
    """Send two signals in one moment."""
    for number in (signal.SIGSTOP, SIGTERM, SIGINT, signal.SIGCONT):
        worker.signal(number)


@contextmanager
def locked_archive(engine: sa.Engine) -> Iterator[None]:
    """Let nobody record an outcome."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            lock_archive(connection)
        yield
        connection.rollback()


def is_recording(scene: Scene) -> bool:
    """Return whether the worker waits for the archive."""
    if scene.kind == "sqlite":
        return any("recording outcomes" in line["text"] for line in scene.told("TransientErrorMet"))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with scene.engine.connect() as connection:
        return bool(connection.exec_driver_sql(waiting).scalar())


def start(scene: Scene) -> Worker:
    """Start a worker, which on SQLite does not wait long for a lock."""
    engine = {"connect_args": {"timeout": 0.1}} if scene.kind == "sqlite" else {}
    return scene.start(worker=SLOW, engine=engine)


def ends(send: Callable[[Worker], None]) -> bool:
    """Return whether what is sent ends a worker at once: what was in its way must stay there until then."""
    return send is both or send.__name__ == "stop_first"


def idle(scene: Scene, send: Callable[[Worker], None]) -> Worker:
    """Send while there is nothing to do."""
    worker = start(scene)
    send(worker)
    return worker


def in_the_back_off(scene: Scene, send: Callable[[Worker], None]) -> Worker:
    """Send while the database cannot serve the worker."""
    worker = start(scene)
    drop_all(scene.engine)
    scene.wait(lambda: len(scene.told("TransientErrorMet")) >= 3)
    send(worker)
    worker.wait()
    create_all(scene.engine)
    return worker


def in_a_job(scene: Scene, send: Callable[[Worker], None]) -> Worker:
    """Send while a handler runs, which then returns."""
    worker, go = start(scene), scene.folder / "go"
    wait_for_handlers(scene, go, scene.add(1, wait=str(go)))
    send(worker)
    scene.wait(lambda: worker.ended.is_set() or (not ends(send) and scene.told("WorkerStopping")))
    go.touch()
    return worker


def in_the_finish(scene: Scene, send: Callable[[Worker], None]) -> Worker:
    """Send while a job's outcome cannot be recorded, which then can."""
    worker, go = start(scene), scene.folder / "go"
    wait_for_handlers(scene, go, scene.add(1, wait=str(go), effect=False))
    with locked_archive(scene.engine):
        go.touch()
        scene.wait(lambda: is_recording(scene))
        send(worker)
        scene.wait(lambda: worker.ended.is_set() or (not ends(send) and scene.told("WorkerStopping")))
    return worker


def in_the_stop(scene: Scene, send: Callable[[Worker], None]) -> Worker:
    """Send while the worker waits for a handler to return."""

    def stop_first(worker: Worker) -> None:
        worker.signal(SIGTERM)
        scene.wait(lambda: scene.told("WorkerStopping"))
        send(worker)

    return in_a_job(scene, stop_first)


STATES = [idle, in_the_back_off, in_a_job, in_the_finish]
WITH_A_JOB = (in_a_job, in_the_finish, in_the_stop)


@pytest.mark.async_workers("asyncpg leased held", without=ENOUGH)
@pytest.mark.parametrize(("state", "number"), [*((state, SIGTERM) for state in STATES), (in_a_job, SIGINT)])
def test_once(scene: Scene, state: Callable[..., Worker], number: signal.Signals) -> None:
    """SIGTERM / SIGINT, once and twice: the first lets running jobs finish, and be recorded; the command ends with code 0."""
    worker = state(scene, lambda worker: worker.signal(number))

    interrupted = scene.driver is not None and number == SIGINT
    assert (INTERRUPTED if interrupted else 0) == worker.wait(), worker.text()
    assert [("success", 1)] * (state in WITH_A_JOB) == [(row.status, row.attempts) for row in archived(scene.engine)]
    assert [] == queued(scene.engine)


@pytest.mark.async_workers("asyncpg leased held", without=ENOUGH)
@pytest.mark.parametrize("state", [*STATES, in_the_stop])
def test_twice(scene: Scene, state: Callable[..., Worker]) -> None:
    """SIGTERM / SIGINT, once and twice: the second ends the command at once; a job that it had is run again, and recorded once."""
    worker = state(scene, (lambda worker: worker.signal(SIGTERM)) if state is in_the_stop else both)

    assert worker.wait() in (AT_ONCE if scene.driver is None else {-SIGTERM, INTERRUPTED}), worker.text()
    assert [] == archived(scene.engine)
    check_again(scene, any_job=state in WITH_A_JOB)


@pytest.mark.async_workers("asyncpg leased", without=ENOUGH)
def test_hangup(scene: Scene) -> None:
    """SIGHUP ends the command at once, as it does most programs; the job that it had is run again, and recorded once."""
    worker = in_a_job(scene, lambda worker: worker.signal(SIGHUP))

    assert -SIGHUP == worker.wait(), worker.text()
    check_again(scene, any_job=True)


def check_again(scene: Scene, *, any_job: bool) -> None:
    """Let another worker run what a process has left behind."""
    left = queued(scene.engine)
    if scene.driver is None:
        assert [scene.claim == "leased"] * any_job == [row.claimed_by is not None for row in left]
    else:  # where Ctrl-C came first, the loop has ended in order, and the job may have been put back
        assert any_job == len(left)
    for row in left:
        if row.claimed_by is not None:
            lapse(scene.engine, row.job_id)
    scene.start()
    scene.wait_for_end()
    scene.check_alive()
    rows = archived(scene.engine)

    assert sorted(scene.jobs) == sorted(row.job_id for row in rows)
    assert {("success", 1)} == {(row.status, row.attempts) for row in rows}
    assert len(scene.jobs) + len(left) == len(scene.told("JobStarted"))
    assert [] == scene.told("WorkerFailed") + scene.told("ThreadDied")


SILENT = {"postgresql": "postgresql+psycopg://app:x@127.0.0.1:{}/app", "mysql": "mysql+pymysql://app:x@127.0.0.1:{}/app"}


@pytest.mark.parametrize("kind", SILENT)
def test_a_start_that_waits_for_a_silent_server(nursery: Nursery, tmp_path: Path, kind: str) -> None:
    """SIGTERM while the command connects to a server that does not answer: it ends with code 0, without waiting for an answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        environment = {"APP_URL": SILENT[kind].format(server.getsockname()[1])}
        worker = nursery.run(tmp_path / "output", "worker", f"{APP}:make_worker", environment=environment)
        connection, _ = server.accept()
        with connection:
            worker.signal(SIGTERM)

            assert 0 == worker.wait(), worker.text()
    assert [] == worker.lines()


def test_twice_while_the_application_is_set_up(tmp_path: Path) -> None:
    """SIGTERM / SIGINT, once and twice: the second also ends a command whose application is still being made."""
    with Command(f"{APP}:make_slowly", APP_URL=f"sqlite:///{tmp_path}/app.db") as command:
        command.wait_for("making")
        for number in (signal.SIGSTOP, SIGTERM, SIGINT, signal.SIGCONT):
            command.process.send_signal(number)

        assert command.code() in AT_ONCE, command.output


class Option:
    """A program whose worker has `install_signal_handlers`; its main thread goes the given way meanwhile."""

    def __init__(self, nursery: Nursery, engine: sa.Engine, folder: Path) -> None:
        self.engine = engine
        self.file = folder / "file"
        self._run = lambda way, **environment: nursery.run(
            folder / "output",
            way,
            module="tests.programs.signals_app",
            environment={"APP_URL": engine.url.render_as_string(hide_password=False), **environment},
        )

    def start(self, way: str) -> Worker:
        """Start it."""
        worker = self._run(way)
        wait_until(lambda: worker.ended.is_set() or "WorkerStarted" in worker.text(), PATIENCE)
        return worker

    def in_the_finish(self, way: str, send: Callable[[Worker], None]) -> Worker:
        """Send while a job's outcome cannot be recorded, which then can."""
        worker = self.start(way)
        add(self.engine, "until", str(self.file))
        wait_until(lambda: "begun" in worker.text(), PATIENCE)
        with locked_archive(self.engine):
            self.file.touch()
            send(worker)
            wait_until(lambda: worker.ended.is_set() or (not ends(send) and "WorkerStopping" in worker.text()), PATIENCE)
        return worker


@pytest.fixture
def option(nursery: Nursery, queue_engine: sa.Engine, tmp_path: Path) -> Option:
    """Return a program that has the option, not yet started."""
    return Option(nursery, queue_engine, tmp_path)


@pytest.mark.parametrize(("way", "code"), [("start", -SIGTERM), ("run", 5)])
def test_once_in_the_finish_with_the_option(option: Option, way: str, code: int) -> None:
    """SIGTERM / SIGINT, once and twice: the outcome is recorded before the process ends by the signal, or `run` returns."""
    worker = option.in_the_finish(way, lambda worker: worker.signal(SIGTERM))

    assert code == worker.wait(), worker.text()
    assert [("success", 1)] == [(row.status, row.attempts) for row in archived(option.engine)]


def test_twice_in_the_finish_with_the_option(option: Option) -> None:
    """SIGTERM / SIGINT, once and twice: the second ends the process at once; the job is still in the queue, with its attempt."""
    worker = option.in_the_finish("start", both)

    assert worker.wait() in {-SIGTERM, INTERRUPTED}, worker.text()
    assert [] == archived(option.engine)
    assert [1] == [row.attempts for row in queued(option.engine)]


@pytest.mark.parametrize(("way", "away"), [("start", False), ("run", True)])
def test_twice_without_a_job_with_the_option(option: Option, way: str, away: bool) -> None:
    """SIGTERM / SIGINT, once and twice: also an idle process, or one in the database back-off, ends by the second signal."""
    worker = option.start(way)
    if away:
        drop_all(option.engine)
        wait_until(lambda: "TransientErrorMet 3" in worker.text(), PATIENCE)
    both(worker)

    assert worker.wait() in {-SIGTERM, INTERRUPTED}, worker.text()
