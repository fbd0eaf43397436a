"""The soak, shortened, and its judge: a soak whose judge sees nothing would find nothing."""

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.soak import KINDS, soak
from tests.faults.soak_check import Facts, violations
from tests.servers.hooks import is_ci

SECONDS = 85.0
"""In CI, without start and end, which take half a minute."""
SECONDS_HERE = 5.0
"""On a developer's machine, on SQLite alone."""
ROW = SimpleNamespace(job_id="a", status="success")


@pytest.mark.long
def test_soak(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Lost job, double execution: while workers, producers, connections and databases die at random the invariant holds."""
    held = soak(SECONDS if is_ci() else SECONDS_HERE, KINDS if is_ci() else ["sqlite"], 1, tmp_path)

    said = capfd.readouterr().out
    assert held, said
    assert re.search(r"^sqlite: [1-9]\d* jobs, [1-9]\d* runs, .*; the invariant holds$", said, re.MULTILINE), said


def facts(**changed: Any) -> Facts:
    """Return what is known of one job, committed and done, with changes."""
    known = {
        "ledger": [{"order": "o", "jobs": {"a": "success"}}, {"order": "o", "outcome": "committed"}],
        "logs": {1: lines("Run JobSucceeded")},
        "killed": set(),
        "archive": [ROW],
        "effects": Counter(a=1),
        "orders": {"o"},
    }
    return Facts(**(known | changed))


def lines(names: str) -> list[dict[str, Any]]:
    """Return a worker's events about the job."""
    return [{"name": name, "job_id": "a", "text": ""} for name in names.split()]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"logs": {1: lines("Run JobAttemptFailed JobRetried Run JobSucceeded")}},
        {"logs": {1: lines("Run"), 2: lines("Run JobSucceeded")}, "killed": {1}},
        {"ledger": [{"order": "o", "jobs": {"a": "success"}}]},
    ],
    ids=["well", "retried", "killed", "answer lost"],
)
def test_what_may_be(changed: dict[str, Any]) -> None:
    """Nothing is wrong with a job that is done, nor with one that ran again for a reason that is known."""
    assert [] == violations(facts(**changed))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"archive": [], "effects": {}}, "lost: its order is there, and it is in neither table"),
        ({"orders": set()}, "its order was rolled back, and it is there"),
        ({"ledger": []}, "nobody has enqueued it"),
        ({"queued": [ROW]}, "in both tables"),
        ({"queued": [ROW], "archive": [], "effects": {}}, "still queued at the end"),
        ({"archive": [SimpleNamespace(job_id="a", status="failure")]}, "archived as failure instead of success"),
        ({"logs": {1: lines("Run JobSucceeded"), 2: lines("Run JobSucceeded")}}, "2 runs, of which only 0 had an end"),
        ({"logs": {1: lines("Run JobSucceeded"), 2: lines("Run")}, "killed": {1}}, "2 runs, of which only 0 had an end"),
        ({"logs": {}}, "archived without a run"),
        ({"effects": {}}, "0 effects instead of 1"),
        ({"effects": Counter(a=2)}, "2 effects instead of 1"),
        ({"logs": {1: lines("Run JobSucceeded ThreadDied")}}, "ThreadDied"),
    ],
)
def test_what_must_not_be(changed: dict[str, Any], what: str) -> None:
    """Each way to break the promise is seen, and told with its job."""
    wrong = violations(facts(**changed))

    assert ("a", True) in [(job_id, text.startswith(what)) for text, job_id in wrong], wrong
