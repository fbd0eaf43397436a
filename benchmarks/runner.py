"""Run each thing in turn, in a process and on a database of its own."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.environments import ROOT, EnvironmentMissingError, make
from benchmarks.measure import Numbers, Outcome, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.servers import Place

ERROR_SHOWN = 2000
"""Characters of a failed run's output that are worth keeping."""


class RunFailedError(Exception):
    """A run gave no numbers; the message says why."""


def run_all(runs: Sequence[Run], place: Place, *, patience: float, python: Callable[[str], Path] = make) -> list[Outcome]:
    """Run everything once, then again those that have more repeats: what is slow in one minute is so for all.

    After Ctrl-C what came of the runs so far is returned.
    `patience` is how many seconds each may take, `python` returns the program of an environment.
    """
    outcomes = [Outcome(run=run) for run in runs]
    turns = range(max((run.repeats for run in runs), default=0))
    with suppress(KeyboardInterrupt):
        for repeat, outcome in itertools.product(turns, outcomes):
            if repeat < outcome.run.repeats and not outcome.errors:
                begun = time.monotonic()
                try:
                    outcome.numbers.append(run_once(outcome.run, place, patience, python))
                except RunFailedError as error:
                    outcome.errors.append(str(error))
                report(outcome, repeat, time.monotonic() - begun)
    return outcomes


def run_once(run: Run, place: Place, patience: float, python: Callable[[str], Path]) -> Numbers:
    """Run one thing once.

    Raises:
        RunFailedError: It failed, or took too long.
    """
    if run.database in place.missing:
        raise RunFailedError(f"no {run.database}: {place.missing[run.database]}")
    try:
        program = python(run.environment)
    except EnvironmentMissingError as error:
        raise RunFailedError(f"no environment {run.environment}: {error}") from error
    with place.database(run.database) as url:
        return call(program, {"function": run.function, "url": url, "options": run.options}, patience)


def call(python: Path, request: dict[str, object], patience: float) -> Numbers:
    """Call a function in a new process; it and all its children end with this call."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        with subprocess.Popen(
            [str(python), "-m", "benchmarks.child", str(answer)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                _, errors = process.communicate(json.dumps(request), timeout=patience)
            except subprocess.TimeoutExpired as error:
                raise RunFailedError(f"not done within {patience:.0f} s") from error
            finally:
                end(process)
        if process.returncode != 0 or not answer.exists():
            raise RunFailedError(errors.strip()[-ERROR_SHOWN:] or f"ended with {process.returncode}")
        numbers: Numbers = json.loads(answer.read_text())
        return numbers


def end(process: subprocess.Popen[str]) -> None:
    """End what is left of a process's session, which it leads."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def report(outcome: Outcome, repeat: int, seconds: float) -> None:
    """Say what a run has given, while others are still to come."""
    said = f"FAILED: {outcome.errors[-1].splitlines()[-1]}" if outcome.errors else spell(outcome.numbers[-1])
    sys.stderr.write(f"{outcome.run.name} [{repeat + 1}/{outcome.run.repeats}, {seconds:.1f} s] {said}\n")
    sys.stderr.flush()


def spell(numbers: Numbers) -> str:
    """Spell numbers for people."""
    return ", ".join(f"{name} {value:,.0f}" if value >= 1000 else f"{name} {value:.3g}" for name, value in numbers.items())  # noqa: PLR2004
