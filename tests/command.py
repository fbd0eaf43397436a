"""The command `proletarian-sa worker` as a process that a test starts, reads, signals and waits for."""

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

from tests.observing import PATIENCE

COMMAND = Path(sys.executable).parent / "proletarian-sa"
APP = "tests.programs.cli_app"
ROOT = Path(__file__).parent.parent
START = 120.0
"""Seconds that a process may take to import everything on a busy machine, beside others."""


class Command:
    """A running command; its lines can be waited for."""

    program = (str(COMMAND), "worker")

    def __init__(self, *arguments, prefix=(), cwd=ROOT, **environment):
        self.process = subprocess.Popen(
            [*prefix, *self.program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            cwd=cwd,
        )
        self.lines = queue.Queue()
        self.output = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.output.append(line.rstrip("\n"))
            self.lines.put(self.output[-1])
        self.lines.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.reader.join(PATIENCE)
        if not self.reader.is_alive():  # else a process that it has started lives on, and to close what is read would wait for that
            self.process.stdout.close()

    def wait_for(self, text):
        """Return the next line that holds the text; fail when the command ends without it."""
        while True:
            line = self.lines.get(timeout=START)
            if line is None or text in line:
                assert line is not None, self.output
                return line

    def say(self, text):
        """Write a line to a handler that waits for it."""
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def code(self):
        """Return the exit code, once all output has been read."""
        code = self.process.wait(START)
        self.reader.join(PATIENCE)
        return code


def can_be_process_1():
    """Return whether this user may make PID namespaces."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def only_child(pid):
    """Return the number of the one child of a process."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123 - not a file
        (child,) = file.read().split()
    return int(child)


def namespace_pid(pid):
    """Return the number that a process has in its own namespace."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:  # noqa: PTH123 - not a file
        (line,) = [line for line in file if line.startswith("NSpid:")]
    return line.split()[-1]
