"""Enqueue a batch of ten orders."""

from sqlalchemy.orm import Session

from examples.b_failures.worker import engine
from proletarian_sa import Job, create_all

create_all(engine)
with Session(engine) as session, session.begin():
    session.add_all(Job(job_type="order", payload=number, queue="b_failures") for number in range(1, 11))
print("enqueued 10 orders")
