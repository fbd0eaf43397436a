"""The application of worker processes on an event loop: its `main` runs an `AsyncQueueWorker`, with the `application`'s options.

Its handlers are coroutines that do what those of the `application` do.
"""

import asyncio
import contextlib
import logging
import pkgutil
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from proletarian_sa import AsyncQueueWorker, AsyncRunningJob, JobInterrupted, JobRegistry
from tests.faults.application import PATIENCE, begin, prepare, tell_of_waiting
from tests.faults.traps import Trap
from tests.stress import tables
from tests.stress.application import mark_run

GOODBYE = 1.0
"""Seconds that closing the connections may take: the server may be gone without a word."""


def main(*arguments: str) -> None:
    """Run the worker until a signal stops it: `--queue NAME`, again for more, as in the command."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(work(tuple(arguments[1::2])))


async def work(queues: Sequence[str]) -> None:
    """Make the worker, and run it."""
    made, engine = make_worker()
    await (made.with_options(queue=queues) if queues else made).run()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GOODBYE):
            await engine.dispose()


def make_worker() -> tuple[AsyncQueueWorker, AsyncEngine]:
    """Build the worker."""
    options, log = begin()
    assert options.driver is not None
    engine = create_async_engine(sa.make_url(options.url).set(drivername=options.driver), **options.engine)
    trap, given = prepare(engine.sync_engine, options, log)
    jobs = make_jobs(options.marks or options.url, trap, options.types)
    more = pkgutil.resolve_name(options.more)(jobs) if options.more else {}
    given |= {"failed_job": note_failure, "install_signal_handlers": True}
    made = AsyncQueueWorker(engine, jobs, **(given | more | options.worker))
    signal.signal(signal.SIGUSR2, lambda *_: log.write("Health", asdict(made.health)))
    return made, engine


def make_jobs(url: str, trap: Trap, types: Sequence[str]) -> JobRegistry:
    """Build the handlers, which do what their payloads say: see `application.make_jobs`."""
    jobs = JobRegistry()
    marks = tables.patient_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    async def work(payload: dict[str, Any], job: AsyncRunningJob) -> None:
        await asyncio.to_thread(mark_run, marks, job)
        trap.handler(job)
        if payload.get("opens"):
            await job.session.connection()
        if "wait" in payload:
            tell_of_waiting(payload["wait"], job)
            await wait_for_file(payload["wait"])
        await asyncio.sleep(payload.get("milliseconds", 0) / 1000)
        if payload.get("effect", True):
            await job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})
        ends = payload.get("ends", "success")
        if ends == "failure" or (ends == "flaky" and job.attempts == 1):
            raise LookupError("the job's own reason")
        calm = "calm" in payload and exists(payload["calm"])
        if ends == "interrupt" and not calm and await job.wait(PATIENCE):
            raise JobInterrupted

    for job_type in types:
        jobs.handler(job_type)(work)
    return jobs


def exists(file: str) -> bool:
    """Return whether a file is there."""
    return Path(file).exists()


async def wait_for_file(file: str) -> None:
    """Wait until the file is there; whether the job is asked to stop makes no difference."""
    deadline = time.monotonic() + PATIENCE
    while not exists(file):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} has not come")
        await asyncio.sleep(0.01)


async def note_failure(job: AsyncRunningJob, _exception: BaseException) -> None:
    """Leave an effect of the failure, in the transaction that archives the job."""
    await job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})
