"""What must be true of all jobs at the end, whatever happened to workers and database."""

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from tests.queue_contents import archived, queued
from tests.stress import tables

EXPLANATIONS = {
    "JobAttemptFailed",
    "JobInterrupted",
    "JobLeaseLost",
    "JobReleased",
    "JobRetried",
    "JobTransactionDied",
    "OutcomeNotRecorded",
    "JobConnectionLost",
}
"""Events that announce another run of the same job."""
NEVER = {"WorkerFailed", "SinkFailed", "ArchiveRowReplaced", "CallbackFailed", "RetryStrategyFailed", "ThreadDied"}
"""Events that no fault of a process, a connection or a server may bring about."""


def check(
    engine: sa.Engine,
    ids: Iterable[uuid.UUID],
    told: list[dict[str, Any]],
    *,
    lost: Mapping[str, int] | None = None,
    failed: Iterable[uuid.UUID] = (),
    effectless: Iterable[uuid.UUID] = (),
    allowed: Iterable[str] = (),
) -> None:
    """Hold what is in the database, and what the workers told, against what is promised.

    Args:
        engine: The database, undisturbed.
        ids: All jobs whose enqueuing was committed.
        told: The events of all workers.
        lost: How many runs of which job a fault may have ended without a word: those in hand of a process that was killed.
        failed: The jobs whose handlers fail for good; all others succeed.
        effectless: The jobs that were told to leave no effect.
        allowed: Names of events that this fault brings about although `NEVER` has them.
    """
    rows = archived(engine)
    everybody, archive = sorted(map(str, ids)), sorted(str(row.job_id) for row in rows)
    runs, effects = marks(engine, tables.runs), marks(engine, tables.effects)
    failures = {str(job_id) for job_id in failed}

    assert [] == [line for line in told if line["name"] in NEVER - set(allowed)]
    assert [] == queued(engine)
    assert everybody == archive, "each job in exactly one of the two tables"
    told_errors = "\n".join(str(row.last_error) for row in rows if row.status == "failure")
    assert failures == {str(row.job_id) for row in rows if row.status == "failure"}, told_errors
    assert set(everybody) == set(runs), "each job ran at least once"
    assert {} == unexplained(engine, told, lost), "a run that no fault explains"
    leaving = [job_id for job_id in everybody if job_id not in set(map(str, effectless))]
    assert dict.fromkeys(leaving, 1) == dict(effects), "effects equal to the archive"


def unexplained(engine: sa.Engine, told: list[dict[str, Any]], lost: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return how often those jobs ran that no fault explains."""
    explained = Counter(line["job_id"] for line in told if line["name"] in EXPLANATIONS) + Counter(lost or {})
    return {job_id: count for job_id, count in marks(engine, tables.runs).items() if count - 1 > explained[job_id]}


def marks(engine: sa.Engine, table: sa.Table) -> Counter[str]:
    """Return how many marks each job has left."""
    with engine.connect() as connection:
        return Counter(connection.scalars(sa.select(table.c.job_id)))
