"""`proletarian-sa worker` with an application that has an async engine: the same command, and what is different."""

import signal

import pytest

from proletarian_sa import QueueWorker, create_all
from proletarian_sa.factory import WrongTargetError, load
from tests.command import Command
from tests.observing import add
from tests.queue_contents import archived, queued

APP = "tests.programs.cli_async_app"


@pytest.fixture(params=["sqlite"])
def database_kind(request):
    """Run on the database that is always there: which driver it is makes no difference to the command."""
    return request.param


@pytest.fixture
def environment(database):
    """Tell the application where its database is."""
    return {"APP_URL": database.url_text.replace("sqlite", "sqlite+aiosqlite", 1)}


@pytest.mark.parametrize(("number", "factory"), [(signal.SIGTERM, "make_worker"), (signal.SIGINT, "make_on_loop")])
def test_the_first_signal_lets_running_jobs_finish(queue_engine, environment, number, factory):
    """SIGTERM and SIGINT, a plain factory and an `async def` one: the running job is recorded, no other begins; exit code 0."""
    job_id = add(queue_engine, "wait")
    with Command(f"{APP}:{factory}", **environment) as command:
        command.wait_for("begun")
        command.process.send_signal(number)
        command.wait_for("worker stopping: 1 job is running")
        later = add(queue_engine, "tell", "never")
        command.say("go on")
        assert 0 == command.code(), command.output

    assert "ended" in command.output
    assert [(job_id, "success")] == [(row.job_id, row.status) for row in archived(queue_engine)]
    assert [(later, 0)] == [(row.job_id, row.attempts) for row in queued(queue_engine)]
    assert [] == [line for line in command.output if "Traceback" in line or "Exception ignored" in line]


def test_the_second_signal_ends_the_process_at_once(queue_engine, environment):
    """With code 128 + n; the job that ran stays claimed and is run again after its lease."""
    add(queue_engine, "wait")
    with Command(f"{APP}:make_worker", **environment) as command:
        command.wait_for("begun")
        command.process.terminate()
        command.wait_for("worker stopping")
        command.process.terminate()
        assert 128 + signal.SIGTERM == command.code(), command.output

    assert [1] == [row.attempts for row in queued(queue_engine) if row.claimed_by]


def test_an_async_factory_and_options(engine, environment):
    """`--queue`, `--concurrency`, `--wait-for-tables`; handlers run on the loop in which an `async def` factory was run."""
    options = ("--queue", "mail", "--queue", "default", "--concurrency", "7", "--wait-for-tables")
    with Command(f"{APP}:make_on_loop", *options, **environment) as command:
        command.wait_for("waiting for the tables: TablesMissing: ")
        create_all(engine)
        add(engine, "same loop", queue="mail")
        command.wait_for("worker started: queues 'mail', 'default', 7 ")
        command.wait_for("the factory's loop: True")
        command.process.terminate()
        assert 0 == command.code(), command.output


def test_a_signal_during_the_start_is_a_clean_stop(engine, environment):
    """A signal while it waits for the tables ends the wait, with code 0."""
    with Command(f"{APP}:make_worker", "--wait-for-tables", **environment) as command:
        command.wait_for("waiting for the tables: TablesMissing: ")
        command.process.terminate()
        assert 0 == command.code(), command.output


def test_jobs_that_are_cut_off_are_told(queue_engine, environment):
    """A handler that does not end when it is cancelled is named, is not waited for, and the exit code is 3."""
    job_id = add(queue_engine, "deaf")
    with Command(f"{APP}:make_worker", APP_STOP_TIMEOUT="0.3", **environment) as command:
        command.wait_for("begun")
        command.process.terminate()
        assert 3 == command.code(), command.output

    assert any(line.startswith(f"cut off: RunningJob({job_id}, 'deaf', ") for line in command.output)
    assert "cancelled" in command.output
    assert 1 == len(queued(queue_engine))


def test_missing_tables(engine, environment):
    """Without tables the command ends with code 1 and says what to type, without a traceback."""
    with Command(f"{APP}:make_worker", **environment) as command:
        assert 1 == command.code()

    assert "proletarian-sa worker: TablesMissing: There is no table " in command.output[-1]
    assert "Traceback" not in "".join(command.output)


WRONG = {
    (f"{APP}:make_worker", "--threads", "4"): "--threads is for a QueueWorker; this is an AsyncQueueWorker: --concurrency 4",
    ("tests.programs.cli_app:make_worker", "--concurrency", "4"): (
        "--concurrency is for an AsyncQueueWorker; this is a QueueWorker: --threads 4"
    ),
    (f"{APP}:make_nothing",): (
        f"{APP}:make_nothing must be a QueueWorker or an AsyncQueueWorker, or a function that returns one; this is None."
    ),
}


def test_what_does_not_fit_is_explained(environment, database):
    """An option that the worker does not have, and an `async def` factory that returns none: code 2, and what to type."""
    urls = {True: environment["APP_URL"], False: database.url_text}
    commands = {arguments: Command(*arguments, APP_URL=urls[arguments[0].startswith(APP)]) for arguments in WRONG}
    for arguments, command in commands.items():
        with command:
            assert 2 == command.code(), command.output
            assert WRONG[arguments] in " ".join(command.output)
            assert "Traceback" not in "".join(command.output)


def test_processes_of_handlers_need_a_plain_factory():
    """Where nothing can run a coroutine, in the processes of a QueueWorker, an `async def` factory is refused."""
    message = f"{APP}:make_nothing is `async def`. Name a QueueWorker, or a plain function that returns one."
    with pytest.raises(WrongTargetError, match=message):
        load(f"{APP}:make_nothing", QueueWorker, "a QueueWorker")
