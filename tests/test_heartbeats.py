"""Heartbeats: how many statements they take, what they outlive, and what they cannot."""

import datetime as dt
import os
import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import ManualClock, default_tables, events, process_next_job
from proletarian_sa.heartbeat import PROLONGING, Heartbeats
from tests.command import Command
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, add, claim, clocked_tables
from tests.plans import capture
from tests.proxies import proxy
from tests.queue_contents import archived, queued
from tests.test_processes import begun

FEW, MANY = 1, 60
START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def ends(engine: sa.Engine) -> list[dt.datetime]:
    """Return when the leases of the queued jobs end."""
    return [row.lease_until for row in queued(engine)]


def test_one_beat_for_all_jobs(queue_engine, work):
    """However many jobs are in hand, begun or taken ahead, a beat sends as many statements, and prolongs all of them."""
    worker, _ = work(lambda _job: None, lease=3600)
    sent = {}
    for count in (FEW, MANY):
        for _ in range(count):
            add(queue_engine)
        heartbeats = Heartbeats(worker._runtime)
        heartbeats.add(claim(queue_engine, f"token {count}", limit=count, lease=1), 0.0)
        before = ends(queue_engine)
        with capture(queue_engine) as captured:
            assert heartbeats.beat()
        sent[count] = [one.statement.split()[0] for one in captured if one.of_jobs]
        after = ends(queue_engine)
        heartbeats.stop()
        with queue_engine.begin() as connection:
            connection.execute(sa.delete(default_tables.job))

        assert count == len(before) == len(after)
        assert all(later - earlier > dt.timedelta(minutes=50) for earlier, later in zip(before, after, strict=True))
    assert sent[FEW] == sent[MANY]
    assert len(sent[MANY]) <= 2  # where an UPDATE cannot skip what is locked, a SELECT does before it


@pytest.mark.async_workers
def test_through_an_outage(database, queue_engine, work):
    """The database is away for longer than the lease: when it is back what nobody else has taken goes on, and runs once."""
    database.require("server")
    gate = Gate()
    job_id = add(queue_engine)
    with proxy(database.url) as way:
        engine = sa.create_engine(way.url)
        worker, seen = work(gate, engine, lease=0.5)
        worker.start()
        job = gate.begun.get(timeout=PATIENCE)
        way.close()
        seen.wait_for(events.TransientErrorMet, activity=PROLONGING)
        wait_until(worker._crew._heartbeats.overdue, timeout=PATIENCE)
        way.open()
        seen.wait_for(events.Recovered, activity=PROLONGING)
        stopping = job.stopping
        gate.open.set()
        seen.wait_for(events.JobSucceeded, job_id=job_id)
        worker.stop()
        engine.dispose()

    assert not stopping
    assert gate.begun.empty()
    assert [("success", 1, None)] == [(row.status, row.attempts, row.crashes) for row in archived(queue_engine)]
    assert [] == seen.of(events.JobLeaseLost)


@pytest.mark.async_workers(plain=True)
def test_until_the_last_handler_has_ended(queue_engine, work):
    """A stop does not end them: a handler that goes on for several leases keeps its job while another worker polls."""
    tables, lease = clocked_tables(clock := ManualClock(START)), 0.3
    gate = Gate()
    worker, seen = work(gate, tables=tables, lease=lease)
    other, others = work(lambda _job: None, tables=tables, lease=lease)
    add(queue_engine, tables=tables)
    worker.start()
    gate.begun.get(timeout=PATIENCE)
    assert 1 == len(worker.stop(0))
    other.start()
    for _ in range(4):
        prolonged = clock.tick(lease * 0.9) + dt.timedelta(seconds=lease)
        wait_until(lambda prolonged=prolonged: queued(queue_engine, tables)[0].lease_until >= prolonged)
    gate.open.set()
    assert worker.join(PATIENCE)

    assert [("success", 1, None)] == [(row.status, row.attempts, row.crashes) for row in archived(queue_engine, tables)]
    assert [] == others.of(events.JobStarted) + seen.of(events.JobLeaseLost)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("database_kind", ["sqlite"])
def test_a_handler_that_holds_the_interpreter(database, queue_engine, tmp_path):
    """In a thread no heartbeat gets through: another worker runs the job, the first one's writes are gone, its finish refused."""
    sa.Table("effects", sa.MetaData(), sa.Column("number", sa.Integer)).create(queue_engine)
    sign, pipe, ran = tmp_path / "sign", tmp_path / "pipe", threading.Event()
    os.mkfifo(pipe)
    job_id = add(queue_engine, "deaf", {"sign": str(sign), "pipe": str(pipe)})
    app = "tests.programs.hostile_app:make_thread_worker"
    with Command(app, APP_DATABASE_URL=database.url_text) as command:
        pid = begun(sign)
        wait_until(lambda: process_next_job(queue_engine, lambda _job_type, _payload: ran.set(), on_event=Recorder()))
        pipe.write_bytes(b"")
        command.wait_for("so its finish is refused and its writes are rolled back")
    with queue_engine.connect() as connection:
        effects = list(connection.exec_driver_sql("SELECT number FROM effects"))

    assert pid != os.getpid()
    assert ran.is_set()
    assert [(job_id, "success", 1, 1)] == [(row.job_id, row.status, row.attempts, row.crashes) for row in archived(queue_engine)]
    assert [] == effects
