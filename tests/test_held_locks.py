"""Locks of held claims: nobody but the job's next worker meets them, and deadlocks are nobody's."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from proletarian_sa import RetryStrategy, events, process_next_job
from tests.field_cases.deadlocks import impatient_engine
from tests.field_cases.test_isolation import LEVELS, assert_quiet, run_a_load, set_default
from tests.field_cases.test_mysql_locks import Business
from tests.helpers import scaled, wait_until
from tests.observing import PATIENCE, Recorder, add
from tests.queue_contents import archived, queued

PRODUCERS = 8


@pytest.mark.parametrize("kinds", [("held", "held"), ("held", "leased")])
def test_producers_and_workers_that_meet_no_deadlock(database, app_engine, work, kinds):
    """Deadlock of enqueue and claim: on a nearly empty queue neither producers nor claims and finishes meet one, or a time-out."""
    database.require("row_locks")
    business, seen = Business(impatient_engine(database, PRODUCERS)), Recorder()
    workers = [
        work(business.ran, database.create_engine(pool_size=8), claim=kind, worker_threads=4, on_event=seen)[0] for kind in kinds
    ]
    for worker in workers:
        worker.start()
    with ThreadPoolExecutor(PRODUCERS) as pool:
        produced = list(pool.map(lambda producer: business.produce(producer, scaled(3)), range(PRODUCERS)))
    ids = set().union(*produced)
    wait_until(lambda: len(archived(app_engine)) == len(ids), PATIENCE)

    assert [] == business.errors
    assert {("success", 1, None)} == {(row.status, row.attempts, row.crashes) for row in archived(app_engine)}
    assert len(ids) == len(seen.of(events.JobStarted))
    assert [] == seen.of(events.TransientErrorMet) + seen.of(events.WorkerFailed) + seen.of(events.OutcomeNotRecorded)


def test_retries_and_failures_under_load(database, queue_engine, work):
    """Deadlock on finish and claim: jobs that fail, are retried and succeed, in two workers of four threads: each archived once."""
    database.require("row_locks")
    count, seen = scaled(60), Recorder()

    def handler(job):
        if job.payload % 3 == 0 and (job.attempts == 1 or job.payload % 2 == 0):
            raise ValueError

    for number in range(count):
        add(queue_engine, payload=number)
    retry = RetryStrategy(retries=1)
    for _ in range(2):
        engine = database.create_engine(pool_size=8)
        work(handler, engine, claim="held", worker_threads=4, on_event=seen, retry=retry)[0].start()
    wait_until(lambda: len(archived(queue_engine)) == count, PATIENCE)

    failures = [row for row in archived(queue_engine) if row.status == "failure"]
    assert [] == queued(queue_engine)
    assert len(range(0, count, 6)) == len(failures)
    assert [] == seen.of(events.TransientErrorMet) + seen.of(events.JobLeaseLost) + seen.of(events.OutcomeNotRecorded)


@pytest.mark.parametrize("level", LEVELS)
def test_the_databases_default_isolation(database, app_engine, work, level):
    """Serialization failure in the claim: with a stricter default of the database's no held claim, job or enqueue fails for it."""
    database.require("row_locks", "default_isolation")
    set_default(database, app_engine, level)
    assert_quiet(run_a_load(app_engine, [database.create_engine() for _ in range(4)], work, claim="held"))


@pytest.mark.parametrize("neighbour", ["b", "zz"])
def test_an_empty_queue_locks_nothing_of_its_neighbours(database, queue_engine, neighbour):
    """A worker with several queues that runs a job of a later one keeps no job of other queues from their workers."""
    database.require("row_locks")
    add(queue_engine, queue=neighbour)
    add(queue_engine, queue="z")
    other = database.create_engine()
    found = []

    def handler(_job):
        for claim in ("held", "leased"):
            found.append(process_next_job(other, lambda _job: None, queue=neighbour, claim=claim, handler_mode="advanced"))
            add(other, queue=neighbour)

    outcome = process_next_job(queue_engine, handler, queue=["a", "y", "z"], claim="held", handler_mode="advanced")

    assert "succeeded" == outcome.status
    assert ["succeeded"] * 2 == [one and one.status for one in found]


def test_enqueueing_beside_held_jobs(database, queue_engine, work):
    """Whoever enqueues waits for no held job, before, between or behind those that are there."""
    database.require("row_locks")
    begun, go = threading.Semaphore(0), threading.Event()

    def handler(_job):
        begun.release()
        assert go.wait(PATIENCE)

    for _ in range(3):
        add(queue_engine)
    work(handler, claim="held", worker_threads=4)[0].start()
    for _ in range(3):
        assert begun.acquire(timeout=PATIENCE)
    engine = impatient_engine(database)
    for queue in ("a", "default", "z"):
        for delay in (0, 60):
            add(engine, queue=queue, process_in=delay)
    there = len(queued(engine))  # before any of them can end
    go.set()

    assert 9 == there
