"""A web application of which the start-up code starts a worker, in as many processes as its server forks.

    python -m tests.programs.web_processes URL PROCESSES THREADS

Forks the processes after everything is imported, as a preloading server does. Each prints a JSON line once its application and
the worker's threads have started; when standard input ends, it stops its worker and ends.
"""

import json
import os
import sys
import threading

import sqlalchemy as sa

from proletarian_sa import JobRegistry, QueueWorker, RunningJob
from tests.helpers import wait_until
from tests.observing import PATIENCE
from tests.stress import tables
from tests.stress.application import mark_run


def start_up(url: str, threads: int) -> QueueWorker:
    """Start the application: with its own engine, and with the worker that it starts by the way."""
    jobs = JobRegistry()
    marks = tables.patient_engine(url, isolation_level="AUTOCOMMIT")

    @jobs.handler("work")
    def work(_payload: object, job: RunningJob) -> None:
        mark_run(marks, job)

    worker = QueueWorker(sa.create_engine(url), jobs, worker_threads=threads, polling_interval=0.02)
    worker.start()
    return worker


def serve(url: str, threads: int) -> None:
    """Be one process of the server, until the others end too."""
    worker = start_up(url, threads)
    wait_until(lambda: handler_threads() == threads, PATIENCE)
    # At once: the other processes print to the same pipe.
    os.write(1, (json.dumps({"pid": os.getpid(), "handlers": handler_threads()}) + "\n").encode())
    sys.stdin.read()
    worker.stop()


def handler_threads() -> int:
    """Return how many of this process's threads run handlers."""
    return len([thread for thread in threading.enumerate() if " handler " in thread.name])


def main(url: str, processes: str, threads: str) -> None:
    """Fork, and wait for all."""
    children = []
    for _ in range(int(processes)):
        pid = os.fork()
        if pid == 0:
            serve(url, int(threads))
            return
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(max(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
