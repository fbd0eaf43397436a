"""A flood of jobs that fail and return at once: it holds up nobody, and what has waited longest is next."""

import collections
import datetime as dt

import pytest

from proletarian_sa import JobRegistry, ManualClock, RetryStrategy, enqueue_many, events
from tests.claims import process_next_job
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add, clocked_tables
from tests.queue_contents import queued

pytestmark = pytest.mark.usefixtures("claim")

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
AT_ONCE = RetryStrategy(retries=1_000_000, delays=[0])
STORM = 60
GOOD = 20


def storm(ran):
    """Return handlers: of jobs that always fail and return at once, and of good ones; both tell that they ran."""
    jobs = JobRegistry()

    @jobs.handler("bad", retry=AT_ONCE)
    def fail(payload):
        ran.append(("bad", payload))
        raise ValueError(payload)

    jobs.handler("good")(lambda payload: ran.append(("good", payload)))
    return jobs


def add_many(engine, job_type, count, **options):
    """Enqueue jobs at once, in order."""
    with engine.begin() as connection:
        enqueue_many(connection, [{"job_type": job_type, "payload": number} for number in range(count)], **options)


def test_good_jobs_behind_a_storm_run_in_turn(queue_engine):
    """Starvation: jobs that fail and return at once go behind those that wait already, so good ones run after one round at most."""
    tables, ran = clocked_tables(clock := ManualClock(START)), []
    jobs = storm(ran)
    add_many(queue_engine, "bad", 10, tables=tables)
    for _ in range(15):
        clock.tick(0.001)
        process_next_job(queue_engine, jobs, tables=tables, on_event=Recorder())
    clock.tick(0.001)
    add_many(queue_engine, "good", 5, tables=tables)
    del ran[:]
    for _ in range(15):
        clock.tick(0.001)
        process_next_job(queue_engine, jobs, tables=tables, on_event=Recorder())

    assert [("bad", number) for number in [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]] + [("good", number) for number in range(5)] == ran


def test_what_has_been_due_for_long_is_next(queue_engine):
    """Starvation: a job whose time came long ago runs before all that became due later, whenever it was enqueued."""
    tables, ran = clocked_tables(clock := ManualClock(START)), []
    jobs = storm(ran)
    add(queue_engine, "good", "scheduled", process_in=1, tables=tables)
    clock.tick(3600)
    add_many(queue_engine, "bad", 10, tables=tables)
    clock.tick(1)
    add(queue_engine, "good", "late", process_at=START + dt.timedelta(seconds=2), tables=tables)  # the past means now
    clock.tick(1)
    for _ in range(12):
        process_next_job(queue_engine, jobs, tables=tables, on_event=Recorder())

    assert [("good", "scheduled"), *[("bad", number) for number in range(10)], ("good", "late")] == ran


def test_a_storm_in_a_worker_starves_nobody(queue_engine, work):
    """Starvation: in a worker with several threads too, good jobs enqueued amid a storm all run within a few rounds of it."""
    ran, seen = [], Recorder()
    worker, _ = work(storm(ran), on_event=seen, worker_threads=2)
    add_many(queue_engine, "bad", STORM)
    worker.start()
    wait_until(lambda: len(ran) > STORM, timeout=PATIENCE)
    add_many(queue_engine, "good", GOOD)
    before = len(ran)
    seen.wait_for(events.JobSucceeded, count=GOOD)
    worker.stop()
    after = max(number for number, (kind, _) in enumerate(ran) if kind == "good")
    rounds = collections.Counter(payload for kind, payload in ran[before:after] if kind == "bad")

    assert sorted(range(GOOD)) == sorted(payload for kind, payload in ran if kind == "good")
    assert max(rounds.values(), default=0) <= 5, rounds
    assert STORM == len(queued(queue_engine))
