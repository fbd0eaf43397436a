"""Programs that start a worker and come to their end without stopping it, or without waiting for it.

    python -m tests.programs.exits URL JOB ENDING

JOB: a job type below, or `none`: the worker is idle. ENDING: how the main function ends.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sqlalchemy as sa

from proletarian_sa import Job, JobInterrupted, JobRegistry, QueueWorker

jobs = JobRegistry()
begun = threading.Event()


@jobs.handler("endless")
def endless(_payload):
    """Do not look at what is asked."""
    begun.set()
    threading.Event().wait()


@jobs.handler("writes")
def write_and_wait(_payload, job):
    """Write through `job.session`, and do not return."""
    job.session.add(Job(job_type="child", queue="other"))
    job.session.flush()
    begun.set()
    threading.Event().wait()


@jobs.handler("polite")
def stop_when_asked(_payload, job):
    """Give the job back when asked to stop."""
    begun.set()
    job.wait(60)
    raise JobInterrupted


@jobs.handler("pool")
def use_a_pool(_payload, job):
    """Hand work to a pool of threads, until asked to stop; the pool refuses work once the interpreter has begun to exit."""
    with ThreadPoolExecutor(1) as pool:
        while not job.stopping:
            pool.submit(begun.set).result()


def start(url, stop_timeout=30):
    """Start a worker."""
    worker = QueueWorker(sa.create_engine(url), jobs, polling_interval=0.01, stop_timeout=stop_timeout)
    worker.start()
    return worker


def main(url, job_type, ending):
    """Start a worker, wait until it is where it is to be, and end."""
    worker = start(url, 0.3 if job_type in ("endless", "writes") else 30)
    if job_type != "none":
        begun.wait()
    if ending == "stops":
        print([job.job_type for job in worker.stop(0.1)])  # noqa: T201 - for the test to read
    if ending == "waits for a file":
        end = Path(sys.argv[4])
        end.with_suffix(".begun").touch()
        while not end.exists():
            worker.join(0.05)
    if ending == "raises":
        raise LookupError("main has a bug")
    if ending == "exits":
        sys.exit(5)


if __name__ == "__main__":
    main(*sys.argv[1:4])
