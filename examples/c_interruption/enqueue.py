"""Enqueue a job that waits for a minute, and one that computes for a second or so."""

from sqlalchemy.orm import Session

from examples.c_interruption.worker import engine
from proletarian_sa import create_all, enqueue

create_all(engine)
with Session(engine) as session, session.begin():
    enqueue(session, "wait", 60, queue="c_interruption")
    enqueue(session, "count-primes", 400_000, queue="c_interruption")
print("enqueued 2 jobs")
