"""What one job leaves behind for the next: nothing in its context, nothing in memory."""

import contextvars
import decimal
import gc
import logging
import queue
import threading
import tracemalloc
import weakref

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from proletarian_sa import JobRegistry, JobTables, RetryStrategy, enqueue_many, events
from tests.helpers import wait_until
from tests.observing import PATIENCE, add
from tests.queue_contents import User, archived, queued

pytestmark = pytest.mark.long

TENANT = contextvars.ContextVar("tenant", default="nobody")
LOG_CONTEXT = contextvars.ContextVar("log_context")
LOCAL = threading.local()


@pytest.mark.usefixtures("claim")
def test_nothing_of_a_job_is_seen_by_the_next(queue_engine, work):
    """Context leaks between jobs: each finds defaults (tenant, log and decimal context); the retry function is its job's."""
    found, chosen = queue.Queue(), []

    def seen_now():
        return TENANT.get(), LOG_CONTEXT.get({}), decimal.getcontext().prec

    def handler(job):
        found.put(seen_now())
        TENANT.set(job.payload)
        LOG_CONTEXT.set({"job": job.payload})
        decimal.getcontext().prec = 3
        if job.payload == "b":
            raise ValueError

    def choose(_job, _error):
        chosen.append(seen_now())
        TENANT.set("the retry function")
        return RetryStrategy()

    for payload in ("a", "b", "c"):
        add(queue_engine, payload=payload)
    worker, _ = work(handler, retry=choose)
    token = TENANT.set("the starter, in a request")
    try:
        worker.start()
        wait_until(lambda: not queued(queue_engine), timeout=PATIENCE)
    finally:
        TENANT.reset(token)

    assert [("nobody", {}, 28)] * 3 == [found.get_nowait() for _ in range(3)]
    assert [("b", {"job": "b"}, 3)] == chosen


@pytest.mark.usefixtures("claim")
def test_the_hooks_of_the_session_run_in_the_jobs_context(app_engine, work):
    """Context leaks between jobs: hooks of `job.session` see the job's own context at the final flush and commit."""
    hooks = []

    def make_session():
        session = sessionmaker(app_engine)()

        @sa.event.listens_for(session, "before_flush")
        def stamp(flushed, _context, _objects):
            for user in flushed.new:
                user.name = f"{user.name} by {TENANT.get()}"

        for name in ("before_commit", "after_commit"):
            sa.event.listen(session, name, lambda _session, name=name: hooks.append((name, TENANT.get())))
        sa.event.listen(session, "after_commit", lambda _session: TENANT.set("a hook's"))
        return session

    def handler(job):
        if job.payload:
            TENANT.set(job.payload)
        job.session.add(User(name="written"))

    for payload in ("a", None, "b"):
        add(app_engine, payload=payload)
    worker, seen = work(handler, session_factory=make_session)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=3)
    with Session(app_engine) as session:
        names = session.scalars(sa.select(User.name).order_by(User.id)).all()

    assert ["written by a", "written by nobody", "written by b"] == names
    assert [(name, tenant) for tenant in ("a", "nobody", "b") for name in ("before_commit", "after_commit")] == hooks


@pytest.mark.usefixtures("claim")
def test_what_a_sink_binds_at_the_start_is_the_jobs(queue_engine, work):
    """Context leaks between jobs: log and trace context that a sink sets when a job starts is seen in that job alone."""
    found = queue.Queue()

    def sink(event):
        if isinstance(event, events.JobStarted) and event.job_type == "traced":
            TENANT.set(f"trace of {event.job_id}")

    traced, plain = add(queue_engine, "traced"), add(queue_engine, "plain")
    worker, _ = work(lambda _job: found.put(TENANT.get()), on_event=sink)
    worker.start()

    assert [f"trace of {traced}", "nobody"] == [found.get(timeout=PATIENCE) for _ in range(2)]
    assert plain != traced


def test_threads_are_reused(queue_engine, work):
    """Context leaks between jobs: a worker thread runs job after job, so `threading.local` is the application's to clear."""
    found = queue.Queue()

    def handler(job):
        found.put((threading.current_thread(), getattr(LOCAL, "value", None)))
        LOCAL.value = job.payload

    for payload in ("a", "b"):
        add(queue_engine, payload=payload)
    worker, _ = work(handler)
    worker.start()

    (first, before), (second, after) = (found.get(timeout=PATIENCE) for _ in range(2))
    assert first is second
    assert (None, "a") == (before, after)


class Quiet:
    """A sink that counts, and keeps nothing of what it is given."""

    def __init__(self):
        self.finished = 0
        self._news = threading.Condition()

    def __call__(self, event):
        if isinstance(event, events.JobSucceeded | events.JobFailed):
            with self._news:
                self.finished += 1
                self._news.notify_all()

    def wait_for(self, count):
        """Return when so many jobs have been finished in all."""
        with self._news:
            assert self._news.wait_for(lambda: self.finished >= count, PATIENCE), self.finished


class Failure(Exception):  # noqa: N818 - see its use
    """Of the test's own, so that its life can be watched."""


def in_a_cycle(job, extra):
    """Fail with an exception that is in a reference cycle with its own traceback, and that has the payload in a variable."""
    payload, error = job.payload, Failure(extra)
    error.job, error.payload = job, payload
    raise error


@pytest.mark.usefixtures("claim")
@pytest.mark.parametrize("way", ["plain", "job.session"])
def test_nothing_of_a_job_is_kept_while_idle(app_engine, work, way):
    """Memory growth: the last job, its payload and its exception are gone once it is recorded, by reference counts alone."""
    alive, seen = {}, Quiet()

    def watch(**found):
        alive.update({f"{name} {len(alive)}": weakref.ref(value) for name, value in found.items()})

    def fail():
        failure = Failure("x")
        watch(failure=failure)
        try:
            raise failure
        finally:
            del failure  # else this frame would be in a cycle of the application's own making

    def handler(job):
        payload = job.payload  # a set, which can be watched
        watch(payload=payload, job=job)
        if way != "plain":
            watch(session=job.session)
        if "fail" in payload:
            fail()

    worker, _ = work(handler, on_event=seen)
    gc.collect()
    gc.disable()
    try:
        worker.start()
        for number, payload in enumerate(({"good"}, {"fail"}), 1):
            add(app_engine, payload=payload)
            seen.wait_for(number)
            wait_until(lambda: not [name for name, found in alive.items() if found() is not None], timeout=PATIENCE)
    finally:
        gc.enable()

    assert {"plain": 5, "job.session": 7}[way] == len(alive)
    assert ["success", "failure"] == [row.status for row in archived(app_engine)]


PADDING = "x" * 20_000


def test_memory_is_flat_however_many_jobs(queue_engine, work):
    """Memory growth: many jobs, a third of them failing in reference cycles, leave a worker no larger than before."""
    seen = Quiet()
    jobs = JobRegistry()
    jobs.handler("good")(lambda payload: None)
    jobs.handler("bad", retry=RetryStrategy(retries=1))(lambda payload, job: in_a_cycle(job, payload))
    worker, _ = work(jobs, on_event=seen, worker_threads=2)

    def run_some(count):
        before = seen.finished
        rows = [{"job_type": "bad" if number % 3 == 0 else "good", "payload": PADDING} for number in range(count)]
        with queue_engine.begin() as connection:
            enqueue_many(connection, rows)
        seen.wait_for(before + count)
        wait_until(lambda: not queued(queue_engine), timeout=PATIENCE)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    logging.getLogger("proletarian_sa").setLevel(logging.CRITICAL)
    tracemalloc.start()
    try:
        worker.start()
        run_some(30)  # everything that is remembered once is remembered by now
        first = run_some(30)
        last = run_some(90)
    finally:
        tracemalloc.stop()
        logging.getLogger("proletarian_sa").setLevel(logging.NOTSET)

    assert last - first < 5 * len(PADDING)  # of 90 payloads, and 60 attempts that failed


def test_a_huge_payload_is_not_kept(queue_engine, work):
    """Memory growth: after a payload of many megabytes and some small ones, nothing of its size is left in memory."""
    size = 8 * 2**20
    tables, seen = JobTables(max_payload=2 * size), Quiet()
    worker, _ = work(lambda _job: None, on_event=seen, tables=tables)
    tracemalloc.start()
    try:
        worker.start()
        add(queue_engine, payload="small", tables=tables)
        seen.wait_for(1)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        add(queue_engine, payload="x" * size, tables=tables)
        seen.wait_for(2)
        peak = tracemalloc.get_traced_memory()[1]
        wait_until(lambda: tracemalloc.get_traced_memory()[0] - before < size / 4 or None, timeout=PATIENCE)
    finally:
        tracemalloc.stop()

    assert peak - before > size
    assert ["success", "success"] == [row.status for row in archived(queue_engine, tables)]
