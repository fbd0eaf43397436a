"""A job table that its owner has divided into partitions, whose rows lie at the same places."""

import datetime as dt
import uuid

import sqlalchemy as sa

from proletarian_sa import default_tables, enqueue_many
from proletarian_sa.dialects import statements_for
from tests.queue_contents import archived, queued
from tests.servers.database import Database

MINUTE = dt.timedelta(minutes=1)
DIVIDED = (
    "ALTER TABLE proletarian.job RENAME TO whole",
    "CREATE TABLE proletarian.job (LIKE proletarian.whole INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY HASH (job_id)",
    "CREATE TABLE proletarian.job_0 PARTITION OF proletarian.job FOR VALUES WITH (modulus 2, remainder 0)",
    "CREATE TABLE proletarian.job_1 PARTITION OF proletarian.job FOR VALUES WITH (modulus 2, remainder 1)",
    "ALTER TABLE proletarian.job ADD PRIMARY KEY (job_id)",
    "CREATE INDEX divided ON proletarian.job (queue, process_at)",
)


def test_partitions(database: Database, queue_engine: sa.Engine) -> None:
    """A job claimed that is not due, or twice: rows are fetched from where they lie, and those of other partitions let alone."""
    database.require("listen")  # partitions by hash
    with queue_engine.begin() as connection:
        for statement in DIVIDED:
            connection.exec_driver_sql(statement)
        rows = [{"job_type": "work", "process_in": 0 if number % 3 else 3600} for number in range(90)]
        ids = enqueue_many(connection, rows)
    statements = statements_for(queue_engine.dialect, default_tables)
    claimed = []
    with queue_engine.connect() as connection:
        while jobs := statements.claim(connection, queue="default", token=uuid.uuid4().hex, lease=MINUTE, limit=7):
            claimed += jobs
            statements.succeed(connection, jobs, new=True)
            connection.commit()

    due = [job_id for number, job_id in enumerate(ids) if number % 3]
    assert sorted(due) == sorted(job.job_id for job in claimed)
    assert set(due) == {row.job_id for row in archived(queue_engine)}
    assert set(ids) - set(due) == {row.job_id for row in queued(queue_engine)}
