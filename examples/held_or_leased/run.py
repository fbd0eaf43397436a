"""Run a job with each kind of claim, look at its row meanwhile, and kill the worker."""

import queue
import signal
import subprocess
import sys
import time

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from examples.held_or_leased.worker import QUEUE, engine
from proletarian_sa import DatabaseNotSupported, Job, QueueWorker, RunningJob, create_all, enqueue

PATIENCE = 60
"""Seconds."""

runs = queue.SimpleQueue[tuple[float, RunningJob]]()
held = QueueWorker(
    engine, lambda job: runs.put((time.monotonic(), job)), claim="held", lease=2, queue=QUEUE, handler_mode="advanced"
)


def show(second: QueueWorker, claim: str) -> None:
    """Let a first worker begin a job, kill it, and let the second one run the job again."""
    with Session(engine) as session, session.begin():
        session.execute(delete(Job).where(Job.queue == QUEUE))  # of a run that was broken off
    with second:  # there is nothing to do yet: this only says whether the database can do it
        pass
    with Session(engine) as session, session.begin():
        enqueue(session, "wait", queue=QUEUE)
    command = [sys.executable, "-m", "examples.held_or_leased.worker", claim]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:  # noqa: S603 - a command of our own
        try:
            assert first.stdout is not None
            first.stdout.readline()  # it has begun
            look()
            with second:
                killed = time.monotonic()
                first.kill()  # SIGKILL
                again, job = runs.get(timeout=PATIENCE)
        finally:
            first.kill()
    print(f"  worker killed; the job runs again after {again - killed:.1f} s: attempt {job.attempts}, crashes {job.crashes}")


def look() -> None:
    """Print what other transactions see of the job."""
    with Session(engine) as session:
        state, claimed_by = session.execute(select(Job.state, Job.claimed_by).where(Job.queue == QUEUE)).one()
        print(f"  while it runs, its row says: {state}, claimed by {'a worker' if claimed_by else 'nobody'}")
    with Session(engine) as session:
        free = session.scalars(select(Job).where(Job.queue == QUEUE).with_for_update(skip_locked=True)).first()
        print(f"  its row is {'free' if free else 'locked'}")


def main() -> None:
    """Do it with each kind of claim."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # takes the worker along, as Ctrl-C does
    create_all(engine)
    for second, claim in ((held, "held"), (held.with_options(claim="leased"), "leased")):
        print(f"claim={claim!r}")
        try:
            show(second, claim)
        except DatabaseNotSupported as error:
            print(f"  {error}")


if __name__ == "__main__":
    main()
