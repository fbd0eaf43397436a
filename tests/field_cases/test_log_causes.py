"""What an operator reads at the default level: the cause, whole and once; no password, no payload."""

import logging
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from proletarian_sa import (
    Job,
    JobRegistry,
    RetryStrategy,
    TablesMissing,
    create_all,
    drop_all,
    events,
    process_next_job,
)
from proletarian_sa.log import log_event
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add, end_session, session_id
from tests.queue_contents import archived, queued
from tests.test_job_session_lost import Rival

PASSWORD = "pa55w0rd-s3cret"  # noqa: S105 - what must not be logged
PAYLOAD = "payl0ad-s3cret"
CODES = {
    "postgresql": {"deadlock": "[40P01]", "missing table": "[42P01]"},
    "mysql": {"deadlock": "(1213, ", "missing table": "(1146, "},
    "mariadb": {"deadlock": "(1213, ", "missing table": "(1146, "},
    "sqlite": {"missing table": "[SQLITE_ERROR]"},
}
"""What each database calls an error."""


class Both:
    """A sink that logs as the default one does, and lets a test wait."""

    def __init__(self):
        self.seen = Recorder()

    def __call__(self, event):
        log_event(event)
        self.seen(event)


@pytest.fixture(autouse=True)
def at_info(caplog):
    """Log as an application does by default."""
    caplog.set_level(logging.INFO)


def ours(caplog, level=logging.WARNING):
    """Return our records of a level or more."""
    return [record for record in caplog.records if record.name == "proletarian_sa" and record.levelno >= level]


def formatted(records):
    """Return what the records look like in a log, tracebacks included."""
    return "\n".join(logging.Formatter("%(levelname)s %(message)s").format(record) for record in records)


def strangers(engine, url):
    """Return an engine with wrong credentials; skip where the server lets anybody in."""
    stranger = sa.create_engine(url)
    try:
        stranger.connect().close()
    except exc.DBAPIError as error:
        return stranger, error
    pytest.skip("no passwords")


def test_wrong_credentials_at_the_start(database, queue_engine, work, caplog):
    """Cause hidden: `start` raises the driver's own error; neither it nor the log shows the password."""
    database.require("server")
    stranger, expected = strangers(queue_engine, database.url.set(username="nobody", password=PASSWORD))
    worker, _ = work(lambda _job: None, engine=stranger)

    with pytest.raises(exc.DBAPIError) as caught:
        worker.start()

    assert str(expected.orig) == str(caught.value.orig)
    assert PASSWORD not in formatted(ours(caplog, logging.DEBUG)) + str(caught.value) + repr(stranger)


def test_credentials_that_become_wrong(database, queue_engine, work, caplog):
    """Cause hidden: new connections that are refused while a worker runs are told with the driver's words, once with traceback."""
    database.require("server")
    _, expected = strangers(queue_engine, database.url.set(username="nobody", password=PASSWORD))
    engine, numbers, wrong = database.create_engine(), set(), threading.Event()

    @sa.event.listens_for(engine, "do_connect")
    def give_credentials(_dialect, _record, _arguments, parameters):
        if wrong.is_set():
            parameters.update(user="nobody", password=PASSWORD)

    @sa.event.listens_for(engine, "checkout")
    def note(raw, _record, _proxy):
        numbers.add(number_of(raw))

    sink = Both()
    worker, _ = work(lambda _job: None, engine=engine, on_event=sink)
    worker.start()
    add(queue_engine, payload=PAYLOAD)
    sink.seen.wait_for(events.JobSucceeded)
    wrong.set()
    for number in numbers:
        end_session(queue_engine, number)
    wait_until(lambda: sink.seen.of(events.WorkerFailed) or sink.seen.of(events.TransientErrorMet, consecutive=3), timeout=PATIENCE)
    worker.stop()
    records = ours(caplog)
    text = formatted(records)

    assert str(expected.orig).splitlines()[-1][-40:] in text
    assert 1 == sum(record.exc_info is not None for record in records)
    assert PASSWORD not in text
    assert PAYLOAD not in text


def number_of(raw):
    """Return the server's number of a driver's connection."""
    return raw.info.backend_pid if hasattr(raw, "info") else raw.thread_id()


def test_a_missing_table(queue_engine, work, caplog):
    """Cause hidden: a table that is not there, or that vanishes, is named with the driver's message, its code and one traceback."""
    sink = Both()
    worker, _ = work(lambda _job: None, on_event=sink)
    drop_all(queue_engine)
    with pytest.raises(TablesMissing, match=r"There is no table .*job"):
        worker.start()

    create_all(queue_engine)
    worker.start()
    sink.seen.wait_for(events.WorkerStarted)
    drop_all(queue_engine)
    sink.seen.wait_for(events.TransientErrorMet, consecutive=3)
    create_all(queue_engine)
    sink.seen.wait_for(events.Recovered)
    first, *later = [record for record in ours(caplog) if "claiming jobs: " in record.getMessage()]

    assert CODES[queue_engine.dialect.name]["missing table"] in first.getMessage()
    assert str(first.exc_info[1].orig)[:100] in first.getMessage()
    assert "job" in str(first.exc_info[1].orig)
    assert [None] * len(later) == [record.exc_info for record in later]
    assert any("works again after" in record.getMessage() for record in ours(caplog, logging.INFO))


def test_a_deadlock(database, app_engine, caplog):
    """Cause hidden: a deadlock in `job.session` is one warning with the driver's message, its code and the traceback."""
    database.require("row_locks")
    rival = Rival(app_engine)
    add(app_engine, payload=PAYLOAD)
    process_next_job(app_engine, lambda job: rival.collide(job.session), handler_mode="advanced")
    rival.thread.join(PATIENCE)

    (record,) = ours(caplog)
    assert "WARNING" == record.levelname
    assert CODES[app_engine.dialect.name]["deadlock"] in record.getMessage()
    assert "deadlock" in record.getMessage().lower()
    assert "in collide" in formatted([record])
    assert PAYLOAD not in formatted([record])


def test_a_killed_connection(database, queue_engine, work, caplog):
    """Cause hidden: a connection that the server ended under a handler is one warning with its message and the traceback."""
    database.require("server")
    sink = Both()
    add(queue_engine, payload=PAYLOAD)

    def handler(job):
        end_session(queue_engine, session_id(job.session.connection()))
        job.session.execute(sa.select(1))

    worker, _ = work(handler, on_event=sink)
    worker.start()
    sink.seen.wait_for(events.JobTransactionDied)
    worker.stop()

    record, *others = ours(caplog)
    assert [] == others
    assert str(record.exc_info[1].orig)[:40] in record.getMessage()
    assert "in handler" in formatted([record])
    assert PAYLOAD not in formatted([record])


def broken_sink(event):
    """Have a bug, and log as usual otherwise."""
    log_event(event)
    if isinstance(event, events.JobStarted):
        raise LookupError("bug in the sink")  # noqa: TRY004 - any bug


def broken_strategy(_job, _error):
    """Have a bug."""
    raise LookupError("bug in the strategy")


def broken_session():
    """Have a bug."""
    raise LookupError("bug in the session factory")


def make_session_with_a_broken_hook(engine):
    """Return a session of which a hook has a bug."""
    session = Session(engine)

    def broken_hook(_session):
        raise LookupError("bug in the hook")

    sa.event.listen(session, "before_commit", broken_hook)
    return session


def fail(_job):
    """Fail."""
    raise ValueError("no good")


def use_session(job):
    """Ask for the session."""
    job.session.execute(sa.select(1))


def hooks(engine):
    """Return, by what is broken: the handler, the options, and where the log must lead."""
    return {
        "sink": (lambda _job: None, {"on_event": broken_sink}, "in broken_sink"),
        "strategy": (fail, {"retry": broken_strategy}, "in broken_strategy"),
        "session factory": (use_session, {"session_factory": broken_session}, "in broken_session"),
        "session hook": (use_session, {"session_factory": lambda: make_session_with_a_broken_hook(engine)}, "in broken_hook"),
    }


@pytest.mark.parametrize("name", ["sink", "strategy", "session factory", "session hook"])
def test_an_error_in_a_hook(queue_engine, caplog, name):
    """Cause hidden: a bug in code of the application's that we call is one error with its message and its traceback."""
    handler, options, place = hooks(queue_engine)[name]
    add(queue_engine, payload=PAYLOAD)
    process_next_job(queue_engine, handler, handler_mode="advanced", **options)

    (record,) = [record for record in ours(caplog) if "bug in the" in record.getMessage()]
    assert "ERROR" == record.levelname
    assert f"LookupError: bug in the {name.removeprefix('session ') if name == 'session hook' else name}" in record.getMessage()
    assert 1 == formatted(ours(caplog)).count(place)
    assert PAYLOAD not in formatted(ours(caplog))


def test_a_refused_statement_of_the_handlers(queue_engine, caplog):
    """Cause hidden: the message has the driver's part alone; parameters are in the traceback unless the engine hides them."""
    engine = sa.create_engine(queue_engine.url, hide_parameters=True)
    child = add(queue_engine, "other", queue="other")
    jobs = JobRegistry()

    @jobs.handler("work", retry=RetryStrategy(retries=1))
    def enqueue_again(payload, job):
        job.session.add(Job(job_type="child", payload=payload, job_id=child))

    add(queue_engine, payload=PAYLOAD)
    for _ in range(2):
        process_next_job(engine, jobs)
    engine.dispose()
    first, second = ours(caplog)

    for record in (first, second):
        assert "IntegrityError" in record.getMessage() or "UniqueViolation" in record.getMessage()
        assert "INSERT" not in record.getMessage()
    assert PAYLOAD not in formatted([first, second])
    assert "INSERT INTO" in formatted([first])
    assert ["failure"] == [row.status for row in archived(queue_engine)]
    assert [child] == [row.job_id for row in queued(queue_engine)]


def test_notes_are_shown_without_parameters(queue_engine, caplog):
    """Cause hidden: notes of an exception belong to its cause, but not the statement that one of them quotes."""

    def handler(_job):
        error = ValueError("no good")
        error.add_note(f"It follows from this\n[SQL: INSERT]\n[parameters: {PAYLOAD}]")
        raise error

    add(queue_engine)
    process_next_job(queue_engine, handler, handler_mode="advanced")

    (record,) = ours(caplog)
    assert record.getMessage().endswith("ValueError: no good It follows from this")
