"""The options of Proletarian's worker, one after the other, under their names there."""

import inspect
import itertools
import random
import threading
import time

import pytest
import sqlalchemy as sa

from proletarian_sa import QueueWorker, default_tables, events
from proletarian_sa.log import log_event
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, add
from tests.plans import Captured

pytestmark = pytest.mark.usefixtures("claim")

DEFAULTS = {
    "queue": "default",
    "tables": default_tables,
    "handler_mode": "default",
    "retry": None,
    "failed_job": None,
    "on_event": log_event,
    "worker_id": None,
    "polling_interval": 0.1,
    "worker_threads": 1,
    "on_polling_error": None,
    "stop_timeout": 10.0,
    "install_signal_handlers": False,
    "wait_for_tables": False,
    "on_shutdown": None,
    "claim": "leased",
    "lease": 60.0,
    "max_crashes": 5,
    "held_warning": 60.0,
    "batch_size": 1,
}


@pytest.fixture
def drawn(monkeypatch):
    """Draw at most 0.2 whenever chance is asked for a number, and return what was asked."""
    asked: list[tuple[float, float]] = []

    def draw(low, high):
        asked.append((low, high))
        return max(low, min(high, 0.2))

    monkeypatch.setattr(random, "uniform", draw)
    return asked


@pytest.mark.leased
def test_the_defaults_are_the_originals():
    """100 ms, one thread, 10 s, one queue, no retry, nothing installed; ours beside them: leased, 60 s."""
    parameters = inspect.signature(QueueWorker).parameters
    options = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]

    assert DEFAULTS == {name: parameters[name].default for name in DEFAULTS}
    assert {*DEFAULTS, "session_factory", "executor", "factory"} == set(options)


def test_the_worker_id_names_threads_and_events(queue_engine, work):
    """`:queue-worker-id`: `proletarian[queue]` unless given; the prefix of the threads' names, and in every event."""
    for given, expected in ((None, "proletarian[mail]"), ("mailer", "mailer")):
        before = set(threading.enumerate())
        worker, seen = work(gate := Gate(), queue="mail", worker_id=given, worker_threads=2)
        add(queue_engine, queue="mail")
        worker.start()
        gate.begun.get(timeout=PATIENCE)
        handlers = {f"{expected} handler 1", f"{expected} handler 2"}
        # the second may yet begin
        wait_until(lambda handlers=handlers: handlers <= {thread.name for thread in threading.enumerate()}, PATIENCE)
        threads = {thread.name for thread in set(threading.enumerate()) - before}
        gate.open.set()
        seen.wait_for(events.JobSucceeded)
        worker.stop()

        assert handlers < threads
        assert [] == [name for name in threads if not name.startswith(f"{expected} ")]
        assert {expected} == {event.worker_id for event in seen.events}


def test_an_empty_queue_is_polled_at_the_interval(queue_engine, work):
    """`:polling-interval-ms`: the pause between the end of a polling run and the next, and up to a tenth more."""
    polls: list[float] = []

    def note(_connection, _cursor, statement, parameters, *_others):
        if threading.current_thread() is not threading.main_thread() and Captured(statement, parameters).of_jobs:
            polls.append(time.monotonic())

    sa.event.listen(queue_engine, "before_cursor_execute", note)
    worker, _seen = work(lambda _job: None, polling_interval=0.05, worker_threads=2)
    worker.start()
    wait_until(lambda: len(polls) >= 6, PATIENCE)
    worker.stop()

    assert min(later - earlier for earlier, later in itertools.pairwise(polls)) >= 0.05 * 0.85


def test_a_polling_run_ends_when_no_job_is_due(queue_engine, work, drawn):
    """`:polling-interval-ms`: jobs are taken one after the other until none is due; only then comes the pause, which jitters."""
    ids = [add(queue_engine, process_in=-number) for number in range(3)]
    worker, seen = work(lambda _job: None, polling_interval=3600)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=3)
    wait_until(lambda: (1.0, 1.1) in drawn, PATIENCE)
    worker.stop()

    assert set(ids) == {event.job_id for event in seen.of(events.JobSucceeded)}


def test_the_first_poll_is_staggered(queue_engine, work, drawn):
    """`:worker-threads`: workers that start together do not poll together: a random pause, of an interval, at most a second."""
    for interval, longest in ((0.1, 0.1), (3600, 1.0)):
        drawn.clear()
        add(queue_engine)
        worker, seen = work(lambda _job: None, polling_interval=interval)
        began = time.monotonic()
        worker.start()
        seen.wait_for(events.JobStarted)
        took = time.monotonic() - began
        worker.stop()

        assert (0, longest) == drawn[0]
        assert took >= min(longest, 0.2)
