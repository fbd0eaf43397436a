"""The command: measure in turn, print, write JSON and a picture."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import time
from dataclasses import replace
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from benchmarks import environments, machine
from benchmarks.arguments import parse
from benchmarks.plan import plan
from benchmarks.quote import quote
from benchmarks.results import Results, tables
from benchmarks.runner import run_all
from benchmarks.servers import KINDS, start
from benchmarks.sizes import FORMS

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.measure import Run


def main(arguments: Sequence[str]) -> int:
    """Do what was asked for; return 1 if a run has failed. A target that is missed is said, and is no failure of the command."""
    asked = parse(arguments)
    if asked.quote:
        quote(asked.quote, environments.ROOT)
        return 0
    runs = chosen(asked)
    if not runs:
        sys.stderr.write("no run has such a name: see python -m benchmarks --list\n")
        return 2
    if asked.list:
        sys.stdout.writelines(f"{run.name}\n" for run in runs)
        return 0
    results = measure(asked.form, runs)
    file = asked.results or environments.CACHE / "results" / f"{asked.form}.json"
    results.write(file)
    sys.stdout.write(tables(results))
    sys.stdout.write(f"\n{file}\n{draw(file)}\n")
    return int(any(outcome.errors for outcome in results.outcomes))


def chosen(asked: Namespace) -> list[Run]:
    """List the runs that were asked for."""
    return [
        replace(run, repeats=min(run.repeats, asked.repeats or run.repeats))
        for run in plan(asked.form, asked.database or KINDS)
        if not asked.only or any(fnmatch(run.name, pattern) for pattern in asked.only)
    ]


def measure(form: str, runs: list[Run]) -> Results:
    """Make what is needed, and run everything in turn."""
    for name in dict.fromkeys(run.environment for run in runs):
        try:
            environments.make(name)
        except environments.EnvironmentMissingError as error:
            sys.stderr.write(f"{name} cannot be installed: {error}\n")
    begun, date = time.monotonic(), dt.datetime.now(dt.UTC).date().isoformat()
    with start(dict.fromkeys(run.database for run in runs)) as place:
        facts = machine.facts(place.folder)
        outcomes = run_all(runs, place, patience=FORMS[form].patience)
        servers = dict(place.versions)
    pythons = {name: environments.CACHE / name / "bin" / "python" for name in dict.fromkeys(run.environment for run in runs)}
    return Results(
        form=form,
        date=date,
        seconds=time.monotonic() - begun,
        commit=commit(),
        machine=facts,
        servers=servers,
        settings=machine.settings(list(servers)),
        versions={name: machine.versions(python) for name, python in pythons.items()},
        outcomes=outcomes,
    )


def commit() -> str:
    """Name the commit that was measured."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],  # noqa: S607 - whichever git there is
            check=True,
            capture_output=True,
            text=True,
            cwd=environments.ROOT,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.stdout.strip()


def draw(file: Path) -> str:
    """Draw the picture beside the results; say where it is, or why there is none."""
    picture = file.with_suffix(".svg")
    command = ["-m", "benchmarks.picture", str(file.absolute()), str(picture.absolute())]
    try:
        subprocess.run(
            [str(environments.make("picture")), *command], check=True, cwd=environments.ROOT, capture_output=True, text=True
        )
    except environments.EnvironmentMissingError as error:
        return f"no picture: {error}"
    except subprocess.CalledProcessError as error:
        return f"no picture: {error.stderr.strip().splitlines()[-1]}"
    return str(picture)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
