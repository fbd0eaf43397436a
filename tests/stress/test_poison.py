"""One job that kills its worker, among a thousand that do not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from proletarian_sa import enqueue_many
from tests.helpers import scaled, wait_until
from tests.queue_contents import archived
from tests.servers.database import Database
from tests.stress.processes import PATIENCE, REPOSITORY
from tests.stress.test_many_processes import is_empty

pytestmark = pytest.mark.long

GOOD = 1000
MAX_CRASHES = 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_one_poison_job_among_many(database: Database, queue_engine: sa.Engine, tmp_path: Path) -> None:
    """The good ones all succeed and lose no attempt; the poison is archived as failure after its crash limit, and says why."""
    good = scaled(GOOD)
    rows = [{"job_type": "good", "payload": number} for number in range(good)]
    rows.insert(good // 10, {"job_type": "SIGKILL"})
    with queue_engine.begin() as connection:
        enqueue_many(connection, rows)
    options = {"url": database.url_text, "marks": str(tmp_path / "marks"), "lease": 0.4, "max_crashes": MAX_CRASHES}
    with (tmp_path / "errors").open("w") as errors:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.killers", json.dumps(options)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stderr=errors,
        )
    try:
        wait_until(lambda: is_empty(queue_engine), timeout=PATIENCE, pause=0.1)
    finally:
        supervisor.stdin.close()
        supervisor.wait(PATIENCE)
    done = archived(queue_engine)
    (poison,) = [row for row in done if row.job_type == "SIGKILL"]
    starts = (tmp_path / "marks").read_text().splitlines().count("SIGKILL None")
    said = f"WorkerLost: The job has lost its worker {MAX_CRASHES + 1} times, more than max_crashes={MAX_CRASHES}."

    assert {("success", 1)} == {(row.status, row.attempts) for row in done if row.job_type == "good"}
    assert good == len(done) - 1
    assert ("failure", 1, MAX_CRASHES + 1) == (poison.status, poison.attempts, poison.crashes)
    assert poison.last_error.strip().endswith(said)
    assert 1 <= starts <= MAX_CRASHES + 1
