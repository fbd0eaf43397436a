"""PostgreSQL's own pgbench with the bare SQL: one statement that claims, deletes and archives a batch."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from benchmarks.scenarios.queue import new_queue

if TYPE_CHECKING:
    from benchmarks.measure import Numbers

STATEMENT = """
WITH picked AS MATERIALIZED (
  SELECT job_id FROM proletarian.job
  WHERE queue = 'default' AND process_at <= statement_timestamp() AND (lease_until IS NULL OR lease_until <= statement_timestamp())
  ORDER BY process_at LIMIT {batch} FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM proletarian.job USING picked WHERE job.job_id = picked.job_id RETURNING job.*
)
INSERT INTO proletarian.archived_job
  (job_id, queue, job_type, payload, attempts, enqueued_at, process_at, status, finished_at)
SELECT job_id, queue, job_type, payload, attempts + 1, enqueued_at, process_at, 'success', clock_timestamp() FROM gone;
"""


def drain(url: str, *, jobs: int, batch: int, clients: int, program: str) -> Numbers:
    """Work off a queue of ours by so many clients."""
    new_queue(url, jobs)
    place = sa.make_url(url)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "drain.sql"
        script.write_text(STATEMENT.format(batch=batch).replace("\n", " "))
        options = ["--no-vacuum", "--protocol=prepared", f"--client={clients}", f"--transactions={jobs // batch // clients}"]
        server = [f"--host={place.host}", f"--port={place.port}", f"--username={place.username}", str(place.database)]
        printed = subprocess.run(
            [program, *options, f"--file={script}", *server], check=True, capture_output=True, text=True, timeout=600
        ).stdout
    found = re.search(r"^tps = ([\d.]+)", printed, re.MULTILINE)
    if found is None:
        raise ValueError(f"pgbench printed no rate: {printed}")
    return {"jobs/s": float(found[1]) * batch}
