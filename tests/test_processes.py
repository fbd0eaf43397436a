"""`executor="process"`: handlers in processes of their own, of which each end costs one attempt of one job."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import HandlerProcessLost, JobTimeout, QueueWorker, RetryStrategy, enqueue_many, events
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add, change
from tests.queue_contents import archived, queued

pytestmark = pytest.mark.long

FACTORY = "tests.programs.process_app:make_worker"


@pytest.fixture
def effects(queue_engine: sa.Engine) -> Callable[[], list[int]]:
    """Make the table of effects, and return what reads it."""
    table = sa.Table("effects", sa.MetaData(), sa.Column("number", sa.Integer))
    table.create(queue_engine)

    def read() -> list[int]:
        with queue_engine.connect() as connection:
            return list(connection.scalars(sa.select(table.c.number)))

    return read


@pytest.fixture
def begin(queue_engine: sa.Engine, database: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return what starts a worker with processes, and the recorder of its events; all are stopped after the test."""
    monkeypatch.setenv("APP_DATABASE_URL", database.url_text)
    from tests.programs import process_app  # noqa: PLC0415 - it reads the environment

    made: list[QueueWorker] = []

    def started(**options: Any) -> tuple[QueueWorker, Recorder]:
        seen = Recorder()
        settings = {"polling_interval": 0.02, "executor": "process", "factory": FACTORY, "on_event": seen}
        made.append(QueueWorker(queue_engine, process_app.jobs, **(settings | options)))
        made[-1].start()
        return made[-1], seen

    yield started
    for worker in made:
        worker.stop(PATIENCE)


def is_alive(pid: int) -> bool:
    """Return whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def begun(path: Path) -> int:
    """Return which process has said that it has begun."""
    return int(wait_until(lambda: path.exists() and path.read_text(), timeout=PATIENCE))


def test_jobs_run_elsewhere_and_in_parallel(queue_engine, begin, effects):
    """Two threads have two processes, neither of them this one; what handlers write stays; the processes end with the worker."""
    with queue_engine.begin() as connection:
        enqueue_many(connection, [{"job_type": "work"}] * 40)
    worker, seen = begin(worker_threads=2)
    wait_until(lambda: len(archived(queue_engine)) == 40, timeout=PATIENCE)
    assert [] == worker.stop(PATIENCE)

    pids = set(effects())
    assert 40 == len(effects())
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    assert not any(is_alive(pid) for pid in pids)
    assert 40 == len(seen.of(events.JobStarted)) == len(seen.of(events.JobSucceeded))


def test_errors_travel(queue_engine, begin):
    """The retry function is asked where the error was raised; the error, or what looks like it, is told and recorded here."""
    failing, odd = add(queue_engine, "fail"), add(queue_engine, "odd")
    _, seen = begin()
    wait_until(lambda: len(archived(queue_engine)) == 2, timeout=PATIENCE)

    last = {row.job_id: (row.status, row.attempts, row.last_error.splitlines()[-1]) for row in archived(queue_engine)}
    told = [event.exception for event in seen.of(events.JobAttemptFailed, job_id=failing)]
    assert ("failure", 2) == last[failing][:2]
    assert ("failure", 1, "tests.programs.process_app.OddError: one and other") == last[odd]
    assert [ValueError, ValueError] == [type(error) for error in told]
    assert 'raise ValueError("no", 0)' in str(told[0].__cause__)


@pytest.mark.parametrize(
    "ending",
    [
        ("exit", 2, "proletarian_sa.errors.HandlerProcessLost: The process that ran the handler ended with exit code 7."),
        ("crash", 1, "proletarian_sa.errors.HandlerProcessLost: The process that ran the handler ended by SIGSEGV."),
        (
            "endless",
            1,
            "proletarian_sa.errors.JobTimeout: The handler ran for longer than its timeout of 0.3 s, so its process is killed.",
        ),
    ],
)
def test_what_ends_a_process_costs_one_attempt_of_one_job(queue_engine, begin, effects, ending):
    """A handler that ends its process, or is killed for its timeout, has failed once; its writes are gone, and others run."""
    job_type, attempts, said = ending
    killer = add(queue_engine, job_type)
    others = {add(queue_engine, "work") for _ in range(5)}
    worker, seen = begin()
    wait_until(lambda: len(archived(queue_engine)) == 6, timeout=PATIENCE)

    rows = {row.job_id: row for row in archived(queue_engine)}
    assert ("failure", attempts, said) == (rows[killer].status, rows[killer].attempts, rows[killer].last_error.splitlines()[-1])
    assert {("success", 1, None)} == {(rows[other].status, rows[other].attempts, rows[other].crashes) for other in others}
    assert 5 == len(effects())
    assert 0 not in effects()
    assert worker.is_running
    assert {HandlerProcessLost, JobTimeout} >= {type(event.exception) for event in seen.of(events.JobAttemptFailed)}


def test_a_process_that_ends_after_its_commit(queue_engine, begin, effects):
    """The commit of `job.session` was the job's completion: it is found, and nothing is repeated."""
    done = add(queue_engine, "committed")
    _, seen = begin(retry=RetryStrategy(retries=3, delays=[0]))
    seen.wait_for(events.JobSucceeded)

    assert [(done, "success", 1)] == [(row.job_id, row.status, row.attempts) for row in archived(queue_engine)]
    assert [1] == effects()
    assert [] == seen.of(events.JobAttemptFailed)


def test_a_stop_asks_the_handler(queue_engine, begin, tmp_path):
    """`job.wait` returns in the other process as soon as the worker is to stop, and the attempt is given back."""
    sign = tmp_path / "sign"
    waiting = add(queue_engine, "wait", str(sign))
    worker, _ = begin()
    pid = begun(sign)
    assert [] == worker.stop(PATIENCE)

    assert [(waiting, 0, None)] == [(row.job_id, row.attempts, row.claimed_by) for row in queued(queue_engine)]
    assert not is_alive(pid)


def test_a_lost_lease_kills_the_handler(queue_engine, begin, tmp_path):
    """A job that is somebody else's is run no further: its process is killed, and another takes the next job."""
    sign = tmp_path / "sign"
    lost = add(queue_engine, "wait", str(sign))
    _, seen = begin(lease=0.6)
    pid = begun(sign)
    change(queue_engine, lost, claimed_by="somebody else", lease_until=None)
    seen.wait_for(events.JobLeaseLost, handler_finished=True)
    sign.unlink()
    assert not is_alive(pid)

    add(queue_engine, "wait", str(sign))
    assert pid != begun(sign)


def test_the_worker_keeps_the_lease_of_a_deaf_handler(queue_engine, begin, tmp_path):
    """C code that holds the interpreter for several leases costs nothing: the worker's process sends the heartbeats."""
    done = add(queue_engine, "deaf", str(tmp_path / "sign"))
    _, seen = begin(lease=0.5)
    seen.wait_for(events.JobSucceeded, job_id=done)

    assert [] == seen.of(events.JobLeaseLost)
    assert [1] == [row.attempts for row in archived(queue_engine)]


def test_signals_are_the_workers_business(queue_engine, begin):
    """SIGINT and SIGTERM, which a terminal and a supervisor send to all processes, do not end a handler."""
    add(queue_engine, "signals")
    _, seen = begin()
    seen.wait_for(events.JobSucceeded)

    assert [] == seen.of(events.JobAttemptFailed)


def test_a_process_that_is_killed_while_it_has_nothing_to_do(queue_engine, begin, effects):
    """It is replaced before the next job, which loses nothing."""
    add(queue_engine, "work")
    _, seen = begin()
    seen.wait_for(events.JobSucceeded)
    (pid,) = effects()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    add(queue_engine, "work")
    seen.wait_for(events.JobSucceeded, count=2)

    assert [1, 1] == [row.attempts for row in archived(queue_engine)]
    assert pid != effects()[1]


REFUSED = {
    "executor must be 'thread' or 'process', not 'fiber'": {"executor": "fiber"},
    "executor='process' needs claim='leased'": {"claim": "held"},
    "give factory='myapp:make_worker'": {"factory": None},
    "factory must be a string, MODULE:NAME, not <function": {"factory": lambda: None},
    "'nonsense' is not of the form MODULE:NAME": {"factory": "nonsense"},
    "has no 'nothing'": {"factory": "tests.programs.process_app:nothing"},
    "no settings here": {"factory": "tests.programs.process_app:broken"},
}


@pytest.mark.parametrize("database_kind", ["sqlite"])
@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_started(database_kind, begin, message):
    """Wrong options, and a factory that fails in the other process, are errors of the start, and leave nothing running."""
    with pytest.raises((TypeError, ValueError, LookupError), match=message):
        begin(**REFUSED[message])
