"""The worker of a run: a process of its own, started by the command that a deployment would use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
COMMAND = ("proletarian-sa", "worker", "examples.demo.app:make_worker")
PATIENCE = 15.0
"""Seconds that the worker may take to stop."""


class WorkerProcess:
    """Run the worker until the end of the `with` block.

    Args:
        settings: Environment variables that the app factory reads.
        log: Where its output goes.
    """

    def __init__(self, settings: Mapping[str, str], log: Path) -> None:
        program, *arguments = COMMAND
        # the one beside this Python, whether or not the environment is activated
        found = shutil.which(program, path=Path(sys.executable).parent) or program
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - a command of our own
                [found, *arguments],
                cwd=ROOT,
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for the demo, which then stops the worker
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process.poll() is None

    def stop(self) -> int:
        """Ask it to stop, as a supervisor does, and return its exit code; a process that does not obey is killed."""
        self._process.terminate()
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def last_words(self, lines: int) -> list[str]:
        """Return the end of what it has printed."""
        return self._log.read_text(errors="replace").splitlines()[-lines:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
