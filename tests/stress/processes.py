"""Start Python programs beside the tests, and be sure that they end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 150.0
"""Seconds that one stress test may take on a very busy machine; on an idle one of two cores it is ten to twenty."""


@contextmanager
def python(*arguments: str, environment: dict[str, str] | None = None, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run this Python in the repository's folder; at the end kill it and all that it has forked."""
    with output.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            env=environment or dict(os.environ),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # all of them have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
