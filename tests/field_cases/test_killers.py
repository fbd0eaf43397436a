"""Jobs that end the process of their worker, one way or the other: set aside after a bounded number of starts."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import wait_until
from tests.observing import add
from tests.queue_contents import archived, queued

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
KILLERS = ("SIGKILL", "exit 0")
GOOD = 50
MAX_CRASHES = 2
LIMIT = 60.0
OPTIONS = {"lease": 1.5, "max_crashes": MAX_CRASHES}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_jobs_that_kill_their_process(database, queue_engine, tmp_path):
    """Job kills its process: after a bounded number of starts it is archived as failure, and the good jobs around it all finish."""
    marks = tmp_path / "marks"
    for number in range(GOOD):
        add(queue_engine, "good", number)
        if number in (5, 15):
            add(queue_engine, KILLERS[number // 10])
    options = {"url": database.url_text, "marks": str(marks), **OPTIONS}
    with (tmp_path / "errors").open("w") as errors:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.killers", json.dumps(options)], cwd=ROOT, stdin=subprocess.PIPE, stderr=errors
        )
    try:
        wait_until(lambda: not queued(queue_engine), timeout=LIMIT, pause=0.05)
    finally:
        supervisor.stdin.close()
        supervisor.wait(LIMIT)
    rows = archived(queue_engine)
    starts = collections.Counter(marks.read_text().splitlines())
    log = (tmp_path / "errors").read_text()

    assert GOOD + len(KILLERS) == len(rows)
    assert {("good", "success")} | {(killer, "failure") for killer in KILLERS} == {(row.job_type, row.status) for row in rows}
    for row in rows:
        if row.job_type != "good":
            assert MAX_CRASHES + 1 == row.crashes
            assert 1 <= starts[f"{row.job_type} None"] <= MAX_CRASHES + 1  # lost unrun beside the other one it was none of its own
            assert "has lost its worker" in row.last_error
        else:
            assert starts[f"good {row.payload}"] >= 1
            assert (row.crashes or 0) <= len(KILLERS)  # of each only the first run takes others along
    assert len(KILLERS) == log.count("is archived as failure: WorkerLost: "), log
