"""Claims that spread over the due jobs, as those on several nodes of a cluster do once they have undone each other."""

import datetime as dt
import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import enqueue_many, events, process_next_job
from proletarian_sa.claimed import ClaimedJob
from proletarian_sa.spread import Spread
from tests.field_cases.refusals import Refusal
from tests.observing import Recorder, add, claim, lapse, statements
from tests.plans import MIXES, QUEUE, analyze, capture, effort_of, fill
from tests.queue_contents import archived, queued

CLAIM = re.compile("crashes=CASE")
"""What only a claim writes so."""


def widened(times: int = 1) -> Spread:
    """Return a spread after so many lost races."""
    spread = Spread()
    for _ in range(times):
        spread.lost()
    return spread


def spread_claim(engine: sa.Engine, spread: Spread | None, *, limit: int = 3) -> list[ClaimedJob]:
    """Claim jobs as a worker on a cluster does, and commit."""
    with engine.connect() as connection:
        found = claim_on(connection, spread, limit=limit)
        connection.commit()
    return found


def claim_on(connection: sa.Connection, spread: Spread | None, *, limit: int = 3, queue: str = "default") -> list[ClaimedJob]:
    """Claim jobs in the transaction of a connection."""
    lease, token = dt.timedelta(hours=1), uuid.uuid4().hex
    return statements(connection.engine).claim(connection, queue=queue, token=token, lease=lease, limit=limit, spread=spread)


def require_spread(engine: sa.Engine) -> None:
    """Skip the test where claims always take the oldest jobs."""
    if not hasattr(statements(engine), "_look"):
        pytest.skip("no claims that spread: row locks keep them apart, or there is one writer")


@pytest.mark.parametrize(
    ("lost", "won", "times"),
    [(0, 0, 1), (0, 500, 1), (1, 0, 16), (2, 0, 32), (9, 0, 128), (1, 99, 16), (1, 100, 1), (2, 100, 16), (2, 200, 1)],
)
def test_a_spread_is_as_wide_as_races_call_for(lost: int, won: int, times: int) -> None:
    """Each lost race doubles the number of jobs to choose from, up to a limit; a hundred calm claims halve it."""
    spread = widened(lost)
    for _ in range(won):
        spread.won()

    assert times == spread.times


def test_a_lost_race_begins_the_count_of_calm_claims_anew() -> None:
    """A spread stays while races are lost now and then."""
    spread = widened()
    for _ in range(99):
        spread.won()
    spread.lost()
    spread.won()

    assert 32 == spread.times


@pytest.mark.parametrize(("lost", "limit", "width"), [(1, 1, 16), (1, 10, 160), (9, 10, 1280), (9, 100, 2000), (9, 5000, 5000)])
def test_a_claim_looks_at_a_bounded_number_of_rows(lost: int, limit: int, width: int) -> None:
    """Claims of many jobs choose from fewer times as many."""
    assert width == widened(lost).width(limit)


def test_jobs_are_chosen_as_neighbours_from_all_over() -> None:
    """Every choice is a run of neighbours, and each place has its turn; of fewer than wanted all are taken."""
    spread, found = widened(), list(range(16))
    starts = set()
    for _ in range(2000):
        chosen = spread.choose(found, 3)
        starts.add(chosen[0])
        assert list(range(chosen[0], chosen[0] + 3)) == chosen

    assert set(range(14)) == starts
    assert [1, 2] == spread.choose([1, 2], 3)
    assert [] == spread.choose([], 3)


def test_spread_claims_take_each_job_once(queue_engine: sa.Engine) -> None:
    """However claims spread, each takes as many due jobs as it may, oldest first, and together they take all."""
    with queue_engine.begin() as connection:
        ids = enqueue_many(connection, [{"job_type": "work"}] * 40)
        enqueue_many(connection, [{"job_type": "work", "process_in": 3600}, {"job_type": "work", "queue": "other"}])
    taken = [spread_claim(queue_engine, widened()) for _ in range(14)]

    assert [3] * 13 + [1] == [len(jobs) for jobs in taken]
    assert sorted(ids) == sorted(job.job_id for jobs in taken for job in jobs)
    assert all(jobs == sorted(jobs, key=lambda job: job.process_at) for jobs in taken)
    assert {1} == {job.attempts for jobs in taken for job in jobs}
    assert [] == spread_claim(queue_engine, widened())


def test_a_spread_claim_leaves_the_oldest_to_others(queue_engine: sa.Engine) -> None:
    """Where locks may not keep claims apart, claims that spread begin at different jobs."""
    require_spread(queue_engine)
    with queue_engine.begin() as connection:
        ids = enqueue_many(connection, [{"job_type": "work"}] * 16)
    first = []
    for _ in range(25):
        with queue_engine.connect() as connection:
            (job,) = claim_on(connection, widened(), limit=1)
            connection.rollback()
        first.append(job.job_id)

    assert len(set(first)) > 3
    assert set(first) <= set(ids)


def test_a_spread_claim_takes_a_lapsed_job_alone(queue_engine: sa.Engine) -> None:
    """A job that may have killed its worker takes no others along, wherever it is among those chosen."""
    ids = [add(queue_engine) for _ in range(3)]
    (job,) = claim(queue_engine, "victim", limit=1)
    lapse(queue_engine, job.job_id)
    taken = [spread_claim(queue_engine, widened(), limit=5) for _ in range(2)]

    assert [[job.job_id], sorted(set(ids) - {job.job_id})] == [sorted(each.job_id for each in jobs) for jobs in taken]
    assert [1, 0, 0] == [each.crashes for jobs in taken for each in jobs]


def test_a_spread_claim_skips_what_others_are_claiming(database, queue_engine: sa.Engine) -> None:
    """A row that somebody has locked is left out, and not waited for."""
    database.require("row_locks")
    add(queue_engine)
    with queue_engine.connect() as other:
        found = claim_on(other, None, limit=1)
        mine = spread_claim(queue_engine.execution_options(**statements(queue_engine).own_options(other)), widened())

    assert (1, []) == (len(found), mine)


def test_a_spread_claim_leaves_what_others_have_claimed_since_it_looked(database, queue_engine: sa.Engine) -> None:
    """Jobs are looked at without locks, so whether they are due is asked again of those that are locked."""
    require_spread(queue_engine)
    for _ in range(4):
        add(queue_engine)
    engine = database.create_engine(isolation_level="READ COMMITTED")
    others: list[ClaimedJob] = []

    @sa.event.listens_for(engine, "after_cursor_execute")
    def overtake(*_: object) -> None:
        if not others:
            others.extend(claim(queue_engine, "other", limit=3))

    mine = spread_claim(engine, widened(), limit=4)

    assert (3, 1) == (len(others), len(mine))
    assert set() == {job.job_id for job in others} & {job.job_id for job in mine}


def test_a_spread_claim_that_finds_nothing_is_one_statement(queue_engine: sa.Engine) -> None:
    """An idle worker on a cluster asks once a poll, too."""
    spread_claim(queue_engine, widened())
    with capture(queue_engine) as captured:
        assert [] == spread_claim(queue_engine, widened())

    assert 1 == len([one for one in captured if one.of_jobs])


@pytest.mark.parametrize("mix", MIXES)
def test_a_spread_claim_reads_no_more_than_it_chooses_from(queue_engine: sa.Engine, mix: str) -> None:
    """A claim that spreads over 48 jobs reads about as many rows, however many jobs there are, due or scheduled."""
    with queue_engine.begin() as connection:
        fill(connection, 20_000, MIXES[mix])
        options = statements(queue_engine).own_options(connection)
    taken: list[ClaimedJob] = []
    engine = queue_engine.execution_options(**options)
    for analyzed in (False, True):
        if analyzed:
            with queue_engine.begin() as connection:
                analyze(connection)
        with engine.connect() as connection:
            for _ in range(3):
                effort = effort_of(connection, lambda on=connection: taken.extend(claim_on(on, widened(), queue=QUEUE)))
                connection.commit()

                assert 500 > effort

    assert (18 if MIXES[mix] else 0) == len(taken)


@pytest.mark.parametrize("point", [CLAIM, re.compile("^COMMIT$")])
def test_a_worker_tries_a_lost_race_again_at_once(
    database, queue_engine: sa.Engine, work: Callable[..., Any], point: re.Pattern[str]
) -> None:
    """Another node's claim may undo one: that is nothing to warn of, and the next claim does not wait."""
    database.require("row_locks")
    engine = database.create_engine()
    refusal = Refusal(engine, queue_engine)
    worker, seen = work(lambda _job: None, engine=engine)
    worker.start()
    seen.wait_for(events.WorkerStarted)
    refusal.arm("deadlock", point)
    job_id = add(queue_engine)
    seen.wait_for(events.JobSucceeded)
    (met,) = seen.of(events.TransientErrorMet)

    assert (0, 0.0) == (met.consecutive, met.retry_in.total_seconds())
    assert [] == seen.of(events.Recovered)
    assert [(job_id, 1)] == [(row.job_id, row.attempts) for row in archived(queue_engine)]


def test_a_worker_waits_when_it_loses_every_race(database, queue_engine: sa.Engine, work: Callable[..., Any]) -> None:
    """Deadlocks without end are an outage like any other: warned of, and waited out."""
    database.require("row_locks")
    engine = database.create_engine()
    refusals = [Refusal(engine, queue_engine) for _ in range(5)]
    worker, seen = work(lambda _job: None, engine=engine)
    worker.start()
    seen.wait_for(events.WorkerStarted)
    for refusal in refusals:
        refusal.arm("deadlock", CLAIM)
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)
    met = seen.of(events.TransientErrorMet)

    assert [0, 0, 0, 1, 2] == [event.consecutive for event in met]
    assert [True] * 3 + [False] * 2 == [event.retry_in.total_seconds() == 0 for event in met]
    assert [5] == [event.failures for event in seen.of(events.Recovered)]


@pytest.mark.parametrize(("races", "succeeds"), [(4, True), (5, False)])
def test_a_step_tries_lost_races_again(database, queue_engine: sa.Engine, races: int, succeeds: bool) -> None:
    """`process_next_job` claims again when another node's claim has undone its own, five times in all."""
    database.require("row_locks")
    engine = database.create_engine()
    job_id = add(queue_engine)
    seen = Recorder()
    for refusal in [Refusal(engine, queue_engine) for _ in range(races)]:
        refusal.arm("deadlock", CLAIM)

    def step() -> Any:
        return process_next_job(engine, lambda _job: None, handler_mode="advanced", on_event=seen)

    if succeeds:
        assert "succeeded" == step().status
        assert [job_id] == [row.job_id for row in archived(queue_engine)]
    else:
        with pytest.raises(sa.exc.DBAPIError):
            step()
        assert [(job_id, 0, None)] == [(row.job_id, row.attempts, row.claimed_by) for row in queued(queue_engine)]
