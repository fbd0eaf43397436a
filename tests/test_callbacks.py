"""`on_polling_error` and `on_shutdown`: what the application decides and learns, and what becomes of errors in there."""

import logging
import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import QueueWorker, events
from proletarian_sa.log import log_event
from tests.observing import PATIENCE, Gate, add
from tests.queue_contents import archived

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("claim")]


class Broken:
    """Lets the claims of an engine fail in a way that waiting does not mend, until it is mended."""

    def __init__(self, engine: sa.Engine) -> None:
        self.mended = threading.Event()
        sa.event.listen(engine, "before_cursor_execute", self._execute, retval=True)

    def _execute(self, _connection, _cursor, statement, parameters, _context, _many):
        if self.mended.is_set() or "lease_until" not in statement:
            return statement, parameters
        return "SELECT nonsense FROM nowhere_at_all WHERE (", ()


@pytest.fixture
def broken(queue_engine):
    """Break the claims of workers that are started already."""
    return lambda: Broken(queue_engine)


def test_a_polling_error_stops_the_worker_by_default(queue_engine, work, broken):
    """Policy on polling errors (`:on-polling-error`): what waiting does not mend ends in a defined state, which says why."""
    worker, seen = work(lambda _job: None)
    worker.start()
    broken()
    failed = seen.wait_for(events.WorkerFailed)
    assert worker.join(PATIENCE)

    assert worker.error is failed.exception
    assert not worker.is_running


@pytest.mark.parametrize("verdict", [True, "yes"])
def test_a_true_verdict_stops_the_worker(queue_engine, work, broken, verdict):
    """`:on-polling-error`: `on_polling_error` is given the error, and anything true stops the worker."""
    asked = []
    worker, seen = work(lambda _job: None, on_polling_error=lambda error: asked.append(error) or verdict)
    worker.start()
    broken()
    seen.wait_for(events.WorkerFailed)
    assert worker.join(PATIENCE)

    assert [worker.error] == asked
    assert isinstance(asked[0], sa.exc.DBAPIError)


@pytest.mark.parametrize("verdict", [False, None])
def test_a_false_verdict_lets_the_worker_go_on(queue_engine, work, broken, verdict, caplog):
    """`:on-polling-error`: anything else lets it poll again after a growing pause, and work when the fault is mended."""
    asked = []
    worker, seen = work(lambda _job: None, on_polling_error=lambda error: asked.append(error) or verdict)
    worker.start()
    fault = broken()
    seen.wait_for(events.PollingErrorTolerated, consecutive=2)
    fault.mended.set()
    job_id = add(queue_engine)
    seen.wait_for(events.JobSucceeded, job_id=job_id)
    worker.stop()
    pauses = [event.retry_in.total_seconds() for event in seen.of(events.PollingErrorTolerated)]

    assert worker.error is None
    assert len(asked) == len(pauses)
    assert 0.05 <= pauses[0] <= 0.1 <= pauses[1] <= 0.2
    assert 1 == len(seen.of(events.Recovered))


def test_a_callback_that_raises_stops_the_worker_loudly(queue_engine, work, broken):
    """Policy on polling errors: a raising callback kills no thread silently: both errors are told, and the worker stops."""

    def fail(_error):
        raise SystemExit("no verdict")

    worker, seen = work(lambda _job: None, on_polling_error=fail)
    worker.start()
    broken()
    told = seen.wait_for(events.CallbackFailed)
    assert worker.join(PATIENCE)

    assert ("on_polling_error", "no verdict") == (told.callback, str(told.exception))
    assert isinstance(worker.error, sa.exc.DBAPIError)


def test_errors_that_pass_are_not_asked_about(queue_engine, work, database):
    """SQLTransientException: deadlock, disconnect, missing table: waited out, whatever the callback would say."""
    asked = []
    worker, seen = work(lambda _job: None, on_polling_error=lambda error: asked.append(error) or True)
    worker.start()
    with queue_engine.begin() as connection:
        rename = "ALTER TABLE {} RENAME TO {}"
        schema = "proletarian." if database.kind.startswith("postgresql") else ""
        connection.exec_driver_sql(rename.format(f"{schema}job", "job_away"))
    seen.wait_for(events.TransientErrorMet, count=2)
    with queue_engine.begin() as connection:
        away = "job_away" if not schema else f"{schema}job_away"
        connection.exec_driver_sql(rename.format(away, "job"))
    job_id = add(queue_engine)
    seen.wait_for(events.JobSucceeded, job_id=job_id)

    assert [] == asked
    assert worker.is_running


def test_on_shutdown_is_called_after_the_last_handler(queue_engine, work):
    """`:on-shutdown`: called once, without arguments, when all handlers have returned and are recorded; `stop` returns after it."""
    gate = Gate()
    found = []
    worker, _seen = work(gate, on_shutdown=lambda: found.append([row.status for row in archived(queue_engine)]))
    add(queue_engine)
    worker.start()
    gate.begun.get(timeout=PATIENCE)
    assert 1 == len(worker.stop(0.01))
    assert [] == found
    gate.open.set()
    assert worker.join(PATIENCE)

    assert [["success"]] == found
    assert [] == worker.stop()
    assert 1 == len(found)


def test_on_shutdown_after_an_error(queue_engine, work, broken):
    """A worker that an error has ended calls it too: its threads have ended."""
    called = threading.Event()
    worker, _seen = work(lambda _job: None, on_shutdown=called.set)
    worker.start()
    broken()

    assert called.wait(PATIENCE)
    assert worker.join(PATIENCE)


def test_an_on_shutdown_that_raises_harms_nobody(queue_engine, work, caplog):
    """Its error is an event and an ERROR line; the worker has stopped, and can be started again."""

    def fail():
        raise KeyError("summary")

    worker, seen = work(lambda _job: None, on_shutdown=fail)
    worker.start()
    assert [] == worker.stop()
    (told,) = seen.of(events.CallbackFailed)
    with caplog.at_level(logging.ERROR, logger="proletarian_sa"):
        log_event(told)

    assert ("on_shutdown", "'summary'") == (told.callback, str(told.exception))
    assert "on_shutdown failed: KeyError: 'summary'" in caplog.text
    worker.start()
    job_id = add(queue_engine)
    seen.wait_for(events.JobSucceeded, job_id=job_id)


@pytest.mark.parametrize("name", ["on_polling_error", "on_shutdown", "failed_job"])
def test_callbacks_must_be_callable(queue_engine, name):
    """What is no function is refused at once, by name."""
    with pytest.raises(TypeError, match=f"{name} must be a function"):
        QueueWorker(queue_engine, lambda *_: None, **{name: "print"})
