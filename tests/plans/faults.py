"""What is wrong with a plan."""

from collections.abc import Iterator

from tests.plans.explain import TID, Access, Plan

QUEUE_INDEX = "job_queue_process_at"
PRIMARY_KEYS = {"job_pkey", "archived_job_pkey", "PRIMARY", "sqlite_autoindex_job_1", "sqlite_autoindex_archived_job_1"}

_BY_QUEUE_AND_TIME = {
    "postgresql": "(((queue)::text = 'default'::text) AND (process_at <= statement_timestamp())"
    " AND (process_at >= '1000-01-01 00:00:00+00'::timestamp with time zone))",
    "mysql": "range 1030",  # the bytes of both columns
    "mariadb": "range 1030",
    "sqlite": "queue=? AND process_at<?",
}
_BY_QUEUE_ALONE = {"ref 1022"}
"""Just as good as long as all jobs of the queue are due."""


def faults_of_claim(plan: Plan, dialect: str, *, limit: int, all_due: bool) -> list[str]:
    """List why this is not one range scan of the index in its order, joined by primary key."""
    faults = list(_faults(plan))
    if plan.sorts:
        faults.append("sorts")
    by_queue = [access for access in plan.accesses if access.index == QUEUE_INDEX]
    good = {_BY_QUEUE_AND_TIME[dialect], *(_BY_QUEUE_ALONE if all_due else ())}
    if len(by_queue) > 1:
        faults.append("searches the queue more than once")
    for access in by_queue:
        if access.condition not in good:
            faults.append(f"searches by {access.condition}")
        if access.rows is not None and access.rows > limit:
            faults.append(f"reads {access.rows} rows for {limit}")
    return _with_plan(faults, plan)


def faults_by_key(plan: Plan) -> list[str]:
    """List why this does not search by primary key alone."""
    faults = list(_faults(plan))
    faults += [f"searches {access.index}" for access in plan.accesses if access.index not in PRIMARY_KEYS]
    return _with_plan(faults, plan)


def _faults(plan: Plan) -> Iterator[str]:
    if not plan.accesses:
        yield "reads no table: the plan was not understood"
    if plan.compiled:
        yield "is compiled first"
    yield from (f"reads all of {access.table}" for access in plan.accesses if not _searched(access))


def _searched(access: Access) -> bool:
    return access.index in {QUEUE_INDEX, TID, *PRIMARY_KEYS} and bool(access.condition)


def _with_plan(faults: list[str], plan: Plan) -> list[str]:
    return ["\n".join([*faults, plan.statement, plan.text])] if faults else []
