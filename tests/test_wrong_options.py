"""Options of a wrong kind or value: refused where they are given, in words that say what to give, not later by a failing job."""

import datetime as dt
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import AssertionPool

from alembic_ext.proletarian_sa import write_revision
from proletarian_sa import (
    DatabaseNotSupported,
    Job,
    JobRegistry,
    JobTables,
    QueueWorker,
    RetryStrategy,
    check_tables,
    create_all,
    drop_all,
    enqueue,
    enqueue_many,
    process_next_job,
)
from proletarian_sa.grants import grants
from tests.observing import add

jobs = JobRegistry()


@jobs.handler("nothing")
def nothing(_payload):
    """Do nothing."""


@pytest.fixture
def offline():
    """Return an engine that is never connected: options are checked before."""
    return sa.create_engine("sqlite:///never.db")


def test_the_engine_behind_an_async_engine_is_refused():
    """`async_engine.sync_engine` is an Engine, but its driver needs an event loop: refused, with what to give."""
    engine = create_async_engine("sqlite+aiosqlite:///never.db").sync_engine
    with pytest.raises(TypeError, match=r"cannot use sqlite\+aiosqlite, a driver for asyncio\. Give it an engine of its own"):
        QueueWorker(engine, jobs)


CALLBACKS = {
    "retry": (lambda _job: None, "(job, exception)"),
    "failed_job": (lambda _job: None, "(job, exception)"),
    "on_polling_error": (lambda: None, "(error)"),
    "on_shutdown": (lambda _worker: None, "()"),
    "on_event": (lambda: None, "(event)"),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_of_other_arguments_are_refused(offline, name):
    """A callback that could not be called is refused when it is given, not when it is needed: by name, with what it is given."""
    callback, given = CALLBACKS[name]
    with pytest.raises(TypeError) as caught:
        QueueWorker(offline, jobs, **{name: callback})

    assert str(caught.value).startswith(f"{name} is called with {given}; <function ")


@pytest.mark.parametrize("name", ["retry", "on_event"])
def test_callbacks_that_would_never_run_are_refused(offline, name):
    """An `async def` retry function or event sink would be called and never run: refused, as for the other callbacks."""

    async def later(_job, _exception=None):
        return None

    with pytest.raises(TypeError, match="is an `async def` function or a generator"):
        QueueWorker(offline, jobs, **{name: later})


def test_callbacks_without_a_signature_are_taken(offline):
    """What can be called with the arguments is taken: bound methods, builtins, and functions of any arguments."""
    seen = []
    options = {"on_event": seen.append, "failed_job": print, "retry": lambda *_: None, "on_shutdown": threading.Event().set}

    assert not QueueWorker(offline, jobs, **options).is_running


def test_the_class_of_the_strategies_is_refused(offline):
    """`retry=RetryStrategy`, without its numbers, is refused."""
    with pytest.raises(TypeError, match=r"retry must be a RetryStrategy or a function.*: retry=RetryStrategy\(retries=4"):
        QueueWorker(offline, jobs, retry=RetryStrategy)


def test_the_bare_decorator_is_explained():
    """`@jobs.handler` without a job type says how to write it, with the name of the function."""

    def send_mail(_payload):
        """Send nothing."""

    with pytest.raises(TypeError, match=r"The decorator needs a job type: @jobs\.handler\('send-mail'\)\."):
        JobRegistry().handler(send_mail)


@pytest.mark.parametrize("tables", [None, "job", Job, JobTables])
def test_tables_must_be_job_tables(offline, tables):
    """`tables=` of another kind is refused by every function that takes it, in the same words."""
    calls = [
        lambda: QueueWorker(offline, jobs, tables=tables),
        lambda: process_next_job(offline, jobs, tables=tables),
        lambda: enqueue(Session(offline), "nothing", tables=tables),
        lambda: enqueue_many(Session(offline), [], tables=tables),
        lambda: create_all(offline, tables=tables),
        lambda: drop_all(offline, tables=tables),
        lambda: check_tables(offline, tables=tables),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"tables must be a JobTables, not .* Leave it out for the default tables"):
            call()


def test_models_must_be_classes():
    """What is no class is refused as a model, with an example."""
    with pytest.raises(TypeError, match=r"'job' is no class: JobTables takes models, such as class Job\(JobMixin, Base\)"):
        JobTables(job="job", archived_job="archived_job")  # type: ignore[arg-type]


def test_two_tables_of_one_name_are_refused():
    """One name for both tables is refused where names are given: for tables, a revision and grants."""
    with pytest.raises(ValueError, match=r"job_table and archived_job_table are both 'task'\. Give each table a name of its own"):
        JobTables(job_table="task", archived_job_table="task")
    with pytest.raises(ValueError, match="job_table and archived_job_table are both 'task'"):
        write_revision(None, job_table="task", archived_job_table="task")
    with pytest.raises(ValueError, match="--job-table and --archived-job-table are both 'task'"):
        grants("postgresql", role="worker", job_table="task", archived_job_table="task")


@pytest.mark.parametrize("name", ["polling_interval", "stop_timeout"])
@pytest.mark.parametrize("duration", [1e12, dt.timedelta(days=31)])
def test_waits_that_no_thread_can_wait_are_refused(offline, name, duration):
    """A wait of years, as of milliseconds taken for seconds, is refused: it would end the worker, or `stop`, by an error."""
    with pytest.raises(ValueError, match=rf"{name}=.* is more than 2592000 seconds \(30 days, 0:00:00\)"):
        QueueWorker(offline, jobs, **{name: duration})


def test_a_job_may_wait_for_any_time(queue_engine):
    """`job.wait` with a time that no thread can wait begins to wait, and ends when it is asked to."""
    add(queue_engine)
    answers = []

    def wait(job):
        threading.Timer(0.01, job._stop.set).start()
        answers.append(job.wait(1e12))

    assert "succeeded" == process_next_job(queue_engine, wait, handler_mode="advanced").status
    assert [True] == answers


def test_a_pool_of_one_asserted_connection_is_refused(database):
    """AssertionPool raises at a second connection, which a worker needs: refused at the start, with what to use."""
    engine = database.create_engine(poolclass=AssertionPool)
    with pytest.raises(DatabaseNotSupported, match="uses AssertionPool: a worker needs more than the one connection it allows"):
        QueueWorker(engine, jobs).start()
