"""Four workers whose processes stand still in the middle of a job, and are killed: `python -m tests.stress.stalls OPTIONS`.

OPTIONS is JSON: `url`; `log`, a file for events; `report`, a file for what was done to the processes; `kills`, how many. Runs until
its input ends.
"""

import json
import os
import random
import select
import signal
import sys
import time
import traceback
from pathlib import Path

import sqlalchemy as sa

from proletarian_sa import JobRegistry, QueueWorker, RunningJob, events
from tests.stress import tables
from tests.stress.application import Log, mark_run

WORKERS = 4
THREADS = 4
LEASE = 0.5
STALL = 0.8
"""Seconds for which a process stands still: longer than its leases."""
BETWEEN_KILLS = 0.4
"""Seconds, on average."""
NOTED = (events.JobSucceeded, events.JobLeaseLost, events.JobFailed)


def make_jobs(url: str) -> JobRegistry:
    """Build the handler: some jobs stop their process at their first run, before or after they have written."""
    jobs = JobRegistry()
    marks = tables.patient_engine(url, isolation_level="AUTOCOMMIT", pool_size=THREADS)

    @jobs.handler("work")
    def work(payload: dict[str, int], job: RunningJob) -> None:
        runs = sa.select(sa.func.count()).select_from(tables.runs).where(tables.runs.c.job_id == str(job.job_id))
        with marks.connect() as connection:
            ran = connection.scalar(runs)  # `crashes` counts also those that were taken ahead by a worker that was killed
        mark_run(marks, job)
        stall = 0 if ran else payload["stall"]
        if stall == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})
        if stall == 2:
            os.kill(os.getpid(), signal.SIGSTOP)

    return jobs


def work(url: str, log: Log) -> None:
    """Run a worker in this process until something ends it."""
    engine = tables.patient_engine(url, pool_size=THREADS + 3)
    options = {"worker_threads": THREADS, "polling_interval": 0.02, "lease": LEASE, "max_crashes": 1000}

    def note(event: events.Event) -> None:
        if isinstance(event, NOTED):
            log.write(type(event).__name__, str(event), event.job_id)

    QueueWorker(engine, make_jobs(url), on_event=note, **options).run()


def fork(url: str, log: Log) -> int:
    """Start a worker in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            work(url, log)
        except BaseException:  # noqa: BLE001 - it must not return into the supervisor
            traceback.print_exc()
        finally:
            os._exit(9)
    return child


def main(url: str, log: str, report: str, kills: int) -> None:
    """Keep the workers alive, wake those that stand still, and kill one now and then, until standard input ends."""
    file, done = Log(log), {"stalls": 0, "kills": 0, "deaths": 0}
    children = {fork(url, file) for _ in range(WORKERS)}
    asleep: dict[int, float] = {}
    killed: set[int] = set()  # it takes a moment until a death is known: nobody is killed twice
    next_kill = time.monotonic() + 2 * BETWEEN_KILLS
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        now = time.monotonic()
        child, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if child and os.WIFSTOPPED(status):
            asleep[child] = now
            done["stalls"] += 1
        elif child:
            asleep.pop(child, None)
            children.remove(child)
            children.add(fork(url, file))
            done["deaths"] += 1
            if child not in killed:
                sys.stderr.write(f"process {child} ended by itself: {os.waitstatus_to_exitcode(status)}\n")
                sys.stderr.flush()
        for stopped in [stopped for stopped, since in asleep.items() if now - since > STALL]:
            del asleep[stopped]
            os.kill(stopped, signal.SIGCONT)
        if done["kills"] < kills and now >= next_kill and children - killed:
            victim = random.choice(sorted(children - killed))
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
            done["kills"] += 1
            next_kill = now + random.uniform(0, 2 * BETWEEN_KILLS)
        Path(report).write_text(json.dumps(done))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
