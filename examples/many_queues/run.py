"""Fill three queues, and let two workers empty them."""

import os
import threading
from collections.abc import Callable
from itertools import count

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from proletarian_sa import QueueWorker, RunningJob, create_all, enqueue

URGENT, DEFAULT, BULK = "mail-urgent", "mail-default", "mail-bulk"
engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///many_queues.db"))
finished = threading.Semaphore(0)


def handler_of(worker: str) -> Callable[[RunningJob], None]:
    """Return a handler that prints in which order this worker gets its jobs."""
    numbers = count(1)

    def handle(job: RunningJob) -> None:
        print(f"{worker} {next(numbers)}: {job.queue}\n", end="")  # as a whole: the other worker prints, too
        finished.release()

    return handle


def main() -> None:
    """Enqueue the least urgent first, then run them all."""
    create_all(engine)
    for queue in (BULK, DEFAULT, URGENT):
        with Session(engine) as session, session.begin():
            for _ in range(3):
                enqueue(session, "mail", queue=queue)

    front = QueueWorker(engine, handler_of("front"), handler_mode="advanced", queue=[URGENT, DEFAULT], worker_id="front")
    back = QueueWorker(engine, handler_of("back"), handler_mode="advanced", queue=BULK, worker_id="back")
    with front, back:
        for _ in range(9):
            finished.acquire()


if __name__ == "__main__":
    main()
