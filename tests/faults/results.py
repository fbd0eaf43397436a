"""What was measured, and the table in docs/faults.md that is made of it: `python -m tests.faults.results FOLDER`."""

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

VARIABLE = "PROLETARIAN_FAULT_RESULTS"
"""The environment variable that names a folder for what is measured; without it nothing is kept."""
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
BEGIN, END = "<!-- measured: written by `make faults` -->", "<!-- measured: end -->"
COLUMNS = ("fault", "database", "claim", "recovered in", "attempts", "runs", "log lines")


def record(**facts: Any) -> None:
    """Keep one measurement."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return
    with (Path(folder) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(facts) + "\n")


def table(measured: list[dict[str, Any]]) -> str:
    """Return a Markdown table: a line for each fault, database and claim; of several measurements the median, or from-to."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for facts in measured:
        groups[facts["fault"], facts["database"], facts["claim"]].append(facts)
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    for key in sorted(groups):
        found = groups[key]
        seconds = [facts["recovered"] for facts in found]
        spans = [span([facts[name] for facts in found]) for name in ("attempts", "runs", "lines")]
        cells = [*key, f"{median(seconds):.1f} s", *spans]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def span(numbers: list[int]) -> str:
    """Return `1`, or `1-3`."""
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least}-{most}"


def main(folder: str) -> None:
    """Write the table into the page."""
    measured = [json.loads(line) for file in Path(folder).glob("*.jsonl") for line in file.read_text().splitlines()]
    if not measured:
        sys.exit(f"Nothing was measured; {PAGE.relative_to(Path.cwd())} is as it was.")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(measured)}\n\n{END}{after}")
    print(f"{len(measured)} measurements are in {PAGE.relative_to(Path.cwd())}.")  # noqa: T201 - it is a program's


if __name__ == "__main__":
    main(*sys.argv[1:])
