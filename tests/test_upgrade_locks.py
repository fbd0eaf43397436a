"""Migrations of tables in use: they give up soon with a message, change nothing by halves, and hold nobody up."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import alembic
import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.util import CommandError

from proletarian_sa import default_tables, enqueue
from proletarian_sa.events import JobSucceeded
from tests.claims import HELD
from tests.helpers import wait_until
from tests.migrators import migrators  # noqa: F401 - a fixture
from tests.observing import PATIENCE, Gate, add
from tests.queue_contents import archived, queued
from tests.second_version import second_version  # noqa: F401 - a fixture
from tests.servers.database import Database
from tests.test_alembic import ENV_URL, project, run_alembic  # noqa: F401 - a fixture among them
from tests.test_upgrade_races import is_waiting
from tests.upgrading import AUTOCOMMIT, PER_MIGRATION, Project, by_steps, configure, in_env, keep_jobs, kept, write  # noqa: F401

pytestmark = pytest.mark.long

GAVE_UP = (
    "The tables of proletarian-sa are in use, by a long transaction or a held job, so this migration gave up. "
    "Let that end, then run the same command again."
)
WAYS = {
    "upgrade": (1, 2, default_tables.job),
    "upgrade of the archive": (1, 2, default_tables.archived_job),
    "downgrade": (2, 1, default_tables.job),
    "uninstall": (1, 0, default_tables.archived_job),
}


def be_impatient(steps: Project, monkeypatch: pytest.MonkeyPatch, database: Database) -> None:
    """Wait less long than 5 seconds: in the revisions, as their owner may change them; for SQLite in the URL."""
    for file in steps.files.values():
        file.write_text(file.read_text().replace("'5s'", "'100ms'").replace("lock_wait_timeout = 5", "lock_wait_timeout = 1"))
    if not database.server:
        monkeypatch.setenv("APP_DATABASE_URL", f"{os.environ['APP_DATABASE_URL']}?timeout=0.05")


@contextmanager
def long_transaction(database: Database, table: sa.Table) -> Iterator[sa.Connection]:
    """Have a transaction open that has looked at a table, or on SQLite is to write."""
    with database.create_engine().connect() as connection:
        connection.execute(sa.select(table) if database.server else table.delete().where(sa.false()))
        yield connection
        connection.rollback()


@pytest.fixture
def impatient(by_steps: Project, monkeypatch: pytest.MonkeyPatch, database: Database) -> Project:  # noqa: F811 - the fixture
    """Return a project of which the migrations wait for a short time only."""
    be_impatient(by_steps, monkeypatch, database)
    return by_steps


@pytest.mark.parametrize("way", WAYS)
def test_a_long_transaction(impatient, database, engine, way):
    """A migration does not wait for long; it says why, has changed nothing by halves, and blocks nobody; later it succeeds."""
    start, end, table = WAYS[way]
    expected = impatient.expected()
    impatient.move(0, start)
    rows = keep_jobs(engine)
    with long_transaction(database, table):
        with pytest.raises(CommandError) as failure:
            impatient.move(start, end)
        if database.row_locks and end != 0:
            add(engine, queue="producer")
        assert start == impatient.current()
        if database.transactional_ddl or table is default_tables.job:
            assert expected[start] == impatient.catalogue()
    impatient.move(start, end)

    assert GAVE_UP == str(failure.value)
    assert (end, expected[end]) == (impatient.current(), impatient.catalogue())
    assert end == 0 or {row.job_id for row in rows} <= {row.job_id for row in kept(engine)}


@pytest.mark.parametrize("way", [(1, 2), (2, 1), (1, 0)])
def test_who_has_begun_goes_first(by_steps, database, engine, migrators, way):  # noqa: F811 - the fixtures
    """A migration locks the tables in the order of the workers: who has a job can archive it while the migration waits."""
    database.require("transactional_ddl")
    start, end = way
    by_steps.move(0, start)
    keep_jobs(engine)
    with long_transaction(database, default_tables.job) as connection:
        connection.exec_driver_sql("SET LOCAL deadlock_timeout = '60s'")
        migrators[0].begin(database, "upgrade" if start < end else "downgrade", by_steps.target(end))
        wait_until(lambda: is_waiting(engine))
        connection.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
        connection.execute(default_tables.archived_job.delete())
        connection.commit()

    assert "" == migrators[0].end()
    assert end == by_steps.current()


@pytest.mark.parametrize("change", [AUTOCOMMIT, PER_MIGRATION], ids=["autocommit", "per migration"])
def test_transactions_as_env_says(impatient, database, engine, change):
    """With autocommit, or a transaction per migration, the message is the same, and so is what a rerun makes."""
    database.require("transactional_ddl")
    expected = impatient.expected()
    in_env(*change)
    impatient.move(0, 1)
    for table in (default_tables.job, default_tables.archived_job):
        with long_transaction(database, table), pytest.raises(CommandError, match="this migration gave up"):
            impatient.move(1, 2)
        assert 1 == impatient.current()
    impatient.move(1, 2)

    assert (2, expected[2]) == (impatient.current(), impatient.catalogue())


def test_a_held_job(project, database, request, monkeypatch, work):  # noqa: F811 - the fixture
    """A running job that a worker holds is a long transaction; when it has ended, the migration succeeds."""
    database.require("row_locks")
    steps = Project(database.create_engine(), {1: write()})
    steps.move(0, 1)
    handler = Gate()
    worker, events = work(handler, claim=HELD)
    job_id = add(steps.engine)
    worker.start()
    handler.begun.get(timeout=PATIENCE)
    request.getfixturevalue("second_version")
    steps.files[2] = write()
    be_impatient(steps, monkeypatch, database)
    with pytest.raises(CommandError, match="this migration gave up"):
        steps.move(1, 2)
    handler.open.set()
    events.wait_for(JobSucceeded)
    worker.stop()
    steps.move(1, 2)

    assert 2 == steps.current()
    assert [job_id] == [row.job_id for row in archived(steps.engine)]


PATIENCES = {
    "postgresql": ("SET lock_timeout = '77s'", "current_setting('lock_timeout')", "77s"),
    "mysql": ("SET lock_wait_timeout = 77", "CAST(@@lock_wait_timeout AS CHAR)", "77"),
}


def test_the_applications_own_lock_timeout_is_set_again(by_steps, engine, database):  # noqa: F811 - the fixture
    """What env.py says of lock time-outs holds for the revisions after ours, upwards and downwards, in the same run."""
    database.require("row_locks")
    set_it, get_it, expected = PATIENCES["postgresql" if database.transactional_ddl else "mysql"]
    connect = "with connectable.connect() as connection:\n"
    in_env(connect, f'{connect}        connection.exec_driver_sql("{set_it}")\n        connection.commit()\n')
    run_alembic("revision", "later")
    (later,) = Path("migrations/versions").glob("*_later.py")
    configure(later, "    pass\n", f'    op.execute("INSERT INTO seen SELECT {get_it}")\n')
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE seen (patience VARCHAR(20))")
    by_steps.files[3] = later
    by_steps.move(0, 1)
    by_steps.move(1, 3)
    in_last = "def downgrade() -> None:\n"
    configure(by_steps.files[1], in_last, f'{in_last}    op.execute("INSERT INTO seen SELECT {get_it}")\n')
    by_steps.move(3, 0)

    with engine.connect() as connection:
        assert [expected] * 3 == list(connection.exec_driver_sql("SELECT patience FROM seen").scalars())


def test_a_deadlock(by_steps, database, engine, migrators):  # noqa: F811 - the fixtures
    """Where a transaction locks the tables the other way round, the migration gives up, not the transaction."""
    database.require("transactional_ddl")
    by_steps.move(0, 1)
    connect = "with connectable.connect() as connection:\n"
    in_env(
        connect, f"{connect}        connection.exec_driver_sql(\"SET deadlock_timeout = '300ms'\")\n        connection.commit()\n"
    )
    with long_transaction(database, default_tables.archived_job) as connection:
        connection.exec_driver_sql("SET LOCAL deadlock_timeout = '60s'")
        migrators[0].begin(database, "upgrade", "head")
        wait_until(lambda: is_waiting(engine))
        enqueue(connection, "after all")
        connection.commit()

    assert f"CommandError: {GAVE_UP}" == migrators[0].end()
    assert 1 == len(queued(engine))
    by_steps.move(1, 2)


@pytest.mark.parametrize("driver", ["the usual", "asyncpg"])
@pytest.mark.usefixtures("second_version")
def test_the_async_template(tmp_path, database, engine, monkeypatch, driver):
    """With Alembic's template for async drivers a migration gives up likewise: each driver's error is understood."""
    url = database.async_url
    if driver == "asyncpg":
        database.require("listen")
        url = url.set(drivername="postgresql+asyncpg")
    pytest.importorskip(url.get_driver_name(), reason=f"no {url.get_driver_name()}")
    monkeypatch.setenv("APP_DATABASE_URL", url.render_as_string(hide_password=False))
    monkeypatch.chdir(tmp_path)
    alembic.command.init(Config("alembic.ini"), "migrations", template="async")
    in_env("config = context.config\n", f"config = context.config\n{ENV_URL}")
    in_env("fileConfig(config.config_file_name)", "pass")
    steps = Project(engine, {2: write()})
    be_impatient(steps, monkeypatch, database)
    steps.move(0, 2)
    with long_transaction(database, default_tables.job), pytest.raises(CommandError, match="this migration gave up"):
        steps.move(2, 0)
    steps.move(2, 0)

    assert (0, None) == (steps.current(), steps.catalogue())


@contextmanager
def producer(engine: sa.Engine) -> Iterator[list[Any]]:
    """Enqueue jobs one after the other, meanwhile, and collect their ids."""
    made: list[Any] = []
    errors: list[BaseException] = []
    stop = threading.Event()

    def produce() -> None:
        try:
            while not stop.is_set():
                made.append(add(engine))
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        wait_until(lambda: made or errors)
        yield made
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert [] == errors


def test_jobs_run_meanwhile(project, database, request, claim, work):  # noqa: F811 - the fixture
    """A worker and a producer go on while the tables are upgraded, and downgraded again: each job is archived once."""
    if claim == HELD:
        database.require("row_locks")
    engine = database.create_engine()
    steps = Project(engine, {1: write()})
    steps.move(0, 1)
    ids = {add(engine) for _ in range(20)}
    worker, events = work(lambda _job: None, worker_threads=2)
    worker.start()
    request.getfixturevalue("second_version")
    steps.files[2] = write()
    with producer(engine) as made:
        for start, end in [(1, 2), (2, 1), (1, 2)]:
            events.wait_for(JobSucceeded, len(events.of(JobSucceeded)) + 1)
            steps.move(start, end)
            assert end == steps.current()
        events.wait_for(JobSucceeded, len(events.of(JobSucceeded)) + 1)
    ids |= set(made)
    wait_until(lambda: len(archived(engine)) == len(ids) or worker.error)

    assert worker.error is None
    assert [] == queued(engine)
    assert ids == {row.job_id for row in archived(engine)}
    assert {"success"} == {row.status for row in archived(engine)}
