"""A process that has imported everything and forks others off: to start each anew would take longer than the test.

    python -m tests.faults.nursery

Reads a JSON object a line: `number`, `environment`, `output` (a file for what the process says), `arguments` of the command
`proletarian-sa`, or of the function `main` of a `module`. Writes one for each process that has started, with its `number` and
`pid`, and one with its `code` when it has ended.
"""

import ctypes
import importlib
import json
import os
import select
import signal
import sys
from typing import Any

from proletarian_sa import cli

PR_SET_PDEATHSIG = 1
"""As linux/prctl.h has it."""
LOOK = 0.01
"""Seconds between looks for processes that have ended."""


def main() -> None:
    """Fork until the input ends, then kill what is left."""
    import aiosqlite  # noqa: F401, PLC0415 - for the processes to come
    import asyncmy  # noqa: F401, PLC0415 - likewise
    import asyncpg  # noqa: F401, PLC0415 - likewise
    import psycopg  # noqa: F401, PLC0415 - likewise
    import pymysql  # noqa: F401, PLC0415 - likewise

    import tests.faults.async_application  # noqa: F401, PLC0415 - likewise

    children: dict[int, int] = {}
    waiting = b""
    while True:
        if select.select([0], [], [], LOOK)[0]:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                wanted = json.loads(line)
                children[fork(wanted)] = wanted["number"]
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            tell(number=children.pop(pid), code=os.waitstatus_to_exitcode(status))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def fork(wanted: dict[str, Any]) -> int:
    """Start one process, and tell its number."""
    pid = os.fork()
    if pid:
        tell(number=wanted["number"], pid=pid)
        return pid
    try:
        become(wanted)
    finally:
        os._exit(99)


def become(wanted: dict[str, Any]) -> None:
    """Run the command as a process of its own would, and end as it would."""
    os.setsid()
    die_with_parent()
    output = os.open(wanted["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(wanted["environment"])
    code: Any = 0
    try:
        if wanted["module"] is None:
            cli.main(wanted["arguments"], prog_name="proletarian-sa")
        else:
            importlib.import_module(wanted["module"]).main(*wanted["arguments"])
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - as Python does at its end
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        import atexit  # noqa: PLC0415 - only at the end
        import threading  # noqa: PLC0415 - likewise

        threading._shutdown()  # what Python does at its end, in this order
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def die_with_parent() -> None:
    """Let the system kill this process when the nursery ends, however that ends; elsewhere than on Linux nothing does."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tell(**facts: int) -> None:
    """Write a line."""
    print(json.dumps(facts), flush=True)  # noqa: T201 - for the scene to read


if __name__ == "__main__":
    main()
