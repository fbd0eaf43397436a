"""Threads of a worker that take turns much more often than Python's usual two hundred times a second."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import enqueue_many, events
from tests.helpers import PATIENCE, wait_until
from tests.queue_contents import archived

JOBS = 400
TURN = 1e-5
"""Seconds: a turn ends after some hundred steps of the interpreter."""


@pytest.fixture
def short_turns() -> Iterator[None]:
    """Let threads take short turns, until the end of the test."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(TURN)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("short_turns")
def test_a_busy_worker(claim: str, queue_engine: sa.Engine, work: Callable[..., Any]) -> None:
    """A worker that ended by itself: its threads meet wherever they can, and it does all jobs, each once."""
    ran: list[Any] = []
    worker, seen = work(lambda job: ran.append(job.job_id), worker_threads=4)
    with queue_engine.begin() as connection:
        ids = enqueue_many(connection, [{"job_type": "work"}] * JOBS)
    worker.start()
    wait_until(lambda: worker.error or len(seen.of(events.JobSucceeded)) == JOBS, timeout=PATIENCE)

    assert worker.error is None
    assert Counter(ids) == Counter(ran)
    assert Counter(ids) == Counter(row.job_id for row in archived(queue_engine))
