"""A database that restarts under held claims: the worker waits for it and goes on, and every job is done."""

import os
import signal
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from proletarian_sa import QueueWorker, create_all, events
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, add, session_id
from tests.queue_contents import archived, left
from tests.servers import postgresql
from tests.servers.launch import launch


@pytest.fixture
def private_engine() -> Iterator[sa.Engine]:
    """Return an engine on a server of this test's own, whose processes are this machine's."""
    if not postgresql.installations():
        pytest.skip("no PostgreSQL programs on this machine")
    server = launch("restarted", postgresql.newest)
    try:
        # The server is fast, not safe: without this it forgets what it has committed last.
        engine = sa.create_engine(server.url, connect_args={"options": "-c synchronous_commit=on"})
        create_all(engine)
        yield engine
        engine.dispose()
    finally:
        server.stop()


def crash(engine: sa.Engine) -> None:
    """Kill one of the server's processes: it ends all the others, recovers, and starts again."""
    with engine.connect() as connection:
        os.kill(session_id(connection), signal.SIGKILL)
        connection.invalidate()


def answers(engine: sa.Engine) -> bool:
    """Return whether the database serves again."""
    try:
        with engine.connect() as connection:
            return bool(connection.scalar(sa.select(1)))
    except sa.exc.DBAPIError:
        return False


@pytest.mark.parametrize("begins_again", [False, True])
def test_a_restart_while_a_held_handler_runs(private_engine, begins_again):
    """The handler is asked to stop; whether it returns all the same or its job begins again, the job is done once, as the next."""
    gate, seen = Gate(), Recorder()
    options = {"claim": "held", "handler_mode": "advanced", "polling_interval": 0.01, "on_event": seen}
    with QueueWorker(private_engine, gate, worker_threads=2, **options) as worker:
        job_id = add(private_engine)
        job = gate.begun.get(timeout=PATIENCE)
        crash(private_engine)
        wait_until(lambda: answers(private_engine), PATIENCE)
        if begins_again:
            assert job_id == gate.begun.get(timeout=PATIENCE).job_id
        wait_until(lambda: job.stopping, PATIENCE)
        gate.open.set()
        following = add(private_engine)
        seen.wait_for(events.JobSucceeded, job_id=following)
        wait_until(lambda: len(archived(private_engine)) == 2, PATIENCE)

        assert worker.is_running
        assert worker.error is None
    assert ([], [("success", 1)] * 2) == left(private_engine)
    assert {job_id} == {event.job_id for event in seen.of(events.JobConnectionLost)}
