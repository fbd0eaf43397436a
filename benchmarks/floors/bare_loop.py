"""A bare psycopg loop, one job a transaction, that sends what a worker with held claims sends."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import psycopg
import sqlalchemy as sa

from benchmarks.measure import Numbers, Stopwatch
from benchmarks.scenarios.queue import counting_worker, fill, new_queue, settle

Statement = tuple[str, dict[str, Any]]


def drain(url: str, *, jobs: int) -> Numbers:
    """Learn from a worker what it sends for one job, then send that for each of the others."""
    engine = new_queue(url, 3)
    statements = listen(engine)
    fill(engine, jobs)
    settle(engine)
    with psycopg.connect(sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)) as connection:
        loop = Loop(connection, statements)
        begun, cpu = time.perf_counter(), time.process_time()
        done = 0
        while done < jobs:
            done += loop.step()
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return {"jobs/s": jobs / seconds, "CPU µs/job": cpu / jobs * 1e6, "statements/job": float(len(statements))}


class Loop:
    """The statements of one job, sent again and again; only the job's id changes, and where a claim begins to look."""

    def __init__(self, connection: psycopg.Connection[Any], statements: list[Statement]) -> None:
        self._connection = connection
        self._statements = statements
        self._claim = next(place for place, (text, _) in enumerate(statements) if "SKIP LOCKED" in text)
        self._learned = next(values for _, values in statements[self._claim + 1 :] if "id" in values)["id"]
        self._due: dt.datetime | None = None  # of the last job

    def step(self) -> bool:
        """Send the statements of one job, and commit; return whether there was one."""
        job_id = None
        for place, (text, values) in enumerate(self._statements):
            if place != self._claim:
                changed = {name: job_id if value == self._learned else value for name, value in values.items()}
                self._connection.execute(text, changed)
                continue
            changed = {name: self._due or value if isinstance(value, dt.datetime) else value for name, value in values.items()}
            row = self._connection.execute(text, changed).fetchone()
            if row is None:
                return False
            due = [value for value in row if isinstance(value, dt.datetime)][-1]
            job_id, self._due = row[0], due.replace(tzinfo=dt.UTC)
        self._connection.commit()
        return True


def listen(engine: sa.Engine) -> list[Statement]:
    """Return what a worker sends for its second job, from the end of the first one's transaction to the end of its own."""
    transactions: list[list[Statement]] = [[]]
    watch = Stopwatch(3)

    def sent(_connection: object, _cursor: object, text: str, values: Any, *_: object) -> None:
        transactions[-1].append((text, dict(values)))

    def ended(_connection: object) -> None:
        transactions.append([])

    sa.event.listen(engine, "before_cursor_execute", sent)
    sa.event.listen(engine, "commit", ended)
    with counting_worker(engine, watch, claim="held") as worker:
        watch.wait_for(worker)
    sa.event.remove(engine, "before_cursor_execute", sent)
    sa.event.remove(engine, "commit", ended)
    finishes = [statements for statements in transactions if any("archived_job" in text for text, _ in statements)]
    claims = [statements for statements in finishes if any("SKIP LOCKED" in text for text, _ in statements)]
    return claims[-1]
