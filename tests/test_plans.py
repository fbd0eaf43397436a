"""The database reads what a statement is about and no more, however many jobs there are and whatever it believes of them."""

import datetime as dt
import uuid
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from proletarian_sa.claimed import ClaimedJob, Finish
from proletarian_sa.dialects import Statements, statements_for
from proletarian_sa.models import default_tables
from tests.plans import (
    MIXES,
    QUEUE,
    QUEUE_INDEX,
    Plan,
    analyze,
    believes_in_emptiness,
    capture,
    effort_of,
    explain,
    faults_by_key,
    faults_of_claim,
    fill,
    forget_statistics,
    replay,
)

LEASE = dt.timedelta(minutes=1)
LIMITS = (1, 10, 250)
SIZES = (20, 1000, 100_000)
MANY_POLLS = 30
"""So many that a driver has prepared the statement and the server has settled for a plan."""


@pytest.fixture
def own_engine(queue_engine: sa.Engine) -> sa.Engine:
    """Return the engine as a worker uses it, on tables of which the database takes no statistics by itself."""
    statements = statements_for(queue_engine.dialect, default_tables)
    with queue_engine.begin() as connection:
        forget_statistics(connection)
        options = statements.own_options(connection)
    return queue_engine.execution_options(**options)


@pytest.fixture
def statements(own_engine: sa.Engine) -> Statements:
    """Return the statements for this database."""
    return statements_for(own_engine.dialect, default_tables)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("rows", SIZES)
def test_claim_is_one_index_range_scan(own_engine: sa.Engine, statements: Statements, rows: int, mix: str) -> None:
    """SKIP LOCKED serialises: a claim reads the index on queue and time from the oldest due job on, and sorts nothing."""
    for _statistics in filled_with(own_engine, rows, mix):
        for limit in LIMITS:
            plans = plans_of(own_engine, lambda connection, limit=limit: claim(statements, connection, limit))
            faults = [
                fault
                for plan in plans
                for fault in faults_of_claim(plan, own_engine.dialect.name, limit=limit, all_due=MIXES[mix] == 100)
            ]

            assert [] == faults, "\n\n".join(faults)
            assert QUEUE_INDEX in {access.index for plan in plans for access in plan.accesses}


@pytest.mark.parametrize("rows", SIZES)
def test_jobs_in_hand_are_found_by_primary_key(own_engine: sa.Engine, statements: Statements, rows: int) -> None:
    """Heartbeat, archive, retry, release and look-up read the rows of their jobs and no others."""
    for _statistics in filled_with(own_engine, rows, "all due"):
        with own_engine.connect() as connection:
            jobs = claim(statements, connection, 10)
            connection.commit()
        for action in actions_on(statements, jobs).values():
            plans = plans_of(own_engine, action)

            faults = [fault for plan in plans for fault in faults_by_key(plan)]

            assert [] == faults, "\n\n".join(faults)
            assert plans


@pytest.mark.parametrize(
    ("jobs_in_hand", "analyzed", "small"),
    [(1, False, 0), (200, True, 20)],
    ids=["empty and never analyzed", "small and analyzed"],
)
def test_plan_of_an_idle_worker_survives_a_burst(
    own_engine: sa.Engine, statements: Statements, jobs_in_hand: int, analyzed: bool, small: int
) -> None:
    """A plan made for an empty or small table does not read all of a large one."""
    rows = 100_000
    with own_engine.begin() as connection:
        fill(connection, small, MIXES["all scheduled"])
    if analyzed:
        with own_engine.begin() as connection:
            analyze(connection)
    with own_engine.connect() as connection:
        ghosts = [ghost() for _ in range(jobs_in_hand)]
        for _ in range(MANY_POLLS):
            claim(statements, connection, jobs_in_hand)
            connection.commit()
            for action in actions_on(statements, ghosts).values():
                action(connection)
                connection.commit()
        with own_engine.connect() as other, other.begin():
            fill(other, rows - small, MIXES["all due"], first=small)
        jobs: list[ClaimedJob] = []
        efforts = {"claim": effort_of(connection, lambda: jobs.extend(claim(statements, connection, jobs_in_hand)))}
        connection.commit()
        for name, action in actions_on(statements, jobs).items():
            efforts[name] = effort_of(connection, lambda action=action: action(connection))
            connection.commit()  # at a rollback psycopg forgets what it has prepared

    assert jobs_in_hand == len(jobs)
    assert {} == {name: effort for name, effort in efforts.items() if effort > rows // 10}
    assert efforts["claim"] >= jobs_in_hand


def filled_with(engine: sa.Engine, rows: int, mix: str) -> Iterator[str]:
    """Fill the table, and yield at each state of the statistics."""
    with engine.begin() as connection:
        fill(connection, rows, MIXES[mix])
    yield "never analyzed"
    with engine.begin() as connection:
        analyze(connection)
    yield "fresh"
    with engine.begin() as connection:
        if not believes_in_emptiness(connection):
            return
        connection.execute(sa.delete(default_tables.job))
        connection.execute(sa.delete(default_tables.archived_job))
    with engine.begin() as connection:
        analyze(connection)
    with engine.begin() as connection:
        fill(connection, rows, MIXES[mix])
    yield "analyzed while empty"


def claim(statements: Statements, connection: sa.Connection, limit: int) -> list[ClaimedJob]:
    """Claim jobs of the filled queue."""
    return statements.claim(connection, queue=QUEUE, token=uuid.uuid4().hex, lease=LEASE, limit=limit)


def actions_on(statements: Statements, jobs: list[ClaimedJob]) -> dict[str, Callable[[sa.Connection], object]]:
    """Return by name what a worker does with jobs in hand."""
    one = jobs[0]
    finishes = [Finish(job=job, status="success") for job in jobs]
    return {
        "heartbeat": lambda connection: statements.heartbeat(connection, jobs, lease=LEASE),
        "archive": lambda connection: statements.archive(connection, finishes),
        "archive, one lost": lambda connection: statements.archive(connection, [*finishes, Finish(ghost(), "success")]),
        "succeed": lambda connection: statements.succeed(connection, jobs, new=True),
        "succeed, one lost": lambda connection: statements.succeed(connection, [*jobs, ghost()], new=True),
        "retry": lambda connection: statements.retry(connection, one, delay=LEASE, error="broken"),
        "release": lambda connection: statements.release(connection, one),
        "postpone": lambda connection: statements.release(connection, one, delay=LEASE, note="unknown"),
        "own": lambda connection: statements.own(connection, one),
        "last_error": lambda connection: statements.last_error(connection, one.job_id),
        "archived_as": lambda connection: statements.archived_as(connection, one),
    }


def plans_of(engine: sa.Engine, action: Callable[[sa.Connection], object]) -> list[Plan]:
    """Return the plans of the statements about jobs that an action sends, rolled back."""
    with engine.connect() as connection:
        with capture(engine) as captured:
            action(connection)
        connection.rollback()
        return replay(connection, captured, explain)


def ghost() -> ClaimedJob:
    """Return a job in hand that is not in the table."""
    now = dt.datetime.now(dt.UTC)
    return ClaimedJob(
        job_id=uuid.uuid4(),
        queue=QUEUE,
        job_type="any",
        payload_text="{}",
        attempts=1,
        crashes=0,
        enqueued=now,
        due=now,
        token="nobody's",  # noqa: S106 - names a claim
    )
