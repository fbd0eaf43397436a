"""Deadlocks, serialization failures and lock time-outs at each statement of a worker process."""

import uuid
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import default_tables
from tests.faults.refusing import ERRORS
from tests.faults.scene import Scene
from tests.queue_contents import archived

pytestmark = pytest.mark.long

KINDS: list[dict[str, Any]] = [{}, {"ends": "flaky"}, {"ends": "failure"}, {"milliseconds": 500}]
"""What jobs do, so that all that a worker says to the database is said: the last is there for a heartbeat."""
MOST_ROUNDS = 40


def test_every_statement_is_refused(scene: Scene) -> None:
    """Deadlock on finish and claim, serialization failure in the claim: whatever statement or COMMIT is refused, nothing is lost.

    Each of a real worker's is, as long as there is one that was not yet, by a deadlock, a serialization failure, and a time-out.
    What `failed_job` has written is undone where its transaction was refused: it is not called twice, and that is told.
    """
    worker = scene.start(refuse=True, retries=1, longest_pause=0.1)
    refused = -1
    failed = []
    for _ in range(MOST_ROUNDS):
        if len(scene.told("Refused")) == refused:
            break
        refused = len(scene.told("Refused"))
        ids = [scene.add(1, **kind)[0] for kind in KINDS]
        failed.append(ids[2])
        scene.wait(partial(hasten, scene.engine, ids))
        recovered = scene.wait_for_end(ids)
    told = [line["text"].split(" | ") for line in scene.told("Refused")]

    assert len(told) == refused, "there are still some that were not refused"
    assert set(ERRORS) == {error for error, _, _ in told}
    assert len({what for _, _, what in told}) >= 8, "too few statements to be true"
    assert "COMMIT after an archiving" in {what for _, _, what in told}
    assert worker.code is None
    scene.check(failed=failed, effectless=[uuid.UUID(line["job_id"]) for line in scene.told("FailedJobCallbackFailed")])
    scene.check_alive()
    scene.measured("deadlock, serialization failure, lock time-out: every statement", recovered)


def hasten(engine: sa.Engine, ids: list[uuid.UUID]) -> bool:
    """Let these jobs be due that wait for their next attempt; return whether all have come to their end."""
    columns = default_tables.job.c
    waiting = sa.and_(columns.job_id.in_(ids), columns.claimed_by.is_(None), columns.attempts > 0)
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA busy_timeout = 60000")
        rows = connection.scalars(sa.select(columns.job_id).where(waiting).with_for_update(skip_locked=True)).all()
        if rows:
            connection.execute(sa.update(default_tables.job).where(columns.job_id.in_(rows)).values(process_at=columns.enqueued_at))
    return {row.job_id for row in archived(engine)} >= set(ids)
