"""Enqueue three jobs in one transaction."""

import time

from sqlalchemy.orm import Session

from examples.a_echo.worker import engine
from proletarian_sa import create_all, enqueue

create_all(engine)
with Session(engine) as session, session.begin():
    for word in ("hello", "is there", "anybody"):
        enqueue(session, "echo", word, queue="a_echo")
print(f"{time.strftime('%H:%M:%S')} enqueued 3 jobs")
