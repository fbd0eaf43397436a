"""A web application in processes that its server forks off one that has imported and begun everything, as preloading servers do.

    python -m tests.programs.preloading URL WAY OPTIONS SIGN

WAY is what the server has begun before it forks: `engine`, connections in a pool; `worker`, a worker. OPTIONS are more of
`create_engine`, as JSON. All processes share one engine; the children start the worker, the parent enqueues jobs through it
meanwhile. A line for each process that is ready, one with the ids of the jobs; it ends when SIGN, a file, is there.
"""

import json
import os
import sys
from pathlib import Path

import sqlalchemy as sa

from proletarian_sa import JobRegistry, QueueWorker, enqueue
from tests.helpers import wait_until
from tests.observing import PATIENCE
from tests.stress import tables
from tests.stress.application import mark_run

CHILDREN = 2
JOBS = 20
jobs = JobRegistry()


def make_engine(url, options):
    """Make the application's engine, with connections in its pool."""
    engine = sa.create_engine(url, pool_size=4, max_overflow=0, pool_timeout=PATIENCE, **options)
    for connection in [engine.connect() for _ in range(3)]:
        connection.execute(sa.select(1))
        connection.close()
    return engine


def make_worker(engine, url, processes):
    """Make the worker."""
    marks = tables.patient_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def begun():
        with marks.connect() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(tables.runs)) >= processes

    @jobs.handler("meet")
    def meet(_payload, job):
        """Wait until each process has one of these."""
        mark_run(marks, job)
        wait_until(begun, PATIENCE, pause=0.02)
        job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})

    @jobs.handler("work")
    def work(_payload, job):
        """Write."""
        mark_run(marks, job)
        job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})

    return QueueWorker(engine, jobs, polling_interval=0.02)


def add(engine, job_type):
    """Enqueue a job."""
    with engine.begin() as connection:
        return str(enqueue(connection, job_type))


def say(**facts):
    """Write a line, at once: other processes print to the same pipe."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def serve(worker, gate):
    """Be a child, until the server closes the gate."""
    worker.start()
    say(pid=os.getpid())
    os.read(gate, 1)
    worker.stop()


def main(url, way, options, sign):
    """Begin, fork, enqueue, and wait."""
    engine = make_engine(url, json.loads(options))
    processes = CHILDREN + (way == "worker")
    worker = make_worker(engine, url, processes)
    if way == "worker":
        worker.start()
    gate, opener = os.pipe()
    children = []
    for _ in range(CHILDREN):
        pid = os.fork()
        if pid == 0:
            os.close(opener)
            serve(worker, gate)
            return
        children.append(pid)
    say(ids=[add(engine, "meet") for _ in range(processes)] + [add(engine, "work") for _ in range(JOBS)])
    wait_until(Path(sign).exists, PATIENCE, pause=0.02)
    os.close(opener)
    worker.stop()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(max(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
