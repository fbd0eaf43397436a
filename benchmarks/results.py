"""The results of one run of the command: written as JSON, read again, and printed as tables."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Outcome, Run
from benchmarks.profile import PARTS, SERVER
from benchmarks.targets import Row, judge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

PROFILE = tuple(f"{part} µs/job" for part in (*PARTS.values(), SERVER))
"""Numbers that stand in a table of their own."""


@dataclass(kw_only=True)
class Results:
    """All that is known about one run of the command.

    Attributes:
        form: `quick`, `full` or `tiny`.
        date: When it began, a date.
        seconds: How long it took, without making environments.
        commit: Which commit of ours was measured; with a + if files had been changed.
        machine: Facts about the machine.
        servers: Versions of the servers.
        settings: What was set on them.
        versions: What is installed in each environment.
        outcomes: What came of each run.
    """

    form: str
    date: str
    seconds: float
    commit: str
    machine: dict[str, str]
    servers: dict[str, str]
    settings: dict[str, str]
    versions: dict[str, dict[str, str]]
    outcomes: list[Outcome]

    def write(self, file: Path) -> None:
        """Write everything as JSON, the judged targets too."""
        judged = [asdict(row) | {"ratio": row.ratio, "met": row.met} for row in judge(self.outcomes)]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self) | {"targets": judged}, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, file: Path) -> Results:
        """Read what `write` has written; targets are judged anew."""
        given: dict[str, Any] = json.loads(file.read_text())
        del given["targets"]
        outcomes = [Outcome(**{**outcome, "run": Run(**outcome["run"])}) for outcome in given.pop("outcomes")]
        return cls(**given, outcomes=outcomes)


def tables(results: Results) -> str:
    """Spell everything for people, as Markdown that is readable as it stands."""
    parts = [
        f"Form `{results.form}`, {results.date}, commit {results.commit}, {results.seconds / 60:.1f} minutes.",
        *facts(results),
        "Ratios are of the medians; where several settings were run, the best counts, on both sides.",
        table(["what", "ours", "against", "ratio", "target", "met"], map(target_cells, judge(results.outcomes))),
        table(["run", "repeats", "median", "lowest to highest"], map(run_cells, results.outcomes)),
    ]
    if profiled := [outcome for outcome in results.outcomes if outcome.median("run µs/job") is not None]:
        parts += [
            (
                "Where the processor time of a job goes, in µs: three kinds of threads, one of which has the interpreter at a time,"
                " and so many jobs a second at the most; beside them the server's sessions."
            ),
            table(["run", *PARTS.values(), "together", "jobs/s at the most", SERVER], map(profile_cells, profiled)),
        ]
    if failed := [f"- {outcome.run.name}: {outcome.errors[-1].splitlines()[-1]}" for outcome in results.outcomes if outcome.errors]:
        parts.append("\n".join(["Failed:", "", *failed]))
    return "\n\n".join(parts) + "\n"


def facts(results: Results) -> Iterator[str]:
    """Spell what the numbers depend on."""
    peers = [name for name in results.versions if name != "ours"]
    mine = results.versions.get("ours", {})
    shown = ["python", "sqlalchemy", "psycopg", "pymysql"]
    yield "\n".join(
        [
            *(f"- {name}: {value}" for name, value in results.machine.items()),
            *(f"- {name} {version}; {results.settings.get(name, '')}" for name, version in results.servers.items()),
            f"- ours: {', '.join(f'{name} {mine[name]}' for name in shown if name in mine)}",
            "- peers: " + ", ".join(f"{name} {results.versions[name].get(name, 'unknown')}" for name in peers),
        ]
    )


def target_cells(row: Row) -> list[str]:
    """Spell a row of the targets."""
    target = row.target
    bound = f"≥ {target.least:g}" if target.least is not None else f"≤ {target.most:g}"
    met = {True: "yes", False: "NO", None: "not measured"}[row.met]
    against = "" if target.against is None else number(row.against)
    return [target.what, number(row.ours), against, number(row.ratio), bound, met]


def run_cells(outcome: Outcome) -> list[str]:
    """Spell a row of the runs, by all of its numbers."""
    names = [name for name in outcome.numbers[0] if name not in PROFILE] if outcome.numbers else []
    medians = ", ".join(f"{name} {number(outcome.median(name))}" for name in names)
    spread = ""
    if names:
        values = [numbers[names[0]] for numbers in outcome.numbers]
        spread = f"{number(min(values))} to {number(max(values))}"
    return [outcome.run.name, str(len(outcome.numbers)), medians or "failed", spread]


def profile_cells(outcome: Outcome) -> list[str]:
    """Spell a row of the profiles."""
    *parts, server = map(outcome.median, PROFILE)
    together = sum(part or 0.0 for part in parts)
    return [outcome.run.name, *map(number, (*parts, together, 1e6 / together, server))]


def number(value: float | None) -> str:
    """Spell a number with three or more digits that count."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a Markdown table."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )
