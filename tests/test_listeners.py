"""The thread that listens, and those who want to share it."""

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import JobTables, events
from proletarian_sa.dialects import statements_for
from proletarian_sa.wakeups import stations
from tests.observing import PATIENCE, add, change
from tests.servers.database import Database

NOTIFYING = JobTables(notify=True)


@pytest.mark.usefixtures("queue_engine")
def test_a_sink_that_waits_for_another_worker(database: Database, work: Any) -> None:
    """A worker that tells its sink that notifications arrive keeps no other one from stopping."""
    database.require("listen")
    one, seen = work(lambda _job: None, tables=NOTIFYING)
    one.start()
    seen.wait_for(events.ListenerStarted)
    told, go = threading.Event(), threading.Event()

    def sink(event: events.Event) -> None:
        if isinstance(event, events.ListenerStarted):
            told.set()
            go.wait(PATIENCE)

    other, _ = work(lambda _job: None, tables=NOTIFYING, on_event=sink)
    other.start()
    assert told.wait(PATIENCE)
    left = one.stop(timeout=PATIENCE / 2)
    stopped = one.join(0)
    go.set()

    assert ([], True) == (left, stopped)


@pytest.mark.usefixtures("claim", "queue_engine")
def test_a_listener_that_cannot_be_started(database: Database, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may have no more threads: the worker ends with that error, and nobody is held to wait for jobs."""
    database.require("listen")
    begin = threading.Thread.start

    def begin_unless_listener(thread: threading.Thread) -> None:
        if "listener" in thread.name:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", begin_unless_listener)
    worker, seen = work(lambda _job: None, tables=NOTIFYING)
    worker.start()
    seen.wait_for(events.WorkerFailed)
    assert worker.join(PATIENCE)

    assert "can't start new thread" == str(worker.error)
    assert not stations.any_here()


def test_jobs_put_off_for_ever(database: Database, queue_engine: sa.Engine) -> None:
    """A job that an operator has put off to `infinity`, or claimed until then, is none to wait for, and no error."""
    database.require("listen")
    notifications = statements_for(queue_engine.dialect, NOTIFYING).notifications
    assert notifications is not None
    for job_id, column in ((add(queue_engine, process_in=100), "process_at"), (add(queue_engine), "lease_until")):
        change(queue_engine, job_id, **{column: sa.literal_column("'infinity'")})
    with queue_engine.connect() as connection:
        for_ever = notifications.until_next(connection, ["default"])
    add(queue_engine, process_in=100)
    with queue_engine.connect() as connection:
        later = notifications.until_next(connection, ["default"])

    assert for_ever is None
    assert later is not None
    assert 0 < later <= 100
