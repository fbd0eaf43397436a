"""Times between parties that think differently of them: zones, fractions of a second, naive datetimes."""

import datetime as dt
import json
import os
import subprocess
import sys
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import ArchivedJob, Job, enqueue, enqueue_many, process_next_job
from tests.observing import PATIENCE
from tests.programs.elsewhere import use_zone
from tests.queue_contents import archived, clock_of, queued, queued_ids
from tests.stress.processes import REPOSITORY

SOON = 0.5
RETRY_DELAY = 0.2
"""Seconds."""
MILLISECOND = dt.timedelta(milliseconds=1)


def start(tz: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a process in a time zone."""
    command = [sys.executable, "-m", "tests.programs.zoned", *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "TZ": tz}, stdout=subprocess.PIPE, text=True)


def answer(process: "subprocess.Popen[str]") -> dict:
    """Return what a process prints before it ends."""
    text, _ = process.communicate(timeout=3 * PATIENCE)
    assert 0 == process.returncode
    return json.loads(text)


def at(text: str) -> dt.datetime:
    """Return a moment that a process printed."""
    return dt.datetime.fromisoformat(text)


def test_everybody_in_another_time_zone(database, queue_engine):
    """Time zones differ between parties: jobs for now, soon and in an hour, and a retry, run at the right instant everywhere.

    Enqueuer in Tokyo, worker in New York, sessions at three other offsets; soon is half a second, not five.
    """
    worker = start("America/New_York", "work", database.url_text, "-03:30", RETRY_DELAY)
    enqueuer = start("Asia/Tokyo", "enqueue", database.url_text, "+05:30", SOON)
    try:
        enqueued, worked = answer(enqueuer), answer(worker)
    finally:
        for process in (worker, enqueuer):
            process.kill()
            process.wait()
    given, read = ({name: at(text) for name, text in enqueued[key].items()} for key in ("given", "read"))
    runs = {(run["job_type"], run["attempts"]): run for run in worked["runs"]}
    engine = database.create_engine()
    use_zone(engine, "+09:00")
    with Session(engine) as session:
        done = {job.job_type: job for job in session.scalars(sa.select(ArchivedJob))}
        (left,) = session.scalars(sa.select(Job)).all()

    assert ("JST", True) == (enqueued["zone"], worked["zone"] in {"EST", "EDT"})
    assert {("now", 1), ("soon", 1), ("soon", 2)} == set(runs)
    assert all(read[name] == given[name] for name in read if name != "now")
    assert ["UTC"] == enqueued["utc"]
    first, again = runs["soon", 1], runs["soon", 2]
    assert given["soon"] == at(first["process_at"]) <= at(first["ran"])
    assert at(runs["now", 1]["ran"]) < given["soon"] + dt.timedelta(seconds=PATIENCE)
    failed = at(first["ran"])
    assert failed + dt.timedelta(seconds=RETRY_DELAY) <= at(again["process_at"]) <= at(again["ran"])
    assert at(again["process_at"]) < failed + dt.timedelta(seconds=RETRY_DELAY + PATIENCE)
    assert at(again["process_at"]) == done["soon"].process_at
    assert ("hour", given["hour"], dt.UTC) == (left.job_type, left.process_at, left.process_at.tzinfo)
    assert {dt.UTC} == {job.finished_at.tzinfo for job in done.values()}
    assert at(again["ran"]) <= done["soon"].finished_at < clock_of(queue_engine)


def test_fractions_of_a_second(queue_engine):
    """Sub-second precision: what the producer reads equals what handler and archive see; jobs a millisecond apart keep order."""
    base = clock_of(queue_engine).replace(microsecond=123_456) - dt.timedelta(hours=1)
    with Session(queue_engine) as session:
        jobs = [Job(job_type="work", payload=number) for number in range(3)]
        session.add_all(jobs)
        session.commit()
        produced = {job.job_id: (job.enqueued_at, job.process_at) for job in jobs}
        found = sa.select(Job.job_id).where(Job.process_at == jobs[0].process_at)
        assert jobs[0].job_id in session.scalars(found).all()
    handled = {}
    handler = lambda job: handled.update({job.job_id: (job.enqueued_at, job.process_at)})  # noqa: E731
    while process_next_job(queue_engine, handler, handler_mode="advanced"):
        pass

    assert produced == handled
    assert produced == {row.job_id: (row.enqueued_at, row.process_at) for row in archived(queue_engine)}

    later = base + dt.timedelta(days=1)
    with queue_engine.begin() as connection:
        for number in (2, 0, 3, 1):
            enqueue(connection, "tick", number, process_at=later + number * MILLISECOND)
    assert [("0", later), ("1", later + MILLISECOND)] == [(row.payload, row.process_at) for row in queued(queue_engine)][:2]
    assert ["0", "1", "2", "3"] == [row.payload for row in queued(queue_engine)]


WAYS = {
    "model": lambda session, moment: session.add(Job(job_type="tick", process_at=moment)),
    "session": lambda session, moment: enqueue(session, "tick", process_at=moment),
    "connection": lambda session, moment: enqueue(session.connection(), "tick", process_at=moment),
    "many": lambda session, moment: enqueue_many(session, [{"job_type": "tick", "process_at": moment}]),
    "stream": lambda session, moment: enqueue_many(session, iter([{"job_type": "tick", "process_at": moment}])),
}


def test_naive_datetimes(queue_engine):
    """Naive datetimes: refused with what to type, as are dates; aware ones of any zone and fold are exact, and come back in UTC."""
    berlin = ZoneInfo("Europe/Berlin")
    moments = [dt.datetime(2040, 10, 28, 2, 30, 0, 1, tzinfo=berlin, fold=fold) for fold in (0, 1)]
    moments.append(dt.datetime(2040, 10, 28, 2, 30, tzinfo=dt.timezone(dt.timedelta(hours=-9, minutes=-30))))
    with Session(queue_engine) as session:
        for way in WAYS.values():
            for bad, error, message in [
                (dt.datetime(2040, 1, 1), ValueError, "process_at.*is naive"),  # noqa: DTZ001 - the point
                (dt.date(2040, 1, 1), TypeError, "process_at"),
                ("2040-01-01T00:00:00+00:00", TypeError, "process_at"),
            ]:
                with pytest.raises(error, match=message):
                    way(session, bad)
            session.commit()
            assert set() == queued_ids(queue_engine)
            for moment in moments:
                way(session, moment)
            session.commit()
            read = session.scalars(sa.select(Job.process_at).order_by(Job.process_at)).all()
            loaded = [job.process_at for job in session.scalars(sa.select(Job).order_by(Job.process_at))]
            session.execute(sa.delete(Job))
            session.commit()

            assert [dt.datetime(2040, 10, 28, hour, 30, 0, 1, tzinfo=dt.UTC) for hour in (0, 1)] == read[:2]
            assert [moments[2]] == read[2:]
            assert read == loaded
            assert {(dt.datetime, dt.UTC)} == {(type(moment), moment.tzinfo) for moment in [*read, *loaded]}
