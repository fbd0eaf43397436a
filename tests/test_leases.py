"""Leases: a claim is exclusive and fenced, lapses with its worker, and is kept by heartbeats."""

import datetime as dt
import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import ManualClock, RetryStrategy, WorkerLost, default_tables, process_next_job
from proletarian_sa.claimed import Finish
from proletarian_sa.dialects import Archived
from tests.observing import PATIENCE, Recorder, add, change, claim, clocked_tables, lapse, statements
from tests.queue_contents import archived, queued

pytestmark = pytest.mark.async_drivers

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
MINUTE = dt.timedelta(minutes=1)


def write(engine, method, *arguments, tables=default_tables, **options):
    """Call a method of the statements in a transaction of its own."""
    with engine.begin() as connection:
        return getattr(statements(engine, tables), method)(connection, *arguments, **options)


def test_a_claim_is_exclusive(queue_engine):
    """What one claim took, no other takes while its lease holds."""
    ids = [add(queue_engine) for _ in range(3)]

    first, second = claim(queue_engine, "a", limit=2), claim(queue_engine, "b")

    assert ids[:2] == [job.job_id for job in first]
    assert ids[2:] == [job.job_id for job in second]
    assert [] == claim(queue_engine, "c")
    assert process_next_job(queue_engine, lambda *_: None) is None


def test_a_claim_takes_no_more_than_its_limit_oldest_first(queue_engine):
    """Up to the limit, in the order in which the jobs are due."""
    tables = clocked_tables(clock := ManualClock(START))
    for seconds in (3, 1, 2, 4):
        add(queue_engine, payload=seconds, process_in=seconds, tables=tables)
    clock.tick(10)

    assert ["1", "2", "3"] == [job.payload_text for job in claim(queue_engine, "a", limit=3, tables=tables)]
    assert ["4"] == [job.payload_text for job in claim(queue_engine, "b", limit=3, tables=tables)]


@pytest.mark.plain_drivers
def test_claims_at_the_same_time_share_nothing(queue_engine):
    """Double execution: four threads that claim in turns get each job exactly once."""
    ids = {add(queue_engine) for _ in range(24)}
    taken, start = [], threading.Barrier(4)

    def take(name):
        start.wait(PATIENCE)
        for number in range(100):
            jobs = claim_if_free(queue_engine, f"{name}:{number}")
            taken.extend(job.job_id for job in jobs)
            if len(taken) == len(ids):
                return

    threads = [threading.Thread(target=take, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert len(ids) == len(taken)
    assert ids == set(taken)


def claim_if_free(engine, token):
    """Claim two jobs; where there is one writer at a time it may be refused."""
    try:
        return claim(engine, token, limit=2)
    except sa.exc.OperationalError as error:
        if not statements(engine).is_transient(error):
            raise
        return []


def test_a_stale_token_writes_nothing(queue_engine):
    """Fence: after the job was claimed again, the first claim can neither finish, retry, release nor prolong it."""
    add(queue_engine)
    (stale,) = claim(queue_engine, "stale")
    lapse(queue_engine, stale.job_id)
    (fresh,) = claim(queue_engine, "fresh")
    (before,) = queued(queue_engine)

    assert [Archived.LOST] == write(queue_engine, "archive", [Finish(job=stale, status="success")])
    assert not write(queue_engine, "retry", stale, delay=HOUR, error="stale")
    assert not write(queue_engine, "release", stale)
    assert not write(queue_engine, "release", stale, delay=HOUR, note="stale")
    assert not write(queue_engine, "own", stale)
    assert (set(), set()) == write(queue_engine, "heartbeat", [stale], lease=HOUR)
    assert [before] == queued(queue_engine)
    assert [] == archived(queue_engine)
    assert ({(fresh.job_id, "fresh")}, set()) == write(queue_engine, "heartbeat", [stale, fresh], lease=HOUR)
    assert [Archived.DONE] == write(queue_engine, "archive", [Finish(job=fresh, status="success")])


def test_a_batch_is_fenced_row_by_row(queue_engine):
    """In a batch of finishes each job is archived if and only if its own claim still owns it."""
    for _ in range(3):
        add(queue_engine)
    jobs = claim(queue_engine, "mine")
    lapse(queue_engine, jobs[1].job_id)
    claim(queue_engine, "thief")

    outcomes = write(queue_engine, "archive", [Finish(job=job, status="success") for job in jobs])

    assert [Archived.DONE, Archived.LOST, Archived.DONE] == outcomes
    assert ["thief"] == [row.claimed_by for row in queued(queue_engine)]


def test_the_same_worker_has_a_new_token_for_each_claim(queue_engine):
    """Lost job, worker identity reused: a token never repeats, not for one worker id, not for the same job."""
    tokens = set()
    job_id = add(queue_engine)
    for _ in range(3):
        process_next_job(
            queue_engine,
            lambda *_: tokens.add(queued(queue_engine)[0].claimed_by) or 1 / 0,
            worker_id="w",
            retry=RetryStrategy(retries=9),
        )

    assert 3 == len(tokens)
    assert {"w"} == {token.partition("#")[0] for token in tokens}
    assert [job_id] == [row.job_id for row in queued(queue_engine)]


def test_a_lease_lapses_at_its_time(queue_engine):
    """A microsecond before the end of its lease a job is not taken, at the end it is; a heartbeat puts the end off."""
    tables = clocked_tables(clock := ManualClock(START))
    add(queue_engine, tables=tables)
    (job,) = claim(queue_engine, "a", lease=60, tables=tables)
    clock.tick(50)
    assert ({(job.job_id, "a")}, set()) == write(queue_engine, "heartbeat", [job], lease=dt.timedelta(seconds=60), tables=tables)
    clock.tick(dt.timedelta(seconds=60, microseconds=-1))
    assert [] == claim(queue_engine, "b", tables=tables)
    clock.tick(dt.timedelta(microseconds=1))

    (again,) = claim(queue_engine, "b", tables=tables)
    assert (1, 1, "b") == (again.attempts, again.crashes, again.token)


def test_a_lapsed_lease_is_claimed_alone(queue_engine):
    """Job kills its process: what may have killed its worker is taken by itself; its attempts stay, its crashes count up."""
    tables = clocked_tables(clock := ManualClock(START))
    for number in range(6):
        add(queue_engine, payload=number, tables=tables)
        clock.tick(1)
    claim(queue_engine, "dead", limit=3, lease=10, tables=tables)
    clock.tick(11)

    batches = [
        [(job.payload_text, job.attempts, job.crashes) for job in claim(queue_engine, f"c{n}", tables=tables)] for n in range(5)
    ]

    assert [[("0", 1, 1)], [("1", 1, 1)], [("2", 1, 1)], [("3", 1, 0), ("4", 1, 0), ("5", 1, 0)], []] == batches
    stored = [(row.payload, row.attempts, row.crashes) for row in queued(queue_engine, tables)]
    assert [("0", 1, 1), ("1", 1, 1), ("2", 1, 1), ("3", 1, None), ("4", 1, None), ("5", 1, None)] == stored


def test_fresh_jobs_before_a_lapsed_one_are_claimed_without_it(queue_engine):
    """A lapsed job in the middle of a batch waits for a claim of its own."""
    tables = clocked_tables(clock := ManualClock(START))
    for number in range(3):
        add(queue_engine, payload=number, process_in=number, tables=tables)
    clock.tick(5)
    change(queue_engine, queued(queue_engine, tables)[1].job_id, tables, claimed_by="dead", lease_until=START, attempts=1)

    assert ["0", "2"] == [job.payload_text for job in claim(queue_engine, "a", tables=tables)]
    assert [("1", 1)] == [(job.payload_text, job.crashes) for job in claim(queue_engine, "b", tables=tables)]


def test_prefetched_neighbours_of_a_killer_lose_nothing(queue_engine):
    """A job that was only in hand beside a killer keeps all its retries: a lost run is repeated under the same number."""
    job_id = add(queue_engine)
    for crash in range(3):
        assert [(1, crash)] == [(job.attempts, job.crashes) for job in claim(queue_engine, f"dead {crash}")]
        lapse(queue_engine, job_id)

    outcome = process_next_job(queue_engine, lambda *_: 1 / 0, retry=RetryStrategy(retries=1))

    assert ("retrying", 1) == (outcome.status, outcome.attempts)
    assert [(1, 3)] == [(row.attempts, row.crashes) for row in queued(queue_engine)]


def test_the_crash_limit_archives_unrun(queue_engine):
    """Job kills its process: one lost run more than the limit and the job is archived as failure, which is loud."""
    for crashes, limit, runs in [(4, 5, True), (5, 5, False), (0, 0, False), (None, 0, False), (1, 2, True)]:
        ran, seen = [], Recorder()
        job_id = add(queue_engine)
        change(queue_engine, job_id, claimed_by="dead", lease_until=LONG_AGO, attempts=1, crashes=crashes)

        outcome = process_next_job(queue_engine, lambda *_, ran=ran: ran.append(1), max_crashes=limit, on_event=seen)

        (row,) = [row for row in archived(queue_engine) if row.job_id == job_id]
        assert runs == bool(ran)
        assert ("success" if runs else "failure", (crashes or 0) + 1) == (row.status, row.crashes)
        if not runs:
            assert isinstance(outcome.exception, WorkerLost)
            assert f"has lost its worker {(crashes or 0) + 1} times, more than max_crashes={limit}" in row.last_error
            assert ["JobsClaimed", "JobAttemptFailed", "JobFailed"] == seen.names()


def test_a_retry_after_a_crash_keeps_the_count(queue_engine):
    """Crashes are counted over the job's life, and reach the archive."""
    change(queue_engine, add(queue_engine), claimed_by="dead", lease_until=LONG_AGO, attempts=1)
    process_next_job(queue_engine, lambda *_: 1 / 0, retry=RetryStrategy(retries=1))
    process_next_job(queue_engine, lambda *_: None)

    (row,) = archived(queue_engine)
    assert ("success", 2, 1) == (row.status, row.attempts, row.crashes)


def test_a_freed_job_is_nobodys(queue_engine):
    """Retry and release leave no claim behind, so the next claim counts as an attempt, not as a crash."""
    add(queue_engine)
    (job,) = claim(queue_engine, "a")
    assert write(queue_engine, "release", job)
    (job,) = claim(queue_engine, "b")
    assert (1, 0) == (job.attempts, job.crashes)
    assert write(queue_engine, "retry", job, delay=dt.timedelta(), error="e")
    (job,) = claim(queue_engine, "c")

    assert (2, 0) == (job.attempts, job.crashes)


def test_a_claim_without_a_lease_is_free(queue_engine):
    """A row that another program claimed by hand, without an end, can be taken: nothing stays for ever."""
    change(queue_engine, add(queue_engine), claimed_by="somebody", lease_until=None)

    assert "succeeded" == process_next_job(queue_engine, lambda *_: None).status


def test_a_heartbeat_waits_for_nobody(database, queue_engine):
    """A row that is locked is being finished: the heartbeat skips it, and tells it apart from those prolonged."""
    database.require("row_locks")
    for _ in range(3):
        add(queue_engine)
    jobs = claim(queue_engine, "a")
    column = default_tables.job.c.job_id
    with queue_engine.connect() as finisher:
        finisher.execute(sa.select(column).where(column == jobs[1].job_id).with_for_update())
        kept = write(queue_engine, "heartbeat", jobs, lease=HOUR)

    assert ({(jobs[0].job_id, "a"), (jobs[2].job_id, "a")}, {(jobs[1].job_id, "a")}) == kept


def test_a_heartbeat_tells_what_is_lost(queue_engine):
    """Jobs that are gone, free or claimed by others are not among those kept, nor are they prolonged."""
    for _ in range(4):
        add(queue_engine)
    mine, gone, free, stolen = claim(queue_engine, "a")
    write(queue_engine, "archive", [Finish(job=gone, status="success")])
    write(queue_engine, "release", free, delay=HOUR)
    lapse(queue_engine, stolen.job_id)
    claim(queue_engine, "thief", lease=10)

    assert ({(mine.job_id, "a")}, set()) == write(queue_engine, "heartbeat", [mine, gone, free, stolen], lease=HOUR)
    leases = {row.claimed_by: row.lease_until for row in queued(queue_engine)}
    assert leases[None] is None
    assert leases["a"] - leases["thief"] > dt.timedelta(minutes=50)
