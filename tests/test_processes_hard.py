"""`executor="process"` with handlers that do what no handler should, and processes that do not start or end as they should."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import context as contexts
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import QueueWorker, events, processes
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add
from tests.queue_contents import archived, queued
from tests.test_processes import is_alive

APP = "tests.programs.hostile_app"
pytestmark = [
    pytest.mark.parametrize("database_kind", ["sqlite"]),  # what processes do is the same whatever the database
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"),
]


@pytest.fixture
def begin(queue_engine: sa.Engine, database: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return what starts a worker with hostile handlers, and the recorder of its events; all are stopped after the test."""
    monkeypatch.setenv("APP_DATABASE_URL", database.url_text)
    from tests.programs import hostile_app  # noqa: PLC0415 - it reads the environment

    made: list[QueueWorker] = []

    def started(factory: str = "make_worker", **options: Any) -> tuple[QueueWorker, Recorder]:
        seen = Recorder()
        settings = {"polling_interval": 0.02, "executor": "process", "factory": f"{APP}:{factory}", "on_event": seen}
        made.append(QueueWorker(queue_engine, hostile_app.jobs, **(settings | options)))
        made[-1].start()
        return made[-1], seen

    yield started
    for worker in made:
        worker.stop(PATIENCE)


LOST = "proletarian_sa.errors.HandlerProcessLost: The process that ran the handler ended "
ENDS = {
    "leaving": ("failure", f"{APP}.LeavingError: leaving"),
    "text": ("failure", f"{APP}.TextError: text"),
    "slow": ("failure", f"{APP}.SlowError: slow"),
    "exit": ("failure", "SystemExit: 3"),
    "ctrl-c": ("failure", "KeyboardInterrupt"),
    "huge": ("failure", "x" * 1000),
    "length": ("success", None),
    "end a program": ("success", None),
    "end a fork": ("success", None),
    "elsewhere": ("success", None),
    "leave a thread": ("success", None),
    "close what it prints to": ("success", None),
    "close all": ("failure", f"{LOST}with exit code 1."),
    "SIGKILL": ("failure", f"{LOST}by SIGKILL."),
    "leave a child": ("failure", f"{LOST}with exit code 5."),
}


def test_each_handler_has_its_own_outcome(queue_engine, begin, tmp_path):
    """Errors that cannot travel, huge ones, exits, closed files, children and threads left behind: one attempt of one job each."""
    child, payloads = tmp_path / "child", {"length": {"text": "x" * 4_000_000, "length": 4_000_000}}
    payloads["leave a child"] = str(child)
    ids = {add(queue_engine, job_type, payloads.get(job_type)): job_type for job_type in ENDS}
    try:
        _, seen = begin()
        wait_until(lambda: len(archived(queue_engine)) == len(ENDS), timeout=2 * PATIENCE)
    finally:
        if child.exists():
            os.kill(int(child.read_text()), signal.SIGKILL)
    rows = {ids[row.job_id]: row for row in archived(queue_engine)}
    told = {ids[row.job_id]: last_line(row.last_error) for row in rows.values()}

    assert ENDS == {job_type: (row.status, told[job_type]) for job_type, row in rows.items()}
    assert {1} == {row.attempts for row in rows.values()}
    assert {None} == {row.crashes for row in rows.values()}
    assert [] == seen.of(events.OutcomeNotRecorded) + seen.of(events.JobLeaseLost)


def last_line(error: str | None) -> str | None:
    """Return the end of an error's text."""
    return None if error is None else error.splitlines()[-1][-1000:]


def test_a_stop_while_a_process_starts(queue_engine, begin, tmp_path, monkeypatch):
    """A worker that is told to stop does not wait for a process that is on its way, and the job that waits for it is put back."""
    sign = tmp_path / "sign"
    monkeypatch.setenv("APP_SIGN", str(sign))
    worker, seen = begin("make_slow_worker")
    sign.touch()
    killed, waits = add(queue_engine, "SIGKILL"), add(queue_engine, "pid", str(tmp_path / "pids"))
    seen.wait_for(events.JobFailed, job_id=killed)
    wait_until(sign.with_suffix(".waits").exists, timeout=PATIENCE)
    wait_until(lambda: [row for row in queued(queue_engine) if row.claimed_by], timeout=PATIENCE)
    began = time.monotonic()

    assert [] == worker.stop(PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    assert [(waits, 0, None)] == [(row.job_id, row.attempts, row.claimed_by) for row in queued(queue_engine)]


@pytest.mark.parametrize("taken_by", ["the main thread", "another thread"])
def test_ctrl_c_while_a_process_starts(begin, monkeypatch, taken_by):
    """Nothing of a worker that is cut off at its start lives on, however little of it was known when the signal came."""
    started: list[int] = []
    start = contexts.SpawnProcess.start

    def interrupted(self: Any) -> None:
        start(self)
        started.append(self.pid)
        if taken_by == "another thread":  # which does not hold it
            thread = threading.Thread(target=take_it)
            thread.start()
            thread.join(PATIENCE)
        else:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # waits, as one that arrives meanwhile

    def take_it() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    monkeypatch.setattr(contexts.SpawnProcess, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        begin()

    (pid,) = started
    assert not is_alive(pid)


def test_a_process_that_cannot_be_started(queue_engine, begin, tmp_path, monkeypatch):
    """It is told why, its job waits and loses no attempt; when the reason is gone, everything goes on."""
    sign, pids = tmp_path / "sign", tmp_path / "pids"
    monkeypatch.setenv("APP_SIGN", str(sign))
    _, seen = begin("make_failing_worker")
    sign.touch()
    add(queue_engine, "SIGKILL")
    seen.wait_for(events.JobFailed)
    waits = add(queue_engine, "pid", str(pids))
    met = seen.wait_for(events.TransientErrorMet)
    sign.unlink()
    seen.wait_for(events.JobSucceeded, job_id=waits)
    recovered = seen.wait_for(events.Recovered)

    assert "starting a process of handlers" == met.activity == recovered.activity
    assert ("LookupError", "the settings are gone") == (type(met.exception).__name__, str(met.exception.args[0]))
    assert {1} == {row.attempts for row in archived(queue_engine)}


def test_the_system_has_no_process_left(queue_engine, begin, tmp_path, monkeypatch):
    """A refusal of the system's is no end: it is tried again at the next job."""
    from multiprocessing import util  # noqa: PLC0415 - for this test alone

    refuse, spawn = threading.Event(), util.spawnv_passfds

    def refusing(*arguments: Any) -> Any:
        if refuse.is_set():
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return spawn(*arguments)

    monkeypatch.setattr(util, "spawnv_passfds", refusing)
    _, seen = begin()
    refuse.set()
    add(queue_engine, "SIGKILL")
    seen.wait_for(events.JobFailed)
    waits = add(queue_engine, "pid", str(tmp_path / "pids"))
    met = seen.wait_for(events.TransientErrorMet)
    refuse.clear()
    seen.wait_for(events.JobSucceeded, job_id=waits)

    assert isinstance(met.exception, BlockingIOError)


def test_start_and_stop_again(queue_engine, begin, tmp_path):
    """Each start has a process of its own, and none stays."""
    pids = tmp_path / "pids"
    worker, seen = begin()
    for count in (1, 2):
        add(queue_engine, "pid", str(pids))
        seen.wait_for(events.JobSucceeded, count=count)
        assert [] == worker.stop(PATIENCE)
        if count == 1:
            worker.start()
    one, other = map(int, pids.read_text().split())

    assert one != other
    assert not is_alive(one)
    assert not is_alive(other)


def test_a_process_that_stands_still(queue_engine, begin, tmp_path, monkeypatch):
    """A stopped process, which takes no long payload any more, is found out and replaced: a failed attempt of that one job."""
    monkeypatch.setattr(processes, "LONGEST_TALK", 1)
    monkeypatch.setattr(processes, "LONGEST_END", 0.1)
    pids = tmp_path / "pids"
    add(queue_engine, "pid", str(pids))
    _, seen = begin()
    seen.wait_for(events.JobSucceeded)
    os.kill(int(pids.read_text().split()[0]), signal.SIGSTOP)
    stuck = add(queue_engine, "length", {"text": "x" * 2_000_000, "length": 2_000_000})
    failed = seen.wait_for(events.JobAttemptFailed, job_id=stuck)
    add(queue_engine, "length", {"text": "x", "length": 1})
    seen.wait_for(events.JobSucceeded, count=2)

    assert "The process that runs the handler stands still." == str(failed.exception)


def test_files_are_closed_with_their_process(queue_engine, begin):
    """Processes that end and begin anew leave no open file behind in the worker's process."""
    add(queue_engine, "SIGKILL")
    _, seen = begin()
    seen.wait_for(events.JobFailed)
    before = channels()
    for _ in range(2):
        add(queue_engine, "SIGKILL")
    seen.wait_for(events.JobFailed, count=3)

    wait_until(lambda: channels() <= before, timeout=PATIENCE)


def channels() -> int:
    """Return how many pipes and sockets this process has."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of this very look
            found += str(link.readlink()).startswith(("pipe:", "socket:"))
    return found


def test_a_fork_of_the_worker_ends(queue_engine, begin, tmp_path):
    """The processes of handlers are none of a forked child's: what it does at its exit leaves them alone."""
    pids = tmp_path / "pids"
    add(queue_engine, "pid", str(pids))
    _, seen = begin()
    seen.wait_for(events.JobSucceeded)
    child = os.fork()
    if child == 0:
        processes._kill_all()
        os._exit(0)
    os.waitpid(child, 0)
    add(queue_engine, "pid", str(pids))
    seen.wait_for(events.JobSucceeded, count=2)
    one, other = pids.read_text().split()

    assert one == other


def test_a_heartbeat_after_the_commit_of_a_process(queue_engine, begin, tmp_path, monkeypatch):
    """A job that its process has archived, and of which the worker has not heard yet, is nobody else's."""
    sign, beats = tmp_path / "sign", []
    monkeypatch.setenv("APP_SIGN", str(sign))
    sa.event.listen(queue_engine, "before_cursor_execute", lambda *_: beats.append(threading.current_thread().name))
    _, seen = begin(lease=0.5)
    job_id = add(queue_engine, "speaks after its commit")
    wait_until(sign.exists, timeout=PATIENCE)
    assert [job_id] == [row.job_id for row in archived(queue_engine)]
    beats.clear()
    wait_until(lambda: sum("heartbeat" in name for name in beats) >= 4, timeout=PATIENCE)
    sign.unlink()

    seen.wait_for(events.JobSucceeded, job_id=job_id)
    assert [] == seen.of(events.JobLeaseLost)
