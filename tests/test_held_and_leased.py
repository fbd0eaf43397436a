"""Held and leased claims on one queue at the same time, in both orders of deployment."""

import multiprocessing
import os
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import JobInterrupted, QueueWorker, RetryStrategy, events, process_next_job
from proletarian_sa.claimed import Finish
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add, claim, lapse, statements
from tests.queue_contents import User, archived, left, queued


def step(engine, handler, kind, **options):
    """Run the next job with this kind of claim."""
    return process_next_job(engine, handler, claim=kind, **{"handler_mode": "advanced"} | options)


def effects(engine):
    """Return the numbers of the effects, sorted."""
    with Session(engine) as session:
        return sorted(session.scalars(sa.select(User.id)))


def effect(job):
    """Write one row for the job."""
    job.session.add(User(id=job.payload, name="effect"))


@pytest.mark.parametrize("order", [("leased", "held"), ("held", "leased")])
def test_both_kinds_of_worker_on_one_queue(database, app_engine, work, order):
    """In either order of start, with several threads each: every job is archived once, and its effects are there once."""
    database.require("row_locks")
    count, seen = 60, Recorder()
    for number in range(1, count // 2):
        add(app_engine, payload=number)
    workers = [work(effect, database.create_engine(), claim=kind, worker_threads=2, on_event=seen)[0] for kind in order]
    workers[0].start()
    seen.wait_for(events.JobSucceeded, count=3)
    workers[1].start()
    for number in range(count // 2, count + 1):
        add(app_engine, payload=number)
    wait_until(lambda: len(archived(app_engine)) >= count, 2 * PATIENCE)
    for worker in workers:
        worker.stop()

    assert list(range(1, count + 1)) == effects(app_engine)
    assert [] == queued(app_engine)
    assert [("success", 1, None)] * count == [(row.status, row.attempts, row.crashes) for row in archived(app_engine)]
    assert count == len(seen.of(events.JobSucceeded))
    assert [] == seen.of(events.JobLeaseLost) + seen.of(events.ArchiveRowReplaced)


def test_a_leased_claim_never_takes_a_job_that_is_held(database, queue_engine):
    """While a held handler runs, its job is nobody's: neither a leased claim nor another held one finds it."""
    database.require("row_locks")
    add(queue_engine)
    found = []

    def handler(_job):
        found.extend(claim(queue_engine, "thief"))
        found.extend(outcome for kind in ("leased", "held") if (outcome := step(queue_engine, lambda _job: None, kind)))

    outcome = step(queue_engine, handler, "held")

    assert ("succeeded", []) == (outcome.status, found)
    assert ([], [("success", 1)]) == left(queue_engine)


def test_a_held_claim_never_takes_a_job_that_is_leased(database, queue_engine):
    """While a lease lasts, a held claim does not find its job."""
    database.require("row_locks")
    add(queue_engine)
    assert step(queue_engine, lambda _job: None, "leased", on_event=Recorder()).status == "succeeded"
    add(queue_engine)
    found = []
    outcome = step(queue_engine, lambda _job: found.append(step(queue_engine, lambda _job: None, "held")), "leased")

    assert ("succeeded", [None]) == (outcome.status, found)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("success", ([], [("success", 1)])),
        ("failure", ([], [("failure", 1)])),
        ("retry", ([(1, None, None, 1)], [])),
    ],
)
def test_a_lapsed_lease_is_counted_as_a_crash(database, queue_engine, end, expected):
    """A held claim of a job whose leased worker died repeats it under its attempt, and counts the crash."""
    database.require("row_locks")
    job_id = add(queue_engine)
    claim(queue_engine, "dead")
    lapse(queue_engine, job_id)
    seen = []

    def handler(job):
        seen.append((job.attempts, job.crashes))
        if end != "success":
            raise ValueError

    step(queue_engine, handler, "held", retry=RetryStrategy(retries=int(end == "retry"), delays=[60]))

    assert [(1, 1)] == seen
    assert expected == left(queue_engine)
    if end != "retry":
        assert [1] == [row.crashes for row in archived(queue_engine)]


def test_the_crash_limit_holds_for_held_claims(database, queue_engine):
    """A job that has lost its leased worker too often is archived unrun by a held claim."""
    database.require("row_locks")
    job_id = add(queue_engine)
    for _ in range(3):
        claim(queue_engine, "dead")
        lapse(queue_engine, job_id)
    ran = []
    outcome = step(queue_engine, ran.append, "held", max_crashes=2)

    assert ("failed", []) == (outcome.status, ran)
    assert [("failure", 3)] == [(row.status, row.crashes) for row in archived(queue_engine)]


@pytest.mark.parametrize("end", ["returns", "interrupted"])
def test_a_leased_run_whose_job_is_held_elsewhere_now(database, queue_engine, work, end):
    """The lease lapsed and a held claim has the job: the leased handler is asked to stop, and what it comes to is refused."""
    database.require("row_locks")
    begun, stopped, go = threading.Event(), threading.Event(), threading.Event()

    def handler(job):
        begun.set()
        assert job.wait(PATIENCE)
        stopped.set()
        assert go.wait(PATIENCE)
        if end == "interrupted":
            raise JobInterrupted

    job_id = add(queue_engine)
    worker, seen = work(handler, database.create_engine(), claim="leased", lease=0.6)
    worker.start()
    assert begun.wait(PATIENCE)
    held = statements(queue_engine).held
    with queue_engine.connect() as connection:

        def take():  # between two heartbeats
            lapse(queue_engine, job_id)
            claimed = held.claim(connection, queue="default", token="holder")  # noqa: S106 - names a claim
            if claimed is None:
                connection.rollback()
            return claimed

        claimed = wait_until(take, PATIENCE)
        assert stopped.wait(PATIENCE)
        assert [] == seen.of(events.JobLeaseLost)
        held.archive(connection, Finish(job=claimed, status="success"))
        connection.commit()
    go.set()
    seen.wait_for(events.JobLeaseLost, handler_finished=True)

    assert ([], [("success", 1)]) == left(queue_engine)
    assert ["holder"] == [row.claimed_by for row in archived(queue_engine)]
    assert [] == seen.of(events.JobSucceeded) + seen.of(events.JobReleased)


def victim(url, number):
    """Work with leased claims in a process of its own, until it dies in the middle of a job."""
    ran = []

    def handler(job):
        effect(job)
        job.session.flush()
        ran.append(job)
        if len(ran) == number:
            os._exit(9)

    options = {"handler_mode": "advanced", "worker_threads": 2, "lease": 0.5, "polling_interval": 0.01, "on_event": Recorder()}
    QueueWorker(sa.create_engine(url), handler, **options).run()


def test_a_leased_process_that_is_killed(database, app_engine, work):
    """Its jobs are done by a held worker once their leases have lapsed: each is archived once, and effects equal the archive."""
    database.require("row_locks")
    count = 12
    for number in range(1, count + 1):
        add(app_engine, payload=number)
    process = multiprocessing.get_context("spawn").Process(target=victim, args=(database.url_text, 4))
    process.start()
    process.join(2 * PATIENCE)
    worker, _ = work(effect, database.create_engine(), claim="held")
    worker.start()
    wait_until(lambda: len(archived(app_engine)) == count, 2 * PATIENCE)
    worker.stop()

    assert 9 == process.exitcode
    assert list(range(1, count + 1)) == effects(app_engine)
    assert [] == queued(app_engine)
    assert {("success", 1)} == {(row.status, row.attempts) for row in archived(app_engine)}
    assert 1 in {row.crashes for row in archived(app_engine)}
