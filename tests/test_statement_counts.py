"""How many statements about jobs a worker sends: next to none while idle, a few per job."""

import itertools
import time
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from proletarian_sa import JobRegistry, QueueWorker, RetryStrategy, process_next_job
from tests.claims import process_next_job as chosen_step
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add
from tests.plans import Captured, capture

PER_JOB = {
    "postgresql": ["UPDATE", "SELECT"],
    "mysql": ["SELECT", "UPDATE", "INSERT", "DELETE"],
    "mariadb": ["SELECT", "UPDATE", "INSERT", "DELETE"],
    "sqlite": ["SELECT", "UPDATE", "INSERT", "DELETE"],
}
"""The claim and the finish: where a database can do each in one statement it does; a SELECT may hold a DELETE and an INSERT."""
FENCE = {"sqlite": ["UPDATE"]}
"""What `job.session` sends when it is opened: on SQLite the first statement takes the write lock."""
SETTINGS = {"postgresql": 2}
"""Statements that read no table but tell the planner what to do, one in each transaction."""


def test_idle_worker_sends_one_statement_per_poll(queue_engine: sa.Engine) -> None:
    """An idle worker asks once per polling interval, however many threads it has."""
    interval = 0.05
    sent: list[float] = []

    def before_cursor_execute(_connection: object, _cursor: object, statement: str, *others: object) -> None:
        if Captured(statement, others[0]).of_jobs:
            sent.append(time.monotonic())

    worker = QueueWorker(queue_engine, JobRegistry(), worker_threads=8, polling_interval=interval, on_event=Recorder())
    with worker:
        event.listen(queue_engine, "before_cursor_execute", before_cursor_execute)
        wait_until(lambda: len(sent) >= 10, timeout=PATIENCE)
        event.remove(queue_engine, "before_cursor_execute", before_cursor_execute)
    pauses = [later - earlier for earlier, later in itertools.pairwise(sent)]

    assert min(pauses) >= interval * 0.85


def test_poll_of_an_empty_queue_is_one_statement(queue_engine: sa.Engine) -> None:
    """Where nothing is due the worker writes nothing, and asks once."""
    process_next_job(queue_engine, JobRegistry())
    with capture(queue_engine) as captured:
        assert process_next_job(queue_engine, JobRegistry()) is None

    assert 1 == len([one for one in captured if one.of_jobs])


@pytest.mark.parametrize("uses_session", [False, True])
def test_a_job_takes_few_statements(queue_engine: sa.Engine, uses_session: bool) -> None:
    """A job costs a claim and a finish, each as few statements as the database allows."""
    jobs = JobRegistry()
    application = [sa.text("SELECT 1")] if uses_session else []

    def work(_payload: object, job: object) -> None:
        for statement in application:
            job.session.execute(statement)  # type: ignore[attr-defined]

    jobs.handler("work")(work)
    add(queue_engine, "work")
    process_next_job(queue_engine, jobs)
    add(queue_engine, "work")
    with capture(queue_engine) as captured:
        outcome = process_next_job(queue_engine, jobs)
    name = queue_engine.dialect.name
    claim_and_finish = PER_JOB[name]
    half = len(claim_and_finish) // 2
    fence = FENCE.get(name, []) if uses_session else []

    assert outcome is not None
    assert "succeeded" == outcome.status
    assert [*claim_and_finish[:half], *fence, *claim_and_finish[half:]] == [one.verb for one in captured if one.of_jobs]
    assert SETTINGS.get(name, 0) == len([one for one in captured if "set_config('enable_seqscan'" in one.statement])


@pytest.mark.usefixtures("claim")
@pytest.mark.parametrize("ending", [None, ValueError("no")])
def test_statements_are_compiled_once(queue_engine: sa.Engine, ending: Exception | None) -> None:
    """From the second job on no statement of the claim or the finish is compiled again."""
    options: Any = {"retry": RetryStrategy(retries=5, delays=[0])}

    def handler(*_: object) -> None:
        if ending is not None:
            raise ending

    for _ in range(3):
        add(queue_engine)
    for _ in range(2):
        chosen_step(queue_engine, handler, **options)
    compiled: list[str] = []

    def before_cursor_execute(_connection: object, _cursor: object, statement: str, *others: Any) -> None:
        context = others[1]
        if context.compiled is not None and context.cache_hit.name != "CACHE_HIT":
            compiled.append(statement)

    event.listen(queue_engine, "before_cursor_execute", before_cursor_execute)
    outcome = chosen_step(queue_engine, handler, **options)
    event.remove(queue_engine, "before_cursor_execute", before_cursor_execute)

    assert outcome is not None
    assert ("retrying" if ending else "succeeded") == outcome.status
    assert [] == compiled
