"""`proletarian-sa worker` as a process: wrong targets, second signals, jobs cut off, process 1. The same whatever the database."""

import os
import signal
from contextlib import ExitStack

import pytest

from tests.command import APP, Command, can_be_process_1, namespace_pid, only_child
from tests.observing import add
from tests.queue_contents import archived, queued


@pytest.fixture(params=["sqlite"])
def database_kind(request):
    """Run on the database that is always there."""
    return request.param


@pytest.fixture
def environment(database):
    """Tell the application where its database is."""
    return {"APP_URL": database.url_text}


WORKER = "a QueueWorker or an AsyncQueueWorker"
WRONG = {
    "cli_app": "'cli_app' is not of the form MODULE:NAME, for example: proletarian-sa worker myapp:make_worker",
    ":make_worker": "':make_worker' is not of the form MODULE:NAME",
    f"{APP}:": f"'{APP}:' is not of the form MODULE:NAME",
    "no_such_module:make_worker": "There is no module 'no_such_module' in ",
    "tests.programs.no_such:make_worker": "There is no module 'tests.programs.no_such' in ",
    f"{APP}:no_such": f"'{APP}' has no 'no_such'. Name {WORKER}, or a function that returns one.",
    f"{APP}:number": f"{APP}:number must be {WORKER}, or a function that returns one; this is 7.",
    f"./{APP}:make_worker": f"'./{APP}:make_worker' is not of the form MODULE:NAME",
    f"{APP}:make_queue": f"{APP}:make_queue takes (queue). Name {WORKER}, or a function without arguments.",
    f"{APP}:make_nothing": f"{APP}:make_nothing must be {WORKER}, or a function that returns one; this is None.",
}


def test_wrong_targets_are_explained():
    """A target that names no worker is a wrong command line: code 2, and a message that says what to type."""
    with ExitStack() as stack:
        commands = {target: stack.enter_context(Command(target)) for target in WRONG}
        for target, command in commands.items():
            assert 2 == command.code(), command.output
            assert WRONG[target] in " ".join(command.output)
            assert "Traceback" not in "".join(command.output)


def test_wrong_options_are_explained(queue_engine, environment):
    """A number of threads below 1 is a wrong command line; a queue name that no job can have, an empty one too, is an error."""
    with Command(f"{APP}:make_worker", "--threads", "0", **environment) as command:
        assert 2 == command.code()
        assert any("'--threads'" in line for line in command.output)
    with Command(f"{APP}:make_worker", "--queue", " mail", **environment) as command:
        assert 1 == command.code()
        assert "ValueError: queue ' mail' has white space at an end" in command.output[-1]
    with Command(f"{APP}:make_worker", "--queue", "", **environment) as command:
        assert 1 == command.code()
        assert "ValueError: queue must have 1 to 255 characters; '' has 0." in command.output[-1]


@pytest.mark.parametrize(("factory", "error"), [("fail", "LookupError: no configuration"), ("refuse", "ValueError: a bad setting")])
def test_the_applications_own_error_has_its_traceback(environment, factory, error):
    """What the factory raises is the application's, whatever its type: the traceback is shown."""
    with Command(f"{APP}:{factory}", **environment) as command:
        assert 1 == command.code()

    assert error == command.output[-1]
    assert "Traceback (most recent call last):" in command.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_the_process_at_once(queue_engine, environment, number):
    """SIGTERM and SIGINT: with code 128 + n; the job that ran stays claimed and is run again after its lease."""
    add(queue_engine, "wait")
    with Command(f"{APP}:make_worker", **environment) as command:
        command.wait_for("begun")
        command.process.send_signal(number)
        command.wait_for("worker stopping")
        command.process.send_signal(number)
        assert 128 + number == command.code(), command.output

    (row,) = queued(queue_engine)
    assert 1 == row.attempts
    assert row.claimed_by is not None
    assert [] == archived(queue_engine)


def test_jobs_that_are_cut_off_are_told(queue_engine, environment):
    """Handler outlives the stop timeout: a handler that does not return in time is named, and the exit code is 3."""
    job_id = add(queue_engine, "wait")
    with Command(f"{APP}:make_worker", APP_STOP_TIMEOUT="0.1", **environment) as command:
        command.wait_for("begun")
        command.process.terminate()
        assert 3 == command.code(), command.output

    assert any(line.startswith(f"cut off: RunningJob({job_id}, 'wait', ") for line in command.output)
    assert 1 == len(queued(queue_engine))


def test_a_signal_during_the_start_is_a_clean_stop(queue_engine, environment):
    """A signal that comes while the application is still being set up is not lost: nothing is started, and the code is 0."""
    with Command(f"{APP}:make_slowly", **environment) as command:
        command.wait_for("making")
        command.process.terminate()
        command.say("go on")
        assert 0 == command.code(), command.output

    assert not any("worker started" in line for line in command.output)


def test_logging_goes_to_standard_error_at_info(queue_engine, environment):
    """Without a set-up of the application's own, failed attempts are seen; jobs that succeed are not, unless asked for."""
    for level, expected in (("INFO", False), ("DEBUG", True)):
        add(queue_engine, "tell", level)
        with Command(f"{APP}:make_worker", "--log-level", level, **environment) as command:
            command.wait_for(f"default {level}")
            command.process.terminate()
            assert 0 == command.code()
        assert expected == any("JobSucceeded" in line for line in command.output)


def test_process_1_of_a_container_obeys_signals(queue_engine, environment):
    """PID 1 in a container: as process 1, for which the default action of signals is missing, a worker stops cleanly at SIGTERM."""
    if not can_be_process_1():
        pytest.skip("no PID namespaces")
    job_id = add(queue_engine, "wait")
    with Command(f"{APP}:make_worker", prefix=["unshare", "--pid", "--fork", "--mount-proc"], **environment) as command:
        command.wait_for("begun")
        child = only_child(command.process.pid)
        assert "1" == namespace_pid(child)
        os.kill(child, signal.SIGTERM)
        command.wait_for("worker stopping")
        command.say("go on")
        assert 0 == command.code(), command.output

    assert [(job_id, "success")] == [(row.job_id, row.status) for row in archived(queue_engine)]
