"""A program that knows the original's tables only, and says so in plain SQL: it enqueues, takes, archives and retries by hand."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

COLUMNS = "job_id, queue, job_type, payload, attempts, enqueued_at, process_at"
SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f000', 'now', '{} seconds')"  # which rounds to milliseconds, up or down
NOW = {"postgresql": "clock_timestamp()", "sqlite": SQLITE_NOW.format("-0.001")}
DUE = {"postgresql": "clock_timestamp()", "sqlite": SQLITE_NOW.format("+0.001")}


class Original:
    """Its tables are `proletarian.job` and `proletarian.archived_job`, or `job` and `archived_job` where there is no schema."""

    def __init__(self, engine: sa.Engine) -> None:
        name = engine.dialect.name
        self._engine = engine
        self._schema = "proletarian." if name == "postgresql" else ""
        self._now = NOW.get(name, "utc_timestamp()")  # its own tables keep whole seconds there, and MySQL would round up
        self._due = DUE.get(name, "utc_timestamp(6)")
        self._lock = "" if name == "sqlite" else "FOR UPDATE SKIP LOCKED"
        self._stored = {"postgresql": lambda job_id: job_id, "sqlite": lambda job_id: job_id.hex}.get(
            name, lambda job_id: job_id.bytes
        )

    def enqueue(self, job_type: str, payload: str, queue: str = "default") -> uuid.UUID:
        """Insert a row with the original's seven columns, and commit."""
        job_id = uuid.uuid4()
        values = f"(:id, :queue, :job_type, :payload, 0, {self._now}, {self._now})"
        with self._engine.begin() as connection:
            given = {"id": self._stored(job_id), "queue": queue, "job_type": job_type, "payload": payload}
            connection.execute(sa.text(f"INSERT INTO {self._schema}job ({COLUMNS}) VALUES {values}"), given)
        return job_id

    @contextmanager
    def taken(self, queue: str = "default") -> Iterator[tuple[sa.Connection, Any]]:
        """Lock the oldest due row in a transaction, which is committed at the end; None if there is none."""
        due = f"FROM {self._schema}job WHERE queue = :queue AND process_at <= {self._due} ORDER BY process_at LIMIT 1 {self._lock}"
        with self._engine.begin() as connection:
            yield connection, connection.execute(sa.text(f"SELECT {COLUMNS} {due}"), {"queue": queue}).one_or_none()

    def run(self, queue: str = "default", status: str = "success") -> Any:
        """Take a job, archive and delete it, and return its type; None if none is due."""
        with self.taken(queue) as (connection, row):
            if row is None:
                return None
            given = {"id": row.job_id, "status": status}
            copied = COLUMNS.replace("attempts", "attempts + 1")
            connection.execute(
                sa.text(
                    f"INSERT INTO {self._schema}archived_job ({COLUMNS}, status, finished_at) "
                    f"SELECT {copied}, :status, {self._now} FROM {self._schema}job WHERE job_id = :id"
                ),
                given,
            )
            connection.execute(sa.text(f"DELETE FROM {self._schema}job WHERE job_id = :id"), given)
            return row.job_type

    def retry(self, queue: str = "default") -> None:
        """Take a job, and put it back for another attempt, due at once."""
        with self.taken(queue) as (connection, row):
            change = f"SET process_at = {self._now}, attempts = attempts + 1"
            connection.execute(sa.text(f"UPDATE {self._schema}job {change} WHERE job_id = :id"), {"id": row.job_id})
