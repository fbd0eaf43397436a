"""Two workers of which some jobs end the process, and a supervisor that starts them again.

    python -m tests.programs.killers OPTIONS

OPTIONS is JSON: `url`, `marks`, a file to which each run appends a line, and options of the worker. It runs until its input
ends.
"""

import json
import os
import resource
import select
import signal
import sys
import traceback

import sqlalchemy as sa

from proletarian_sa import JobRegistry, QueueWorker

PROCESSES = 2


def make_jobs(marks):
    """Build the handlers."""
    jobs, file = JobRegistry(), os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def mark(job):
        os.write(file, f"{job.job_type} {job.payload}\n".encode())

    @jobs.handler("good")
    def good(_payload, job):
        mark(job)
        if job.payload % 2:
            job.session.execute(sa.select(1))

    @jobs.handler("SIGKILL")
    def kill(_payload, job):
        mark(job)
        os.kill(os.getpid(), signal.SIGKILL)

    @jobs.handler("exit 0")
    def leave(_payload, job):
        mark(job)
        job.session.execute(sa.select(1))
        os._exit(0)

    return jobs


def work(url, marks, **options):
    """Run a worker in this process until something ends it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    engine = sa.create_engine(url, connect_args={"timeout": 30} if url.startswith("sqlite") else {})
    QueueWorker(engine, make_jobs(marks), polling_interval=0.02, worker_threads=2, **options).run()


def fork(options):
    """Start a worker in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            work(**options)
        except BaseException:  # noqa: BLE001 - it must not return into the supervisor
            traceback.print_exc()
        finally:
            os._exit(9)
    return child


def main(options):
    """Keep the workers running until standard input ends."""
    children = {fork(options) for _ in range(PROCESSES)}
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        ended, _ = os.waitpid(-1, os.WNOHANG)
        if ended:
            children.remove(ended)
            children.add(fork(options))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
