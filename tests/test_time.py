"""Times are exact to the microsecond, in UTC, by one clock: the database's, unless another is given."""

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import Job, JobTables, ManualClock, RetryStrategy, create_all, enqueue, enqueue_many, process_next_job
from tests.programs.elsewhere import FIXED, use_zone
from tests.queue_contents import archived, clock_of, queued, run_due

LAST = dt.datetime.max.replace(tzinfo=dt.UTC)
NOON = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
TEN_MINUTES, HOUR, MICROSECOND = dt.timedelta(minutes=10), dt.timedelta(hours=1), dt.timedelta(microseconds=1)


def elsewhere(
    database: Any, *, before: tuple[str, ...] = (), zone: str = "+00:00", tz: str = "UTC", **options: str
) -> dict[str, Any]:
    """Run the program in a process with a time zone of its own, and return what it printed, with times as datetimes."""
    argument = json.dumps({"url": database.url_text, "zone": zone, **options})
    done = subprocess.run(
        [*before, sys.executable, "-m", "tests.programs.elsewhere", argument],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "TZ": tz, "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    printed: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    for jobs in printed.values():
        for job in jobs:
            job |= {name: dt.datetime.fromisoformat(job[name]) for name in ("enqueued_at", "process_at")}
    return printed


def test_microseconds_are_kept_everywhere(queue_engine: sa.Engine):
    """Sub-second precision: due times a microsecond apart stay apart, in order, and come back as aware UTC from every place."""
    start = dt.datetime(2001, 2, 3, 4, 5, 6, 999_998, tzinfo=ZoneInfo("Asia/Kolkata"))
    tables = JobTables(clock=ManualClock(start))
    moments = [start + MICROSECOND * number for number in range(5)]
    with Session(queue_engine) as session, session.begin():
        for number in (3, 0, 4, 1, 2):
            enqueue(session, "tick", number, process_at=moments[number], tables=tables)
        enqueue_many(session, [{"job_type": "many", "queue": "many", "process_at": moments[2]}], tables=tables)
    with Session(queue_engine) as session:
        loaded = session.scalars(sa.select(tables.Job).where(tables.Job.queue == "default").order_by(tables.Job.process_at)).all()
        assert moments == [job.process_at for job in loaded]
        assert {dt.UTC} == {time.tzinfo for job in loaded for time in (job.process_at, job.enqueued_at)}
        assert 1 == session.scalar(
            sa.select(sa.func.count()).where(tables.Job.process_at == moments[2], tables.Job.queue == "many")
        )

    tables.clock.set(moments[4])
    jobs = run_due(queue_engine, tables=tables)
    assert list(zip(range(5), moments, strict=True)) == [(job.payload, job.process_at) for job in jobs]
    assert {(start, dt.UTC)} == {(job.enqueued_at, job.process_at.tzinfo) for job in jobs}
    assert moments == [row.process_at for row in archived(queue_engine, tables)]
    assert {moments[4]} == {row.finished_at for row in archived(queue_engine, tables)}


def test_now_is_now(queue_engine: sa.Engine):
    """Sub-second precision: a job for now is due at the very next poll, no clock rounds it into the future."""
    with Session(queue_engine) as session:
        for number in range(15):
            if number % 2:
                session.add(Job(job_type="tick"))
            else:
                enqueue(session.connection(), "tick")
            session.commit()
            assert 1 == len(run_due(queue_engine))


def test_the_repeated_hour_is_exact(queue_engine: sa.Engine):
    """Naive and folded datetimes: times of the hour that a clock change repeats keep their instant."""
    zone = ZoneInfo("Europe/Berlin")
    folds = [dt.datetime(2040, 10, 28, 2, 30, tzinfo=zone, fold=fold) for fold in (0, 1)]
    with Session(queue_engine) as session, session.begin():
        for moment in folds:
            enqueue(session, "tick", process_at=moment)

    first, second = (row.process_at for row in queued(queue_engine))
    assert dt.datetime(2040, 10, 28, 0, 30, tzinfo=dt.UTC) == first
    assert HOUR == second - first


def test_processes_in_three_time_zones(queue_engine: sa.Engine, database: Any):
    """Time zones differ between parties: those of producer, worker, reader and their database sessions change no instant."""
    before = clock_of(queue_engine)
    enqueued = elsewhere(database, tz="Asia/Tokyo", zone="-05:00", enqueue="zones")["enqueued"]
    after = clock_of(queue_engine)
    ran = elsewhere(database, tz="America/New_York", zone="+09:00", run="zones")["ran"]
    engine = database.create_engine()
    use_zone(engine, "+05:30")
    with Session(engine) as session:
        left = session.scalars(sa.select(Job).order_by(Job.process_at)).all()

    by_type: dict[str, list[dict[str, Any]]] = {}
    for job in enqueued:
        by_type.setdefault(job["job_type"], []).append(job)
        assert before <= job["enqueued_at"] <= after
        assert "UTC" == job["enqueued_at"].tzname() == job["process_at"].tzname()
    for job in by_type["now"] + by_type["past"]:
        assert before <= job["process_at"] <= after
    for job in by_type["in an hour"]:
        assert before + HOUR <= job["process_at"] <= after + HOUR
    assert [FIXED] * 2 == [job["process_at"] for job in by_type["fixed"]]
    # The worker saw the same instants, of the jobs that were due only.
    by_id = {job["job_id"]: job for job in enqueued}
    assert ["now", "now", "past"] == sorted(job["job_type"] for job in ran)
    assert [by_id[job["job_id"]] for job in ran] == ran
    assert ["in an hour"] * 2 + ["fixed"] * 2 == [job.job_type for job in left]
    for job in left:
        assert by_id[str(job.job_id)]["process_at"] == job.process_at
        assert dt.UTC is job.process_at.tzinfo


@pytest.mark.parametrize("zone", ["+09:00", "-11:00"])
def test_the_last_moment_of_time(database: Any, queue_engine: sa.Engine, zone: str):
    """Year 9999 ends in UTC, also for sessions in whose zone it is year 10000 by then."""
    engine = database.create_engine()
    use_zone(engine, zone)
    with Session(engine) as session:
        job = Job(job_type="tick", process_at=LAST)
        session.add(job)
        session.commit()
        assert LAST == job.process_at
        enqueue(session.connection(), "tick", process_at=LAST)
        enqueue_many(session, [{"job_type": "tick", "process_at": LAST}])
        session.commit()
        assert [LAST] * 3 == session.scalars(sa.select(Job.process_at)).all()
        assert [LAST] * 3 == [loaded.process_at for loaded in session.scalars(sa.select(Job))]
    assert [] == run_due(engine)

    tables = JobTables(clock=ManualClock(LAST - HOUR))
    with engine.begin() as connection:
        enqueue(connection, "late", process_in=3599, queue="late", tables=tables)
        enqueue(connection, "late", queue="late", tables=tables)
    assert [LAST - HOUR] == [job.process_at for job in run_due(engine, tables=tables, queue="late")]
    assert [LAST - HOUR] == [row.finished_at for row in archived(engine)]


def test_a_host_clock_ten_minutes_fast(queue_engine: sa.Engine, database: Any):
    """The host's clock does not count where the database has one of its own; on SQLite it is the only one there is."""
    if shutil.which("faketime") is None:
        pytest.skip("no faketime")
    with queue_engine.begin() as connection:
        enqueue(connection, "in five minutes", queue="main", process_in=300)
    before = clock_of(queue_engine)
    done = elsewhere(database, before=("faketime", "-f", "+10m"), run="main", enqueue="fast")
    after = clock_of(queue_engine)

    off = dt.timedelta() if database.server else TEN_MINUTES
    slack = dt.timedelta() if database.server else dt.timedelta(seconds=1)
    delays = {"now": off, "in an hour": off + HOUR, "past": off}
    for job in done["enqueued"]:
        assert before + off - slack <= job["enqueued_at"] <= after + off + slack
        if job["job_type"] in delays:
            delay = delays[job["job_type"]]
            assert before + delay - slack <= job["process_at"] <= after + delay + slack
        else:
            assert FIXED == job["process_at"]
    # A worker ahead of the time starts nothing early, and one with the right time waits for nothing.
    assert ([] if database.server else ["in five minutes"]) == [job["job_type"] for job in done["ran"]]
    assert (3 if database.server else 0) == len(run_due(queue_engine, queue="fast"))


def test_a_clock_that_steps_back_loses_no_job(engine: sa.Engine):
    """When the clock steps back, jobs wait until it says that they are due, and run then; new ones are due at once."""
    clock = ManualClock(NOON)
    tables = JobTables(clock=clock)
    create_all(engine, tables=tables)
    with engine.begin() as connection:
        enqueue(connection, "before", tables=tables)
        clock.tick(-TEN_MINUTES)
        enqueue(connection, "after", tables=tables)
        enqueue(connection, "a second after", process_in=1, tables=tables)

    assert ["after"] == [job.job_type for job in run_due(engine, tables=tables)]
    clock.tick(1)
    assert ["a second after"] == [job.job_type for job in run_due(engine, tables=tables)]
    clock.set(NOON - MICROSECOND)
    assert [] == run_due(engine, tables=tables)
    clock.tick(MICROSECOND)
    assert ["before"] == [job.job_type for job in run_due(engine, tables=tables)]
    assert [] == queued(engine, tables)


def test_a_clock_that_steps_back_while_a_job_runs(engine: sa.Engine):
    """A job that runs while the clock steps back is finished, or retried after its delay by the new time."""
    clock = ManualClock(NOON)
    tables = JobTables(clock=clock)
    create_all(engine, tables=tables)
    runs: list[dt.datetime] = []

    def handler(_job_type: str, _payload: Any) -> None:
        runs.append(clock.tick(-TEN_MINUTES))
        if len(runs) == 1:
            raise ValueError

    def step() -> str | None:
        retry = RetryStrategy(retries=1, delays=[60])
        outcome = process_next_job(engine, handler, tables=tables, retry=retry, on_event=lambda _event: None)
        return outcome and outcome.status

    with engine.begin() as connection:
        enqueue(connection, "tick", tables=tables)

    assert "retrying" == step()
    assert NOON - TEN_MINUTES + dt.timedelta(minutes=1) == queued(engine, tables)[0].process_at
    assert None is step()
    clock.tick(60)
    assert "succeeded" == step()
    assert [NOON - TEN_MINUTES, NOON - TEN_MINUTES * 2 + dt.timedelta(minutes=1)] == runs
    assert [runs[1]] == [row.finished_at for row in archived(engine, tables)]


def test_an_injected_clock_is_the_only_one(engine: sa.Engine):
    """`:clock`: with a clock of the caller's every time is that clock's, whichever way the job is enqueued."""
    clock = ManualClock(NOON)
    tables = JobTables(clock=clock)
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        job = tables.Job(job_type="added", process_in=60)
        assert (NOON, NOON + dt.timedelta(minutes=1)) == (job.enqueued_at, job.process_at)
        session.add(job)
        session.add(tables.Job(job_type="past", process_at=NOON - HOUR))
        enqueue(session.connection(), "core", process_in=-5, tables=tables)
        enqueue_many(session, [{"job_type": "many", "process_in": 60}], tables=tables)

    expected = {"added": NOON + dt.timedelta(minutes=1), "past": NOON, "core": NOON, "many": NOON + dt.timedelta(minutes=1)}
    assert expected == {row.job_type: row.process_at for row in queued(engine, tables)}
    assert {NOON} == {row.enqueued_at for row in queued(engine, tables)}
