"""The state of a queued job, in Python and in queries: the same word on both sides, and one word for every job."""

import datetime as dt
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from proletarian_sa import Job, JobTables, ManualClock
from tests.observing import add, change, claim, lapse
from tests.plans import MIXES, QUEUE, QUEUE_INDEX, analyze, capture, explain, fill, replay
from tests.queue_contents import clock_of

STATES = ("due", "scheduled", "running", "lapsed")
START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def four_jobs(engine: sa.Engine, tables: JobTables) -> dict[str, Any]:
    """Bring a job into each state, and return their ids by state."""
    ids = {"lapsed": add(engine, tables=tables)}
    claim(engine, "lost", tables=tables)
    lapse(engine, ids["lapsed"], tables)
    ids["running"] = add(engine, tables=tables, queue="other")
    claim(engine, "alive", tables=tables, queue="other")
    ids["due"] = add(engine, tables=tables)
    ids["scheduled"] = add(engine, tables=tables, process_in=3600)
    return ids


@pytest.fixture(params=["the database's clock", "a clock of one's own"])
def tables(request: pytest.FixtureRequest, queue_engine: sa.Engine) -> JobTables:
    """Return the tables of the test's engine, with and without a clock."""
    return JobTables(clock=ManualClock(START) if "own" in request.param else None)


def test_each_state_has_its_jobs(queue_engine: sa.Engine, tables: JobTables):
    """`is_due`, `is_scheduled`, `is_running`, `is_lapsed` and `state` find the same job each, and say so of its instance."""
    ids = four_jobs(queue_engine, tables)
    job = tables.Job
    with Session(queue_engine) as session:
        for state in STATES:
            (by_state,) = session.scalars(sa.select(job).where(job.state == state))
            (by_flag,) = session.scalars(sa.select(job).where(getattr(job, f"is_{state}")))
            assert (ids[state], by_state) == (by_flag.job_id, by_flag)
            assert state == by_state.state
            assert [state] == [one for one in STATES if getattr(by_state, f"is_{one}")]


def test_every_row_has_one_state(queue_engine: sa.Engine, tables: JobTables):
    """Whatever stands in the columns, also what only a foreign hand writes, exactly one of the four is true."""
    now = tables.clock.now() if tables.clock else clock_of(queue_engine)
    past, future = now - dt.timedelta(hours=1), now + dt.timedelta(hours=1)
    for process_at in (past, future):
        for claimed_by in (None, "somebody"):
            for lease_until in (None, past, future):
                job_id = add(queue_engine, tables=tables)
                change(queue_engine, job_id, tables, process_at=process_at, claimed_by=claimed_by, lease_until=lease_until)
    job = tables.Job
    flags = [getattr(job, f"is_{state}") for state in STATES]
    with Session(queue_engine) as session:
        rows = session.execute(sa.select(job, job.state, *flags)).all()

    assert 12 == len(rows)
    for one, state, *held in rows:
        assert [state] == [name for name, flag in zip(STATES, held, strict=True) if flag]
        assert state == one.state
    assert {"due", "scheduled", "running", "lapsed"} == {row[1] for row in rows}


def test_counting_by_state(queue_engine: sa.Engine, tables: JobTables):
    """States are grouped, ordered and counted by the database, beside other columns and on an alias."""
    four_jobs(queue_engine, tables)
    add(queue_engine, tables=tables)
    job = tables.Job
    query = sa.select(job.queue, job.state, sa.func.count()).group_by(job.queue, job.state).order_by(job.queue, job.state)
    with Session(queue_engine) as session:
        counted = [tuple(row) for row in session.execute(query)]
        other = aliased(job)
        assert 2 == session.scalar(sa.select(sa.func.count()).select_from(other).where(other.state == "due"))

    assert [("default", "due", 2), ("default", "lapsed", 1), ("default", "scheduled", 1), ("other", "running", 1)] == counted


def test_the_clock_is_read_when_the_query_is_executed(queue_engine: sa.Engine):
    """A query made once says later what is true later; so does a loaded instance."""
    clock = ManualClock(START)
    tables = JobTables(clock=clock)
    add(queue_engine, tables=tables, process_in=60)
    query = sa.select(tables.Job.state)
    due = sa.select(tables.Job).where(tables.Job.is_due)
    with Session(queue_engine) as session:
        (job,) = session.scalars(sa.select(tables.Job))
        assert ("scheduled", ["scheduled"], []) == (job.state, session.scalars(query).all(), session.scalars(due).all())
        clock.tick(60)
        assert ("due", ["due"], [job]) == (job.state, session.scalars(query).all(), session.scalars(due).all())


def test_two_clocks_in_one_statement(queue_engine: sa.Engine):
    """Tables under different clocks can be asked in one statement; each has its own time."""
    early, late = JobTables(clock=ManualClock(START)), JobTables(clock=ManualClock(START + dt.timedelta(days=1)))
    add(queue_engine, tables=early, process_in=60)
    one, other = aliased(early.Job), aliased(late.Job)
    with queue_engine.connect() as connection:
        states = connection.execute(sa.select(one.state, other.state).where(one.job_id == other.job_id)).one()

    assert ("scheduled", "due") == tuple(states)


def test_a_job_that_is_not_flushed():
    """Before the flush a job for now is due, and one with a delay or a later time scheduled."""
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)

    assert "due" == Job(job_type="tick").state
    assert "due" == Job(job_type="tick", process_in=-1).state
    assert "scheduled" == Job(job_type="tick", process_in=5).state
    assert "scheduled" == Job(job_type="tick", process_at=later).state


def test_due_jobs_are_found_by_the_index(queue_engine: sa.Engine):
    """`Job.queue == … , Job.is_due` searches the index of the claims by queue and time, and reads no scheduled job."""
    with queue_engine.begin() as connection:
        fill(connection, 20_000, MIXES["one in a hundred due"])
    with queue_engine.begin() as connection:
        analyze(connection)
    query = sa.select(Job.job_id).where(Job.queue == QUEUE, Job.is_due).order_by(Job.process_at).limit(10)
    with queue_engine.connect() as connection:
        with capture(queue_engine) as captured:
            assert 10 == len(connection.execute(query).all())
        connection.rollback()
        (plan,) = replay(connection, captured, explain)

    (access,) = plan.accesses
    assert QUEUE_INDEX == access.index, plan.text
    assert any(words in access.condition for words in ("process_at", "range")), plan.text
    assert not plan.sorts, plan.text


def test_states_in_the_callers_transaction(queue_engine: sa.Engine, database: Any):
    """A query joins the caller's transaction: on a snapshot, a job enqueued since is in no state, and one of its own is."""
    database.require("row_locks")
    count = sa.select(sa.func.count()).where(Job.is_due)
    with Session(queue_engine) as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        assert 0 == session.scalar(count)
        add(queue_engine)
        assert 0 == session.scalar(count)
        session.add(Job(job_type="mine"))
        assert 1 == session.scalar(count.where(Job.job_type == "mine"))
        session.rollback()
        assert 1 == session.scalar(count)
