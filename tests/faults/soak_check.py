"""What must be true at the end of the soak: a function of what was found in the database and in the logs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from proletarian_sa.held_check import PROBE
from tests.faults.invariants import NEVER, marks
from tests.faults.soak_load import orders
from tests.queue_contents import archived, queued
from tests.stress import tables

Line = dict[str, Any]
ANOTHER_RUN = {"JobRetried", "JobReleased", "JobLeaseLost", "OutcomeNotRecorded", "JobUndeliverable", "JobConnectionLost"}
"""Events of a worker after which a job runs again."""
ENDS = {"JobSucceeded", "JobFailed", *ANOTHER_RUN}


@dataclass
class Facts:
    """All that is known in the end.

    Attributes:
        ledger: Lines of all producers.
        logs: The events of each start of a worker, by its number.
        killed: The numbers of those that were killed without a word.
        queued: Rows of the job table.
        archive: Rows of the archive.
        effects: How many effects each job has.
        orders: The orders that are there.
    """

    ledger: list[Line]
    logs: dict[int, list[Line]]
    killed: set[int]
    queued: list[Any] = field(default_factory=list)
    archive: list[Any] = field(default_factory=list)
    effects: Mapping[str, int] = field(default_factory=dict)
    orders: set[str] = field(default_factory=set)

    def read(self, engine: sa.Engine) -> "Facts":
        """Read what is in the database."""
        self.queued, self.archive, self.effects = jobs_left(engine), archived(engine), marks(engine, tables.effects)
        with engine.connect() as connection:
            self.orders = set(connection.scalars(sa.select(orders.c.order_id)))
        return self

    def begun(self) -> dict[str, dict[str, str]]:
        """Return the jobs of each order that a producer was about to commit, with their kinds."""
        return {line["order"]: line["jobs"] for line in self.ledger if "jobs" in line}

    def outcomes(self) -> dict[str, str]:
        """Return what producers know of their commits; of an order that is not here they know nothing."""
        return {line["order"]: line["outcome"] for line in self.ledger if "outcome" in line}

    def runs(self) -> Counter[str]:
        """Return how often each job has run."""
        return Counter(line["job_id"] for log in self.logs.values() for line in log if line["name"] == "Run")

    def explained(self) -> Counter[str]:
        """Return how many runs of each job had an end after which there is another one."""
        found: Counter[str] = Counter()
        for number, log in self.logs.items():
            found += Counter(line["job_id"] for line in log if line["name"] in ANOTHER_RUN)
            if number in self.killed:
                ran = Counter(line["job_id"] for line in log if line["name"] == "Run")
                found += ran - Counter(line["job_id"] for line in log if line["name"] in ENDS)
        return found


def jobs_left(engine: sa.Engine) -> list[Any]:
    """Return the rows of the job table but those that held workers put there for a moment when they start, and may die beside."""
    return [row for row in queued(engine) if not row.queue.startswith(f"{PROBE} ")]


def violations(facts: Facts) -> list[tuple[str, str | None]]:
    """Return what is not as it must be, with the job that it is about."""
    return [*in_orders(facts), *in_tables(facts), *in_runs(facts), *in_effects(facts), *in_events(facts)]


def in_orders(facts: Facts) -> Iterable[tuple[str, str | None]]:
    """Hold the application's commits against its orders: a job is there if and only if its order is."""
    there = {str(row.job_id) for row in (*facts.queued, *facts.archive)}
    outcomes, begun = facts.outcomes(), facts.begun()
    for order, jobs in begun.items():
        exists, outcome = order in facts.orders, outcomes.get(order)
        if outcome is not None and exists != (outcome == "committed"):
            yield f"the order {order} was {outcome}, and is {'there' if exists else 'not there'}", None
        for job_id in jobs:
            if exists and job_id not in there:
                yield "lost: its order is there, and it is in neither table", job_id
            elif not exists and job_id in there:
                yield "its order was rolled back, and it is there", job_id
    for job_id in there - {job_id for jobs in begun.values() for job_id in jobs}:
        yield "nobody has enqueued it", job_id


def in_tables(facts: Facts) -> Iterable[tuple[str, str | None]]:
    """Hold the two tables against each other, and each outcome against the kind of the job."""
    kinds = {job_id: kind for jobs in facts.begun().values() for job_id, kind in jobs.items()}
    waiting = {str(row.job_id) for row in facts.queued}
    for job_id in waiting:
        yield "still queued at the end", job_id
    for row in facts.archive:
        job_id = str(row.job_id)
        expected = "failure" if kinds.get(job_id) == "failure" else "success"
        if row.status != expected:
            yield f"archived as {row.status} instead of {expected}", job_id
        if job_id in waiting:
            yield "in both tables", job_id


def in_runs(facts: Facts) -> Iterable[tuple[str, str | None]]:
    """Hold the runs against what workers told, and what they could not tell."""
    runs, explained = facts.runs(), facts.explained()
    there = {str(row.job_id) for row in (*facts.queued, *facts.archive)}
    for job_id, count in runs.items():
        if count - 1 > explained[job_id]:
            yield f"{count} runs, of which only {explained[job_id]} had an end after which there is another one", job_id
        if job_id not in there:
            yield "it ran, and is in neither table", job_id
    for row in facts.archive:
        if not runs[str(row.job_id)]:
            yield "archived without a run", str(row.job_id)


def in_effects(facts: Facts) -> Iterable[tuple[str, str | None]]:
    """Hold what jobs have written through their sessions against the archive."""
    kinds = {job_id: kind for jobs in facts.begun().values() for job_id, kind in jobs.items()}
    told = {line["job_id"] for log in facts.logs.values() for line in log if line["name"] == "FailedJobCallbackFailed"}
    archive = {str(row.job_id) for row in facts.archive}
    for job_id in archive | set(facts.effects):
        expected = 0 if kinds.get(job_id) == "quiet" or job_id not in archive else 1
        if facts.effects.get(job_id, 0) != expected and job_id not in told:
            yield f"{facts.effects.get(job_id, 0)} effects instead of {expected}", job_id


def in_events(facts: Facts) -> Iterable[tuple[str, str | None]]:
    """Return what no worker may tell, whatever dies."""
    for log in facts.logs.values():
        for line in log:
            if line["name"] in NEVER:
                yield f"{line['name']}: {line['text']}", line["job_id"]
