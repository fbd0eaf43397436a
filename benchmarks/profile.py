"""Where the processor time of a job goes: the threads of a worker, which share one interpreter, and the server."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

if TYPE_CHECKING:
    from benchmarks.measure import Numbers

PARTS: Final = {"supervisor": "claim", "handler": "run", "finisher": "finish"}
"""What the threads of a worker are called, after its name, and what they do."""
SERVER: Final = "server"
BACKENDS: Final = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def profile(engine: sa.Engine, jobs: int, main_thread: float | None = None) -> Numbers:
    """Return what has been spent on each job, in microseconds of processor time, while the worker still has its threads.

    Args:
        engine: Of the worker's database; the server's part is known where PostgreSQL runs on this machine.
        jobs: How many the worker has run.
        main_thread: When its event loop runs the handlers: what the main thread had spent before, in seconds.
    """
    spent = dict.fromkeys(PARTS.values(), 0.0)
    for thread in threading.enumerate():
        part = PARTS.get(thread.name.rpartition("] ")[2].rstrip(" 0123456789"))
        if part is not None and thread.ident is not None:
            spent[part] += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    if main_thread is not None:
        spent["run"] += time.thread_time() - main_thread
    if engine.dialect.name == "postgresql":
        asking = sa.create_engine(engine.url, poolclass=sa.NullPool)  # no connection that has done anything for the worker
        with asking.connect() as connection:
            spent[SERVER] = sum(map(processor_seconds, connection.exec_driver_sql(BACKENDS).scalars()))
    return {f"{part} µs/job": seconds / jobs * 1e6 for part, seconds in spent.items()}


def processor_seconds(pid: int) -> float:
    """Return what a process has spent, itself and for the system; 0 if it is none of this machine's."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
