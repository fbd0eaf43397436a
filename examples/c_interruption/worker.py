"""The worker, with one plain function that runs all jobs. Stop it with Ctrl-C while it is at work."""

import os
from math import isqrt

from sqlalchemy import create_engine

from proletarian_sa import JobInterrupted, QueueWorker, RunningJob, create_all

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///c_interruption.db"))


def handle(job: RunningJob) -> None:
    """Run a job of any type: what handler_mode="advanced" asks for."""
    match job.job_type:
        case "wait":
            wait(job)
        case "count-primes":
            count_primes(job.payload)
        case _:
            raise ValueError(f"There is no job type {job.job_type!r}.")


def wait(job: RunningJob) -> None:
    """Wait for something, but not when the worker is to stop: then give the job back."""
    say(f"waiting: attempt {job.attempts}")
    if job.wait(job.payload):
        say("waiting: interrupted, to begin again later")
        raise JobInterrupted
    say("waiting: done")


def count_primes(limit: int) -> None:
    """Compute, and never look whether the worker is to stop."""
    say("counting: begun")
    primes = sum(all(number % divisor for divisor in range(2, isqrt(number) + 1)) for number in range(2, limit))
    say(f"counting: {primes} primes below {limit}")


def say(text: str) -> None:
    """Print a line as a whole, while other threads print theirs."""
    print(f"{text}\n", end="")


if __name__ == "__main__":
    create_all(engine)
    worker = QueueWorker(
        engine,
        handle,
        handler_mode="advanced",
        queue="c_interruption",
        worker_threads=2,
        stop_timeout=60,  # seconds: longer than any job takes that does not look
        on_shutdown=lambda: print("stopped"),
        install_signal_handlers=True,
    )
    print("ready")
    worker.run()
