"""A worker with `install_signal_handlers` in a process of its own: which signal does what, whatever the main thread does.

The same whatever the database.
"""

import os
import signal
import sys

import pytest

from proletarian_sa import drop_all
from tests.command import Command, can_be_process_1, only_child
from tests.observing import add
from tests.queue_contents import archived, queued

STARTED = "WorkerStarted"
STOPPING = "WorkerStopping"
STOPPED = "WorkerStopped"
BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


class Program(Command):
    program = (sys.executable, "-m", "tests.programs.signals_app")


@pytest.fixture(params=["sqlite"])
def database_kind(request):
    """Run on the database that is always there."""
    return request.param


@pytest.fixture
def environment(database, queue_engine):
    """Tell the application where its database is."""
    return {"APP_URL": database.url_text}


def statuses(engine):
    """Return how the jobs of the archive ended."""
    return [row.status for row in archived(engine)]


def facts(engine):
    """Return attempts of the queued jobs, and whether somebody owns them."""
    return [(row.attempts, row.claimed_by is not None) for row in queued(engine)]


@BOTH
def test_while_the_main_thread_does_something_else(queue_engine, environment, number):
    """The first signal lets the running job finish; then the process ends by it, as it would have without a worker."""
    add(queue_engine, "wait")
    with Program("start", **environment) as program:
        program.wait_for("begun")
        program.process.send_signal(number)
        program.wait_for(STOPPING)
        program.say("go on")
        assert -number == program.code(), program.output

    assert ["success"] == statuses(queue_engine)
    assert program.output.index("ended") < program.output.index("WorkerStopped worker")


@BOTH
def test_while_the_main_thread_waits_in_run(queue_engine, environment, number):
    """The first signal lets the running job finish, and `run` returns: no KeyboardInterrupt, the program has its own last word."""
    add(queue_engine, "wait")
    with Program("run", **environment) as program:
        program.wait_for("begun")
        program.process.send_signal(number)
        program.wait_for(STOPPING)
        program.say("go on")
        assert 5 == program.code(), program.output

    assert "run has returned" == program.output[-1]
    assert ["success"] == statuses(queue_engine)


@pytest.mark.parametrize(("way", "number"), [("start", signal.SIGTERM), ("inside", signal.SIGINT)])
def test_an_idle_worker(environment, way, number):
    """Where no job is running it stops at once, in the same order: the worker first, then what the signal does."""
    with Program(way, **environment) as program:
        program.wait_for(STARTED)
        program.process.send_signal(number)
        program.wait_for(STOPPED)
        assert -number == program.code(), program.output


@pytest.mark.parametrize(("way", "number"), [("start", signal.SIGTERM), ("run", signal.SIGINT), ("inside", signal.SIGINT)])
def test_the_second_signal_ends_the_process_at_once(queue_engine, environment, way, number):
    """Although a job is running, and whatever the main thread does; the job stays owned until its lease lapses."""
    add(queue_engine, "deaf")
    with Program(way, **environment) as program:
        program.wait_for("begun")
        program.process.send_signal(number)
        program.wait_for(STOPPING)
        program.process.send_signal(number)
        assert -number == program.code(), program.output

    assert [(1, True)] == facts(queue_engine)
    assert [] == statuses(queue_engine)


def test_another_signal_is_a_second_one_too(queue_engine, environment):
    """SIGTERM after Ctrl-C, for whoever has lost patience: the process ends by it."""
    add(queue_engine, "deaf")
    with Program("run", **environment) as program:
        program.wait_for("begun")
        program.process.send_signal(signal.SIGINT)
        program.wait_for(STOPPING)
        program.process.send_signal(signal.SIGTERM)
        assert -signal.SIGTERM == program.code(), program.output


@pytest.mark.parametrize(("way", "code"), [("start", -signal.SIGTERM), ("run", 5)])
def test_a_job_that_outlives_the_stop_timeout(queue_engine, environment, way, code):
    """When `stop_timeout` is over, the signal has its effect, or `run` returns, with the job still owned."""
    add(queue_engine, "deaf")
    with Program(way, APP_STOP_TIMEOUT="0.1", **environment) as program:
        program.wait_for("begun")
        program.process.send_signal(signal.SIGTERM)
        assert code == program.code(), program.output

    assert [(1, True)] == facts(queue_engine)


def test_a_job_that_is_interrupted(queue_engine, environment):
    """It is put back before the process ends, with its attempt."""
    add(queue_engine, "raises")
    with Program("start", **environment) as program:
        program.wait_for("begun")
        program.process.terminate()
        assert -signal.SIGTERM == program.code(), program.output

    assert [(0, False)] == facts(queue_engine)


def test_during_the_database_back_off(queue_engine, environment):
    """A worker that waits for its database obeys as well."""
    with Program("run", **environment) as program:
        program.wait_for(STARTED)
        drop_all(queue_engine)
        program.wait_for("TransientErrorMet 3")
        program.process.terminate()
        assert 5 == program.code(), program.output


def test_two_workers(queue_engine, environment):
    """One signal stops both, and the process ends by it when the last of them has stopped, once."""
    add(queue_engine, "wait")
    add(queue_engine, "wait")
    with Program("two", **environment) as program:
        program.wait_for("begun")
        program.wait_for("begun")
        program.process.send_signal(signal.SIGINT)
        program.wait_for(STOPPING)
        program.wait_for(STOPPING)
        program.say("go on")
        program.wait_for(STOPPED)
        program.say("go on")
        assert -signal.SIGINT == program.code(), program.output

    assert ["success", "success"] == statuses(queue_engine)
    assert 1 == program.output.count("KeyboardInterrupt")


def test_the_applications_own_handler(queue_engine, environment):
    """It is called with the same arguments, once for each signal, and ends the program as it likes; then it is put back."""
    add(queue_engine, "wait")
    with Program("chained", **environment) as program:
        program.wait_for("begun")
        program.process.terminate()
        program.wait_for(STOPPING)
        program.process.terminate()
        program.say("go on")
        assert 6 == program.code(), program.output

    assert ["success"] == statuses(queue_engine)
    assert 2 == program.output.count("own handler 15 True")
    assert ["joined True", "put back True"] == program.output[-2:]


def test_a_handler_that_ends_the_program(queue_engine, environment):
    """`sys.exit` in the application's own handler: the `with` statement still waits for the job."""
    add(queue_engine, "wait")
    with Program("exiting_from_handler", **environment) as program:
        program.wait_for("begun")
        program.process.terminate()
        program.wait_for(STOPPING)
        program.say("go on")
        assert 8 == program.code(), program.output

    assert ["success"] == statuses(queue_engine)


def test_what_is_ignored_stays_ignored(queue_engine, environment):
    """Under nohup and its like, SIGINT is none of the worker's business; SIGTERM still is."""
    with Program("ignoring", **environment) as program:
        program.wait_for(STARTED)
        program.process.send_signal(signal.SIGINT)
        add(queue_engine, "tell", "still here")
        program.wait_for("default still here")
        program.process.terminate()
        assert -signal.SIGTERM == program.code(), program.output

    assert 1 == len([line for line in program.output if STOPPING in line])


def test_sys_exit_in_the_main_thread(queue_engine, environment):
    """`:install-jvm-shutdown-hook?`: a program that ends by itself waits for the running job, and keeps its exit code."""
    add(queue_engine, "raises")
    with Program("exiting", **environment) as program:
        program.wait_for("begun")
        program.say("exit")
        assert 7 == program.code(), program.output

    assert [(0, False)] == facts(queue_engine)


def test_an_event_loop_with_a_signal_handler(queue_engine, environment):
    """What was added with `loop.add_signal_handler` is called as well, and the loop goes on until it has ended its own work."""
    add(queue_engine, "raises")
    with Program("asyncio_handler", **environment) as program:
        program.wait_for("begun")
        program.process.terminate()
        assert 9 == program.code(), program.output

    assert ["the loop has been told", "joined True"] == [line for line in program.output if line.startswith(("the ", "joined"))]
    assert [(0, False)] == facts(queue_engine)


@BOTH
def test_an_event_loop_without_one(queue_engine, environment, number):
    """Under `asyncio.run` Ctrl-C cancels the main task as ever, SIGTERM ends the process; the worker has stopped before that."""
    add(queue_engine, "raises")
    with Program("asyncio_plain", **environment) as program:
        program.wait_for("begun")
        program.process.send_signal(number)
        assert -number == program.code(), program.output

    assert (number == signal.SIGINT) == ("the task ends" in program.output)
    assert [(0, False)] == facts(queue_engine)


def test_process_1_of_a_container(queue_engine, environment):
    """No signal ends process 1 by itself: it exits with 128 + n, when the worker has stopped."""
    if not can_be_process_1():
        pytest.skip("no PID namespaces")
    add(queue_engine, "raises")
    with Program("start", prefix=["unshare", "--pid", "--fork", "--mount-proc"], **environment) as program:
        program.wait_for("begun")
        os.kill(only_child(program.process.pid), signal.SIGTERM)
        assert 128 + signal.SIGTERM == program.code(), program.output

    assert [(0, False)] == facts(queue_engine)
