"""A bare LISTEN/NOTIFY round trip and one claim: the least that picking up a job can take."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import Session

from benchmarks.scenarios.latency import sample
from benchmarks.scenarios.queue import new_queue
from proletarian_sa import enqueue

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.measure import Numbers

CLAIM = """
WITH picked AS (
  SELECT job_id FROM proletarian.job
  WHERE queue = 'default' AND process_at <= statement_timestamp() AND (lease_until IS NULL OR lease_until <= statement_timestamp())
  ORDER BY process_at LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE proletarian.job SET claimed_by = 'bare', lease_until = clock_timestamp() + interval '60 s', attempts = attempts + 1
FROM picked WHERE job.job_id = picked.job_id RETURNING job.*
"""


def pick_up(url: str, *, jobs: int) -> Numbers:
    """Commit jobs one by one, each with a NOTIFY, for a listener in another process that claims them."""
    engine = new_queue(url)
    here, there = multiprocessing.get_context("spawn").Pipe()
    listener = multiprocessing.get_context("spawn").Process(target=listen, args=(url, there))
    listener.start()
    here.recv()

    def commit() -> float:
        session = Session(engine)
        enqueue(session, "work")
        session.flush()
        session.execute(sa.text("NOTIFY bare"))
        sent = time.monotonic()
        session.commit()
        session.close()
        return sent

    numbers = sample(jobs, commit, here)
    listener.kill()
    listener.join()
    return numbers


def listen(url: str, there: Connection) -> None:
    """Be the process that waits for notifications and claims."""
    address = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as ears, psycopg.connect(address) as connection:
        ears.execute("LISTEN bare")
        connection.execute(CLAIM, prepare=True)
        connection.commit()
        there.send(0.0)
        for _ in ears.notifies():
            claimed = connection.execute(CLAIM).fetchone()
            connection.commit()
            if claimed:
                there.send(time.monotonic())
