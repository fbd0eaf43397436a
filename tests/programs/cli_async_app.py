"""An application with an async engine of which the command line starts the worker: its handlers tell the test what they do."""

import asyncio
import os
import sys

from sqlalchemy.ext.asyncio import create_async_engine

from proletarian_sa import AsyncQueueWorker, JobRegistry

jobs = JobRegistry()


def tell(text):
    """Write a line to the test."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@jobs.handler("tell")
async def tell_payload(payload, job):
    """Tell what was given."""
    tell(f"{job.queue} {payload}")


@jobs.handler("wait")
async def wait_for_the_test(_payload):
    """Wait until the test writes a line, or for ever."""
    tell("begun")
    await asyncio.to_thread(sys.stdin.readline)
    tell("ended")


@jobs.handler("deaf")
async def go_on(_payload):
    """Go on, whatever the stop makes of the task."""
    tell("begun")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            tell("cancelled")


def make_worker():
    """Make the worker."""
    engine = create_async_engine(os.environ["APP_URL"])
    return AsyncQueueWorker(engine, jobs, polling_interval=0.02, stop_timeout=float(os.environ.get("APP_STOP_TIMEOUT", "60")))


async def make_on_loop():
    """Make the worker in the loop in which it is going to run."""
    loop = asyncio.get_running_loop()
    worker = make_worker()

    @jobs.handler("same loop")
    async def tell_loop(_payload):
        tell(f"the factory's loop: {asyncio.get_running_loop() is loop}")

    return worker


async def make_nothing():
    """Forget to return the worker."""
