"""Jobs that are lost, stuck or dropped: a worker that is killed, rows that nobody can read, servers that are too old."""

import datetime as dt
import logging
import os
import signal
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import (
    DatabaseNotSupported,
    JobRegistry,
    JobTables,
    ManualClock,
    PayloadError,
    RetryStrategy,
    TablesMissing,
    check_tables,
    enqueue,
    events,
    process_next_job,
)
from proletarian_sa.log import log_event
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, add, clocked_tables
from tests.queue_contents import archived, queued
from tests.stress import tables as marks
from tests.stress.processes import python
from tests.stress.victim import KILLER, NAME, make_jobs

pytestmark = pytest.mark.long

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
LEASE = 0.5
"""Seconds."""


def test_a_killed_worker_that_comes_back_under_its_name(database, queue_engine, work, tmp_path):
    """Lost job, worker killed and its identity reused: the successor of the same name runs the job again, and it is archived once.

    A lease of half a second, not a minute.
    """
    marks.metadata.create_all(queue_engine)
    sign = tmp_path / "sign"
    job_id = add(queue_engine, KILLER)
    arguments = [database.url_text, "in the handler", str(sign), str(LEASE)]
    with python("-m", "tests.stress.victim", *arguments, output=tmp_path / "output") as victim:
        wait_until(sign.exists, timeout=PATIENCE)
        (before,) = queued(queue_engine)
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait(PATIENCE)
    jobs = make_jobs(marks.patient_engine(database.url_text, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool))
    worker, seen = work(jobs, handler_mode="default", worker_id=NAME)
    worker.start()
    seen.wait_for(events.JobSucceeded, job_id=job_id)

    assert before.claimed_by.startswith(NAME + "#")
    assert [] == queued(queue_engine)
    (row,) = archived(queue_engine)
    assert (job_id, "success", 1, 1) == (row.job_id, row.status, row.attempts, row.crashes)
    with queue_engine.connect() as connection:
        assert [str(job_id)] * 2 == connection.scalars(sa.select(marks.runs.c.job_id)).all()
        assert [str(job_id)] == connection.scalars(sa.select(marks.effects.c.job_id)).all()


@pytest.mark.async_workers(plain=True)
def test_two_workers_of_one_name(database, queue_engine, work):
    """Lost job, worker identity reused: two live workers with one id neither steal from each other nor block each other."""
    tables = clocked_tables(clock := ManualClock(START))
    gate, quick, seen = Gate(), [], Recorder()

    def handler(job):
        if job.job_type == "long":
            gate(job)
        else:
            quick.append(job.job_id)

    options = {"worker_id": "same", "lease": 2, "tables": tables, "on_event": seen}
    first, second, third = (work(handler, database.create_engine(), **options)[0] for _ in range(3))
    long = {add(queue_engine, "long", tables=tables) for _ in range(2)}
    try:
        first.start()
        second.start()
        assert long == {gate.begun.get(timeout=PATIENCE).job_id for _ in range(2)}
        tokens = {row.claimed_by for row in queued(queue_engine, tables)}
        leases = {row.job_id: row.lease_until for row in queued(queue_engine, tables)}
        clock.tick(1)
        wait_until(lambda: all(row.lease_until > leases[row.job_id] for row in queued(queue_engine, tables)))
        assert 1 == len(first.stop(0))  # its job goes on
        third.start()
        waiting = {add(queue_engine, "quick", tables=tables) for _ in range(3)}
        for job_id in waiting:
            seen.wait_for(events.JobSucceeded, job_id=job_id)
    finally:
        gate.open.set()
    for job_id in long:
        seen.wait_for(events.JobSucceeded, job_id=job_id)

    assert 2 == len(tokens)
    assert waiting == set(quick)
    assert {("success", 1, None)} == {(row.status, row.attempts, row.crashes) for row in archived(queue_engine, tables)}
    assert [] == seen.of(events.JobLeaseLost)
    assert 5 == len(seen.of(events.JobStarted))


UNREADABLE = {
    "of an unknown type": ("renamed-away", '{"to": "a@b.c"}'),
    "broken": ("known", '{"to": '),
    "with an unknown tag": ("known", '{"$no-such-tag": [1]}'),
}


def put_by_hand(engine, tables):
    """Insert the rows that nobody can read, behind the library's back; return the texts of their payloads."""
    now = tables.clock.now()
    with engine.begin() as connection:
        for job_type, payload in UNREADABLE.values():
            values = {"job_id": tables.job_ids.new(), "queue": "default", "job_type": job_type, "payload": payload}
            connection.execute(sa.insert(tables.job).values(**values, attempts=0, enqueued_at=now, process_at=now))
    return sorted(payload for _, payload in UNREADABLE.values())


def read_everything(engine, tables, model):
    """Look at all rows in the ways there are, and return those of which the payload cannot be read."""
    unreadable = []
    with Session(engine) as session:
        for row in session.scalars(sa.select(model)):
            assert repr(row)
            assert session.get(model, row.job_id) is row
            try:
                assert row.payload == row.payload
            except PayloadError:
                unreadable.append(row.payload_text)
        assert session.scalar(sa.select(sa.func.count()).select_from(model)) >= len(unreadable)
        assert not session.dirty
        session.commit()
    check_tables(engine, tables=tables)
    return sorted(unreadable)


@pytest.mark.async_workers
def test_rows_that_nobody_can_read(queue_engine, work, caplog):
    """Lost job, cannot be restored: reading changes nothing; a worker archives rows as failures, text unchanged, one error each.

    Ten minutes of trying go by on an injected clock.
    """
    tables = clocked_tables(clock := ManualClock(START))
    payloads = put_by_hand(queue_engine, tables)
    unreadable = sorted(payload for name, (_, payload) in UNREADABLE.items() if name != "of an unknown type")
    before = queued(queue_engine, tables)

    assert unreadable == read_everything(queue_engine, tables, tables.Job)
    assert before == queued(queue_engine, tables)

    jobs, done = JobRegistry(), []
    jobs.handler("known")(done.append)
    seen = Recorder()
    worker, _ = work(jobs, handler_mode="default", tables=tables, on_event=lambda event: (log_event(event), seen(event)))
    worker.start()
    with queue_engine.begin() as connection:
        good = enqueue(connection, "known", "good", tables=tables)
    seen.wait_for(events.JobSucceeded, job_id=good)
    rounds = 0
    while queued(queue_engine, tables):
        rounds += 1
        wait_until(lambda: all(row.process_at > clock.now() for row in queued(queue_engine, tables)), PATIENCE)
        assert len(queued(queue_engine, tables)) in (0, 3)
        clock.tick(60)
        assert rounds < 30

    assert ["good"] == done
    rows = [row for row in archived(queue_engine, tables) if row.job_id != good]
    assert payloads == sorted(row.payload for row in rows)
    assert {"failure"} == {row.status for row in rows}
    assert unreadable == read_everything(queue_engine, tables, tables.ArchivedJob)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert sorted(str(row.job_id) for row in rows) == sorted(str(record.proletarian_event.job_id) for record in errors)
    assert worker.is_running


TOO_OLD = {
    "postgresql": [(9, 4), (12, 22)],
    "mysql": [(5, 7, 44), (8, 0, 12)],
    "mariadb": [(10, 5, 29), (5, 5, 68)],
    "sqlite": [(3, 8, 3), (3, 34, 1)],
}
NEEDED = {"postgresql": "13 or", "mysql": "8.0.13 or", "mariadb": "10.6 or", "sqlite": "3.35 or"}


def test_a_server_that_is_too_old(database, queue_engine, work):
    """Lost job, claim error swallowed: a server without SKIP LOCKED is refused at start, with the version needed; no worker idles.

    The version is faked.
    """
    job_id = add(queue_engine)
    engine = database.create_engine()
    with engine.connect() as connection:
        kind = "mariadb" if getattr(connection.dialect, "is_mariadb", False) else connection.dialect.name
    for version in TOO_OLD[kind]:
        engine.dialect.server_version_info = version
        worker, seen = work(lambda _job: None, engine)
        for start in (worker.start, worker.run, lambda: process_next_job(engine, lambda *_: None)):
            with pytest.raises(DatabaseNotSupported, match=f"{'.'.join(map(str, version))}.*{NEEDED[kind]} later is needed"):
                start()
        assert not worker.is_running
        assert [] == seen.events

    assert [(job_id, 0, None)] == [(row.job_id, row.attempts, row.claimed_by) for row in queued(queue_engine)]


@pytest.mark.parametrize("missing", ["job_table", "archived_job_table"])
def test_a_wrong_table_name(queue_engine, work, missing):
    """Lost job, claim error swallowed: a table that is not there is named at once, in every place that needs it."""
    tables = JobTables(**{missing: "jobs_misspelt"})
    worker, seen = work(lambda _job: None, tables=tables)
    for use in (worker.start, worker.run, lambda: check_tables(queue_engine, tables=tables)):
        with pytest.raises(TablesMissing, match=r"There is no table \S*jobs_misspelt in .*create_all\(engine\)"):
            use()
    if missing == "job_table":
        with pytest.raises(TablesMissing, match="jobs_misspelt"):
            process_next_job(queue_engine, lambda *_: None, tables=tables)

    assert not worker.is_running
    assert [] == seen.events


@pytest.mark.async_workers
def test_children_enqueued_with_a_session_of_the_handlers_own(queue_engine, work):
    """Nested enqueue, own session: children are independent of the job's outcome, those of a failed attempt stay."""
    again = threading.Event()

    def handler(job):
        if job.job_type == "child":
            return
        with Session(queue_engine) as session, session.begin():
            for number in range(2):
                enqueue(session, "child", [job.attempts, number])
        if job.attempts == 1:
            again.set()
            raise ValueError

    worker, seen = work(handler, retry=RetryStrategy(retries=1))
    add(queue_engine, "parent")
    worker.start()
    seen.wait_for(events.JobSucceeded, count=5)

    rows = archived(queue_engine)
    assert ["[1,0]", "[1,1]", "[2,0]", "[2,1]"] == sorted(row.payload.replace(" ", "") for row in rows if row.job_type == "child")
    assert [("success", 2)] == [(row.status, row.attempts) for row in rows if row.job_type == "parent"]


def test_children_enqueued_with_both_sessions(database, app_engine, work):
    """Nested enqueue, both ways in one handler: what `job.session` enqueued goes with the attempt, what the other did stays."""
    database.require("row_locks")  # else the handler's transaction would keep its own second session out

    def handler(job):
        if job.job_type != "parent":
            return
        with Session(app_engine) as session, session.begin():
            enqueue(session, "independent", job.attempts)
        enqueue(job.session, "with the job", job.attempts)
        job.session.flush()
        if job.attempts == 1:
            raise ValueError

    worker, seen = work(handler, retry=RetryStrategy(retries=1))
    add(app_engine, "parent")
    worker.start()
    seen.wait_for(events.JobSucceeded, count=4)
    worker.stop()

    children = {(row.job_type, row.payload) for row in archived(app_engine) if row.job_type != "parent"}
    assert {("independent", "1"), ("independent", "2"), ("with the job", "2")} == children
    assert [] == queued(app_engine)
