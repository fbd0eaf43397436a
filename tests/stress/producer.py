"""A producer in a process of its own.

Enqueues jobs beside a row of its business, one to five in a transaction, and rolls some transactions back. It tries nothing
twice: any error of the database ends it.
"""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import Job, enqueue
from tests.stress import tables

QUEUES = ("images", "mail")
THREADS = 2
MOST_IN_ONE = 5
ROLLED_BACK = 0.05
"""How many of the transactions are rolled back."""


def payload(number: int) -> dict[str, object]:
    """Return what a job has to do: 0 to 5 ms of work, and for every other one an effect."""
    return {"milliseconds": number % 6, "effect": number % 4 < 2}


def produce(engine: sa.Engine, jobs: int) -> list[str]:
    """Commit this many jobs, and return their ids."""
    committed: list[str] = []
    while len(committed) < jobs:
        count = min(random.randint(1, MOST_IN_ONE), jobs - len(committed))
        with Session(engine) as session:
            session.execute(sa.insert(tables.signups), {"jobs": count})
            ids = [add(session, len(committed) + number) for number in range(count)]
            if random.random() < ROLLED_BACK:
                session.rollback()
                continue
            session.commit()
        committed += ids
    return committed


def add(session: Session, number: int) -> str:
    """Enqueue a job in one of the ways there are."""
    queue = QUEUES[number % 2]
    if number % 3:
        return str(enqueue(session, "work", payload(number), queue=queue))
    job = Job(job_type="work", payload=payload(number), queue=queue)
    session.add(job)
    return str(job.job_id)


def main(url: str, jobs: str, ids: str) -> None:
    """Produce in several threads, and write the ids of the jobs committed to a file."""
    engine = tables.patient_engine(url)
    with ThreadPoolExecutor(THREADS) as pool:
        committed = [job_id for some in pool.map(lambda jobs: produce(engine, jobs), split(int(jobs))) for job_id in some]
    Path(ids).write_text(json.dumps(committed))


def split(jobs: int) -> list[int]:
    """Share jobs out to threads."""
    return [jobs // THREADS + (number < jobs % THREADS) for number in range(THREADS)]
