"""Fork many processes off one that has imported everything: to start each anew would take longer than the test.

    python -m tests.stress.herd REPORT '[["worker", "tests.stress.application:make_worker"], ["producer", …]]'

Appends a JSON line to the file REPORT for each process that starts and that ends.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import sqlalchemy as sa

from proletarian_sa import cli
from tests.stress import producer


def main(report: str, commands: str, url: str) -> None:
    """Fork, and wait for all; a child returns and so ends as any program does."""
    importlib.import_module(sa.make_url(url).get_dialect().import_dbapi().__name__)
    children: dict[int, str] = {}
    with Path(report).open("a", buffering=1) as lines:
        for command, *arguments in json.loads(commands):
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                run(command, arguments)
                return
            children[pid] = command
            lines.write(json.dumps({"pid": pid, "command": command}) + "\n")
        while children:
            pid, status = os.wait()
            command = children.pop(pid)
            lines.write(json.dumps({"pid": pid, "command": command, "code": os.waitstatus_to_exitcode(status)}) + "\n")


def run(command: str, arguments: list[str]) -> None:
    """Be a worker or a producer."""
    if command == "worker":
        cli.main([command, *arguments])
    else:
        producer.main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
