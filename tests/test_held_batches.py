"""Held jobs that share a transaction: each for itself, and what is lost with them."""

import threading

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from proletarian_sa import JobRegistry, QueueWorker, RetryStrategy, events
from proletarian_sa import held_batch as batches
from proletarian_sa.held import HeldWatch
from proletarian_sa.runtime import build_runtime, prepare
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add, backends, claim, end_session, lapse
from tests.queue_contents import User, archived, queued, queued_ids
from tests.queue_workers import Faults
from tests.test_held_lost import holder


class Batch:
    """A thread's claims without the thread, and the events."""

    def __init__(self, engine, handler, size=10, **options):
        self.seen = Recorder()
        self.stopping = threading.Event()
        given = {"queue": "default", "claim": "held", "handler_mode": "advanced", "on_event": self.seen} | options
        runtime = prepare(build_runtime(engine, handler, **given))
        self.claims = batches.BatchClaims(runtime, HeldWatch(runtime), size=size)
        self.size = size

    def run(self):
        """Claim as many as there are, run them, and return how many those were."""
        claimed = self.claims.claim_some(self.size)
        self.claims.run_all(claimed, self.stopping)
        return len(claimed)


@pytest.fixture
def batch(database, app_engine, monkeypatch):
    """Make batches, however slow the machine is, and give their connections back."""
    database.require("row_locks")
    monkeypatch.setattr(batches, "LONGEST", PATIENCE)
    made = []

    def make(handler, engine=app_engine, **options):
        made.append(Batch(engine, handler, **options))
        return made[-1]

    yield make
    for one in made:
        one.claims.close()


def write(job):
    """Be a handler that writes its payload through `job.session`."""
    job.session.add(User(id=job.payload, name="effect"))


def written(engine):
    """Return which jobs' writes are committed."""
    with Session(engine) as session:
        return list(session.scalars(sa.select(User.id).order_by(User.id)))


def add_some(engine, count=3):
    """Enqueue jobs with the payloads 1, 2, …; return their ids."""
    return [add(engine, payload=number) for number in range(1, count + 1)]


@pytest.mark.parametrize("uses_session", [True, False])
def test_one_commit_for_all(app_engine, batch, uses_session):
    """Nothing of a batch is seen before all of it is, which is told after that; its jobs run in the order in which they are due."""
    ids, ran = add_some(app_engine), []

    def handler(job):
        ran.append(job.job_id)
        assert [] == archived(app_engine)
        assert [] == one.seen.of(events.JobSucceeded)
        if uses_session:
            assert [] == written(app_engine)
            write(job)

    one = batch(handler)

    assert 3 == one.run()
    assert ids == ran
    assert ids == [event.job_id for event in one.seen.of(events.JobSucceeded)]
    assert [("success", 1)] * 3 == [(row.status, row.attempts) for row in archived(app_engine)]
    assert [] == queued(app_engine)
    assert ([1, 2, 3] if uses_session else []) == written(app_engine)


@pytest.mark.parametrize("reason", ["handler", "constraint", "hook", "own row"])
def test_a_job_that_fails_is_undone_alone(app_engine, batch, reason):
    """A failure takes back the writes of its own job; the retry is recorded in the transaction of the others."""
    ids = add_some(app_engine)

    def handler(job):
        write(job)
        if job.payload != 2:
            return
        if reason == "handler":
            raise ValueError("no")
        if reason == "constraint":
            job.session.add(User(id=1, name="twice"))
        if reason == "hook":
            sa.event.listen(job.session, "before_commit", lambda _session: 1 / 0)
        if reason == "own row":
            job.session.connection().exec_driver_sql("SELECT 1")
            table = one.claims._runtime.tables.job
            job.session.execute(sa.delete(table).where(table.c.job_id == job.job_id))

    one = batch(handler, retry=RetryStrategy(retries=1, delays=[60]))
    one.run()

    assert [1, 3] == written(app_engine)
    assert [ids[0], ids[2]] == [row.job_id for row in archived(app_engine)]
    assert [(ids[1], 1)] == [(row.job_id, row.attempts) for row in queued(app_engine)]
    assert [ids[1]] == [event.job_id for event in one.seen.of(events.JobRetried)]


def test_hooks_of_sessions_are_called_around_the_commit(app_engine, batch):
    """`before_commit` hooks belong to their job, what they write too; `after_commit` hooks are called after the COMMIT of all."""
    add_some(app_engine)
    told = []
    factory = sessionmaker(app_engine)

    @sa.event.listens_for(factory, "before_commit")
    def before(session):
        told.append("before")
        session.add(User(id=100 + len(told), name="hook"))

    @sa.event.listens_for(factory, "after_commit")
    def after(_session):
        told.append(len(archived(app_engine)))

    one = batch(write, session_factory=factory)
    one.run()

    assert [] == one.seen.of(events.CallbackFailed)
    assert ["before"] * 3 + [3] * 3 == told
    assert 6 == len(written(app_engine))


def test_a_hook_that_fails_after_the_commit_changes_nothing(app_engine, batch):
    """After the COMMIT a hook changes no outcome: its error is told, and the hooks of the other jobs are called."""
    add_some(app_engine)
    factory = sessionmaker(app_engine)
    called = []

    @sa.event.listens_for(factory, "after_commit")
    def after(_session):
        called.append(True)
        raise ValueError("no")

    one = batch(write, session_factory=factory)
    one.run()

    assert [1, 2, 3] == written(app_engine)
    assert 3 == len(one.seen.of(events.JobSucceeded)) == len(called) == len(one.seen.of(events.CallbackFailed))


@pytest.mark.parametrize("kind", ["refused", "unanswered"])
def test_a_commit_that_fails(app_engine, batch, kind):
    """All jobs run again whose writes a refused COMMIT has undone; what was committed without an answer is not repeated."""
    after = []

    def handler(job):
        if job.payload > 1:
            write(job)
            sa.event.listen(job.session, "after_commit", lambda _session: after.append(job.payload))
        if job.payload == 4:
            raise ValueError("no")

    one = batch(handler, retry=RetryStrategy(retries=1, delays=[60]))
    one.run()  # so that the next commit is that of the batch
    ids = add_some(app_engine, 4)
    with Faults(app_engine).at(kind):
        one.run()

    done = ids[:3] if kind == "unanswered" else ids[:1]
    assert set(done) == {row.job_id for row in archived(app_engine)}
    assert ([2, 3] if kind == "unanswered" else []) == written(app_engine)
    assert set(done) == {event.job_id for event in one.seen.of(events.JobSucceeded)}
    assert [] == after  # of none is it known in time
    assert {ids[3]: 1, **{job_id: 0 for job_id in ids[1:3] if job_id not in done}} == {
        row.job_id: row.attempts for row in queued(app_engine)
    }
    assert 1 == one.claims.limit()


def test_a_connection_that_is_lost_in_a_handler(database, app_engine, batch):
    """What ran before it without `job.session` is recorded, what ran with it runs again, one by one, and is there once."""
    engine, numbers = backends(database)
    ids = add_some(app_engine, 4)
    runs, killed = [], []

    def handler(job):
        runs.append(job.payload)
        if job.payload == 2:
            write(job)
        if job.payload == 3 and not killed:
            killed.append(holder(app_engine, numbers))
            end_session(app_engine, killed[0])
            job.session.execute(sa.text("SELECT 1"))

    one = batch(handler, engine=engine, retry=RetryStrategy(retries=1, delays=[0]))
    one.run()

    assert [ids[0]] == [row.job_id for row in archived(app_engine)]
    assert [ids[1]] == [event.job_id for event in one.seen.of(events.JobLeaseLost)]
    assert [ids[3]] == [event.job_id for event in one.seen.of(events.JobReleased)]
    one.size = one.claims.limit()
    assert 1 == one.size
    wait_until(lambda: one.run() == 0 and len(queued_ids(app_engine)) <= 1, PATIENCE)
    assert [1, 2, 3, 2, 4] == runs[:5]
    assert [2] == written(app_engine)


def test_a_stop_in_the_middle(app_engine, batch):
    """What has run is committed; the rest is put back untouched."""
    ids = add_some(app_engine)

    def handler(job):
        write(job)
        if job.payload == 2:
            one.stopping.set()

    one = batch(handler)
    before = queued(app_engine)
    one.run()

    assert [1, 2] == written(app_engine)
    assert before[2:] == queued(app_engine)
    assert [ids[2]] == [event.job_id for event in one.seen.of(events.JobReleased)]


def test_a_batch_that_takes_long_is_committed_early(app_engine, batch, monkeypatch):
    """No further job is begun once a batch has taken its time: others may take the rest."""
    monkeypatch.setattr(batches, "LONGEST", -1.0)
    ids = add_some(app_engine)
    one = batch(write)
    one.run()

    assert [1] == written(app_engine)
    assert ids[1:] == [event.job_id for event in one.seen.of(events.JobReleased)]
    assert set(ids[1:]) == queued_ids(app_engine)


@pytest.mark.parametrize(
    ("limit", "ran", "took", "expected"),
    [
        (1, 1, 0.001, 2),  # the first one, and it was short
        (64, 3, 0.001, 100),  # there were no more
        (100, 100, 0.04, 100),
        (100, 100, 0.1, 50),
        (100, 20, 0.2, 5),
        (8, 1, 30.0, 1),
    ],
)
def test_no_more_is_claimed_than_runs_in_a_short_time(limit, ran, took, expected):
    """One job is claimed until it is known how long they take; then up to twice as many, or as many as run in a moment."""
    assert expected == batches.next_limit(limit, ran, took, most=100)


def test_a_lapsed_lease_takes_no_neighbours_along(app_engine, batch):
    """A job that was lost with its worker runs in no company."""
    ids = [add(app_engine, payload=1)]
    claim(app_engine, "gone")
    lapse(app_engine, ids[0])
    ids += [add(app_engine, payload=number) for number in (2, 3)]
    one = batch(write)
    one.run()

    assert [1] == written(app_engine)
    assert set(ids[1:]) == queued_ids(app_engine)
    assert [1] == [row.crashes for row in archived(app_engine)]


def test_failed_job_in_a_batch(app_engine, batch):
    """The job that `failed_job` is told of is the last of its batch; what that writes is committed with it."""
    ids = add_some(app_engine)

    def handler(job):
        write(job)
        if job.payload == 2:
            raise ValueError("no")

    def failed_job(job, _error):
        job.session.add(User(id=20, name="failed"))

    batch(handler, failed_job=failed_job).run()

    assert [1, 20] == written(app_engine)
    assert ["success", "failure"] == [row.status for row in archived(app_engine)]
    assert {ids[2]} == queued_ids(app_engine)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_worker_with_batches(database, app_engine, threads, monkeypatch):
    """A worker does every job once, with fewer commits than jobs."""
    database.require("row_locks")
    for name in ("SHORT", "LONGEST"):
        monkeypatch.setattr(batches, name, PATIENCE)
    jobs, seen, commits, count = JobRegistry(), Recorder(), [], 60

    @jobs.handler("work")
    def handler(_payload, job):
        write(job)

    add_some(app_engine, count)
    options = {"claim": "held", "worker_threads": threads, "batch_size": 20, "polling_interval": 0.01}
    worker = QueueWorker(app_engine, jobs, on_event=seen, **options)
    sa.event.listen(app_engine, "commit", lambda _connection: commits.append(True))
    with worker:
        seen.wait_for(events.JobSucceeded, count=count)

    assert list(range(1, count + 1)) == written(app_engine)
    assert [("success", 1)] * count == [(row.status, row.attempts) for row in archived(app_engine)]
    assert len(commits) < count


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 10}, ValueError, r"batch_size=10 is for held claims: QueueWorker\(…, claim='held', batch_size=10\)"),
        ({"batch_size": 0, "claim": "held"}, ValueError, "batch_size must be 1 to 1000, not 0"),
        ({"batch_size": 1001, "claim": "held"}, ValueError, "batch_size must be 1 to 1000, not 1001"),
        ({"batch_size": True, "claim": "held"}, TypeError, "batch_size must be an int, not True"),
        ({"batch_size": 2.0, "claim": "held"}, TypeError, "batch_size must be an int, not 2.0"),
    ],
)
def test_wrong_sizes(options, error, message):
    """A size that makes no sense is refused, with what to type instead."""
    with pytest.raises(error, match=message):
        QueueWorker(sa.create_engine("sqlite:///none.db"), JobRegistry(), **options)
