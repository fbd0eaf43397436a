"""A worker whose handler does not return: run.py kills it.

Usage: python -m examples.held_or_leased.worker held|leased
"""

import os
import sys

from sqlalchemy import create_engine

from proletarian_sa import JobInterrupted, QueueWorker, RunningJob

QUEUE = "held_or_leased"
engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///held_or_leased.db"))


def handle(job: RunningJob) -> None:
    """Say that it has begun, and wait."""
    print("begun", flush=True)
    if job.wait(3600):
        raise JobInterrupted


if __name__ == "__main__":
    worker = QueueWorker(
        engine,
        handle,
        claim="held" if sys.argv[1] == "held" else "leased",
        lease=2,  # seconds: so short that nobody has to wait; 60 by default
        queue=QUEUE,
        handler_mode="advanced",
        install_signal_handlers=True,
    )
    worker.run()
