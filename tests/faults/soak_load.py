"""What the soak does all the time: jobs of each kind, in transactions of an application that dies now and then itself.

    python -m tests.faults.soak_load URL LEDGER STOP SEED

is a producer: it writes orders and jobs until the file STOP is there, and into LEDGER, a JSON object a line, what it is about to
commit, and what it knows of the commit.
"""

import json
import os
import random
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import JobInterrupted, JobRegistry, RunningJob, default_tables, enqueue, enqueue_many
from tests.faults.application import VARIABLE, Options
from tests.stress import tables
from tests.stress.application import Log

orders = sa.Table(
    "soak_orders",
    tables.metadata,
    sa.Column("order_id", sa.String(36), primary_key=True),
    sa.Column("jobs", sa.Integer, nullable=False),
)
"""The business beside which jobs are enqueued: one row a transaction."""

LEASE = 1.5
"""Seconds."""
KINDS = {"success": 50, "quiet": 12, "late": 10, "flaky": 8, "failure": 4, "open": 6, "interrupted": 6, "long": 2}
"""How often each kind of job is enqueued.

`quiet` writes nothing; `late` is due later; `open` uses its session at once; `interrupted` gives the job back when it is asked to
stop; `long` is longer than a lease."""
ROLLED_BACK = 0.1
"""How many transactions are rolled back on purpose."""
MOST_IN_ONE = 5
JOBS_A_SECOND = 12.0
"""Of each producer, at the most."""
MOST_WAITING = 300
"""Jobs in the queue beyond which producers wait."""
AFTER_ERROR = 0.3
"""Seconds until a producer tries again."""


def add_handlers(jobs: JobRegistry) -> dict[str, Any]:
    """Add the handler; each of its runs is a line of the worker's log, which no fault of a database can keep away."""
    log = Log(Options(**json.loads(os.environ[VARIABLE])).log)

    @jobs.handler("soak")
    def work(kind: str, job: RunningJob) -> None:
        log.write("Run", job.attempts, job.job_id)
        if kind == "open":
            job.session.connection()
        if kind == "long":
            time.sleep(2.5 * LEASE)
        if kind == "interrupted" and job.wait(0.3):
            raise JobInterrupted
        time.sleep(random.random() * 0.01)
        if kind not in ("quiet", "failure"):
            job.session.execute(sa.insert(tables.effects), {"job_id": str(job.job_id)})
        if kind == "failure" or (kind == "flaky" and job.attempts == 1):
            raise LookupError("the job's own reason")

    return {}


class Producer:
    """Enqueues jobs beside orders."""

    def __init__(self, url: str, ledger: Path, seed: str) -> None:
        self._engine = sa.create_engine(url, pool_pre_ping=True)
        self._random = random.Random(seed)
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, **facts: Any) -> None:
        """Append a line to the ledger."""
        os.write(self._ledger, (json.dumps(facts) + "\n").encode())

    def produce(self) -> int:
        """Do one transaction, and return how many jobs were in it."""
        order, count = str(uuid.uuid4()), self._random.randint(1, MOST_IN_ONE)
        kinds = self._random.choices(list(KINDS), list(KINDS.values()), k=count)
        roll_back = self._random.random() < ROLLED_BACK
        with Session(self._engine) as session:
            session.execute(sa.insert(orders), {"order_id": order, "jobs": count})
            ids = self._enqueue(session, kinds)
            self.note(order=order, jobs=dict(zip(ids, kinds, strict=True)))
            if roll_back:
                session.rollback()
            else:
                session.commit()
        self.note(order=order, outcome="rolled back" if roll_back else "committed")
        return count

    def _enqueue(self, session: Session, kinds: list[str]) -> list[str]:
        rows = [{"job_type": "soak", "payload": kind, "process_in": self._random.random() * 4 * (kind == "late")} for kind in kinds]
        if self._random.random() < 0.3:
            return [str(job_id) for job_id in enqueue_many(session.connection(), rows)]
        return [str(enqueue(session, row["job_type"], row["payload"], process_in=row["process_in"])) for row in rows]

    def waiting(self) -> int:
        """Return how many jobs lie in the queue."""
        with self._engine.connect() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(default_tables.job)) or 0

    def run(self, stop: Path) -> None:
        """Produce until the end. What an error has left open is in the ledger as begun."""
        while not stop.exists():
            try:
                while self.waiting() > MOST_WAITING and not stop.exists():
                    time.sleep(AFTER_ERROR)
                time.sleep(self.produce() * 2 * self._random.random() / JOBS_A_SECOND)
            except sa.exc.DBAPIError as error:
                self.note(error=str(error.orig))
                time.sleep(AFTER_ERROR)


def main(url: str, ledger: str, stop: str, seed: str) -> None:
    """Be a producer."""
    Producer(url, Path(ledger), seed).run(Path(stop))


if __name__ == "__main__":
    main(*sys.argv[1:])
