"""`proletarian-sa worker`: from an app factory, stopped by signals, on every database."""

import signal

import pytest
import sqlalchemy as sa

from proletarian_sa import create_all, default_tables, drop_all
from tests.command import APP, Command
from tests.observing import add
from tests.queue_contents import archived, queued

pytestmark = pytest.mark.long


@pytest.fixture
def environment(database):
    """Tell the application where its database is."""
    return {"APP_URL": database.url_text}


def test_threads_take_short_turns(queue_engine, environment):
    """The process is the worker's: its threads change ten times as often as Python's do by themselves."""
    with Command(f"{APP}:make_telling_worker", **environment) as command:
        assert "a turn takes 0.0005" == command.wait_for("a turn")
        command.process.terminate()
        assert 0 == command.code(), command.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_running_jobs_finish(queue_engine, environment, number):
    """SIGTERM and SIGINT: the running job is finished and recorded, no other begins, and the exit code is 0."""
    job_id = add(queue_engine, "wait")
    with Command(f"{APP}:make_worker", **environment) as command:
        command.wait_for("begun")
        command.process.send_signal(number)
        command.wait_for("worker stopping: 1 job is running")
        later = add(queue_engine, "tell", "never")
        command.say("go on")
        assert 0 == command.code(), command.output

    assert "ended" in command.output
    assert [(job_id, "success")] == [(row.job_id, row.status) for row in archived(queue_engine)]
    assert [(later, 0)] == [(row.job_id, row.attempts) for row in queued(queue_engine)]


def test_signals_that_the_system_gives_to_other_threads(queue_engine, environment):
    """The main thread sees them all the same, the second while it waits for running jobs: the command ends at once."""
    add(queue_engine, "aside")
    with Command(f"{APP}:make_worker", **environment) as command:
        assert 128 + signal.SIGTERM == command.code(), command.output

    assert [1] == [row.attempts for row in queued(queue_engine)]


def test_an_idle_worker_stops_at_once_and_an_interruptible_job_gives_back(queue_engine, environment):
    """SIGTERM and SIGINT: handlers are asked to stop, so no long job is waited for; the worker may be an object of the module."""
    add(queue_engine, "interruptible")
    with Command(f"{APP}:worker", "--threads", "2", **environment) as command:
        command.wait_for("worker started: queue 'default', 2 threads")
        command.wait_for("begun")
        command.process.terminate()
        assert 0 == command.code(), command.output

    assert "asked to stop: True" in command.output
    assert [(0, None, None)] == [(row.attempts, row.claimed_by, row.crashes) for row in queued(queue_engine)]


def test_a_worker_that_is_started_before_its_migration(engine, environment):
    """Tables not there yet: with `--wait-for-tables` it waits, naming them, and begins once they are there; a signal ends that."""
    with Command(f"{APP}:make_worker", "--wait-for-tables", **environment) as command:
        command.wait_for("waiting for the tables: TablesMissing: ")
        create_all(engine)
        add(engine, "tell", "hello")
        command.wait_for("default hello")
        command.process.terminate()
        assert 0 == command.code(), command.output
    drop_all(engine)
    with Command(f"{APP}:make_worker", "--wait-for-tables", **environment) as command:
        command.wait_for("waiting for the tables: TablesMissing: ")
        command.process.terminate()
        assert 0 == command.code(), command.output


def test_queue_and_threads_replace_the_workers_own(queue_engine, environment):
    """`--queue` serves another queue than the factory's worker would."""
    add(queue_engine, "tell", "default's")
    add(queue_engine, "tell", "hello", queue="mail")
    with Command(f"{APP}:Settings.make_worker", "--queue", "mail", "--threads", "3", **environment) as command:
        command.wait_for("worker started: queue 'mail', 3 threads")
        command.wait_for("mail hello")
        command.process.terminate()
        assert 0 == command.code(), command.output

    assert ["default"] == [row.queue for row in queued(queue_engine)]


def test_missing_tables(engine, environment):
    """Without tables the command ends with code 1 and says what to type, without a traceback."""
    with Command(f"{APP}:make_worker", **environment) as command:
        assert 1 == command.code()

    assert "proletarian-sa worker: TablesMissing: There is no table " in command.output[-1]
    assert "create_all(engine)" in command.output[-1]
    assert "Traceback" not in "".join(command.output)


def test_a_fatal_error_has_its_exit_code(queue_engine, environment):
    """An error that waiting does not mend ends the command with code 1, for the supervisor to see."""
    with Command(f"{APP}:make_worker", **environment) as command:
        command.wait_for("worker started")
        with queue_engine.begin() as connection:
            preparer = connection.dialect.identifier_preparer
            name = preparer.format_table(default_tables.job, use_schema=connection.dialect.name == "postgresql")
            connection.execute(sa.text(f"ALTER TABLE {name} RENAME COLUMN lease_until TO renamed"))
        assert 1 == command.code(), command.output

    assert any("worker failed: " in line and "lease_until" in line for line in command.output)
