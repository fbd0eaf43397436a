"""A SQLite file has one writer at a time: a worker and its application are in nobody's way."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import DatabaseNotSupported, JobRegistry, QueueWorker, RunningJob, create_all, enqueue_many
from tests.faults.scene import PATIENCE, Nursery, Scene
from tests.helpers import wait_until
from tests.queue_contents import archived, queued
from tests.servers.database import Database
from tests.stress import tables

pytestmark = pytest.mark.long

QUICK = 200
SLOW = 5
LEASE = 5.0
"""Seconds: of a worker that may stand still for a moment, as all of a busy machine."""
BRIEFLY = {"connect_args": {"timeout": 0.2}}
"""How a worker's engine is made that waits for the lock much more briefly than the driver usually does: 5 seconds."""
OWN_BEGIN = {"connect_args": {"isolation_level": None}}
"""As SQLAlchemy's documentation has it where savepoints are to work: the application begins transactions, deferred ones, itself."""
ACTIVITIES = {"claiming jobs", "prolonging leases", "recording outcomes"}


@pytest.fixture(params=["wal", "delete"])
def file_scene(request: pytest.FixtureRequest, nursery: Nursery, database: Database, tmp_path: Path) -> Iterator[Scene]:
    """Return a scene on a file with each kind of journal."""
    if database.server:
        pytest.skip("no journal modes")
    engine = database.create_engine()
    with engine.connect() as connection:
        assert request.param == connection.exec_driver_sql(f"PRAGMA journal_mode={request.param}").scalar()
    create_all(engine)
    with Scene(nursery, engine, database.kind, "leased", tmp_path) as made:
        yield made


def add_handlers(jobs: JobRegistry) -> dict[str, Any]:
    """Add handlers that leave no mark of their own, as such writes would be in the way too."""
    jobs.handler("quick")(lambda _payload: None)

    @jobs.handler("slow")
    def slow(_payload: Any, job: RunningJob) -> None:
        job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})
        time.sleep(0.6)  # with the lock

    return {"worker_threads": 4}


@pytest.mark.parametrize("begins", ["driver", "application"])
def test_the_application_is_never_locked_out(nursery: Nursery, file_scene: Scene, begins: str) -> None:
    """Database is locked: never in an application that writes 50 times a second and waits two seconds, beside four busy threads.

    Meanwhile a job runs for all of the time. The worker itself meets no error either, also not where the application's engine
    begins deferred transactions, which SQLite refuses at once when they turn from reading to writing.
    """
    scene, end = file_scene, file_scene.folder / "end"
    statements = scene.folder / "statements"
    if begins == "application":
        statements.write_text("BEGIN")
    options = OWN_BEGIN if begins == "application" else {}
    (long,) = scene.add(wait=str(end))
    with scene.engine.begin() as connection:
        ids = enqueue_many(connection, [{"job_type": "quick"}] * QUICK + [{"job_type": "slow"}] * SLOW)
    stop, report = scene.folder / "stop", scene.folder / "report"
    writer = nursery.run(scene.folder / "writer", scene.url, str(stop), str(report), module="tests.faults.writer")
    wait_until(lambda: count(scene.engine, tables.signups), timeout=PATIENCE)
    scene.start(more=f"{__name__}:add_handlers", worker={"lease": LEASE}, engine=options, statements=str(statements))
    scene.wait_for_end(ids)
    stop.touch()
    code = writer.wait()
    end.touch()
    scene.wait(lambda: not queued(scene.engine))
    wrote = json.loads(report.read_text())
    rows, signups = archived(scene.engine), count(scene.engine, tables.signups)

    assert code == 0, writer.text()
    assert {name: [] for name in wrote} == {name: facts["errors"] for name, facts in wrote.items()}
    assert sum(facts["writes"] for facts in wrote.values()) == signups > 5
    assert {("success", 1, None)} == {(row.status, row.attempts, row.crashes) for row in rows}
    assert 1 + len(ids) + signups == len(rows)
    assert long in {row.job_id for row in rows}
    assert [] == scene.told("TransientErrorMet")


def count(engine: sa.Engine, table: sa.Table) -> int:
    """Return how many rows there are."""
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def test_a_handler_holds_the_lock_from_its_first_use_of_the_session(file_scene: Scene) -> None:
    """Long job: one that uses job.session at once keeps all others from writing until it returns, and nobody afterwards."""
    scene, end = file_scene, file_scene.folder / "end"
    scene.add(opens=True, wait=str(end))
    impatient = sa.create_engine(scene.url, connect_args={"timeout": 0.0})
    scene.start()
    scene.wait(lambda: scene.told("JobStarted"))
    wait_until(lambda: not can_write(impatient), timeout=PATIENCE)
    end.touch()
    scene.wait_for_end()
    wait_until(lambda: can_write(impatient), timeout=PATIENCE)
    impatient.dispose()

    scene.check()


def can_write(engine: sa.Engine) -> bool:
    """Return whether nobody else is writing."""
    with suppress(sa.exc.OperationalError), engine.begin() as connection:
        connection.execute(sa.insert(tables.signups), {"jobs": 1})
        return True
    return False


def test_a_long_writer_costs_no_job(file_scene: Scene) -> None:
    """Database is locked: while a writer outlasts the worker's patience and its leases, all of it waits, and no job fails."""
    scene, begin = file_scene, file_scene.folder / "begin"
    scene.add(4, wait=str(begin))
    scene.start(engine=BRIEFLY, worker={"worker_threads": 4}, longest_pause=0.3)
    scene.wait(lambda: count(scene.engine, tables.runs) == len(scene.jobs))
    scene.add(2)
    with scene.engine.connect() as writer:
        writer.execute(sa.insert(tables.signups), {"jobs": 1})
        begin.touch()
        scene.wait(lambda: met(scene) == ACTIVITIES)
        scene.wait(lambda: len(scene.told("JobTransactionDied")) == 4)
        writer.commit()
    recovered = scene.wait_for_end()
    scene.check_alive()

    assert [] == scene.told("JobAttemptFailed")
    assert {("success", None)} == {(row.status, row.crashes) for row in archived(scene.engine)}
    scene.check()
    scene.measured("a writer that outlasts the worker's patience and its leases", recovered)


def met(scene: Scene) -> set[str]:
    """Return which activities of the workers have met an error that passes."""
    return {name for line in scene.told("TransientErrorMet") for name in ACTIVITIES if name in line["text"]}


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:shared?mode=memory&cache=shared&uri=true", "sqlite:///"]
)
def test_a_database_in_memory_is_refused(url: str) -> None:
    """In-memory SQLite: a worker does not start on it, and is told to use a file."""
    engine = sa.create_engine(url, poolclass=sa.pool.SingletonThreadPool)

    with pytest.raises(DatabaseNotSupported, match=r"it is in memory.*Use a file: sqlite:///jobs\.db\."):
        QueueWorker(engine, lambda *_: None).start()
    engine.dispose()
