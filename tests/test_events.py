"""Events: every step is told once, through one choke point, and a sink costs no job."""

import dataclasses
import inspect
import logging

import pytest

from proletarian_sa import JobInterrupted, RetryStrategy, events, process_next_job
from tests.observing import Recorder, add
from tests.queue_contents import archived, queued


def outcomes():
    """Return handlers with the events that one run of each emits."""

    def fail(*_):
        raise ValueError("no good")

    def interrupt(*_):
        raise JobInterrupted

    retry = {"retry": RetryStrategy(retries=1, delays=[60])}
    return {
        "success": (lambda *_: None, {}, ["JobsClaimed", "JobStarted", "JobSucceeded"]),
        "failure": (fail, {}, ["JobsClaimed", "JobStarted", "JobAttemptFailed", "JobFailed"]),
        "retry": (fail, retry, ["JobsClaimed", "JobStarted", "JobAttemptFailed", "JobRetried"]),
        "release": (interrupt, {}, ["JobsClaimed", "JobStarted", "JobReleased"]),
    }


def test_each_outcome_has_its_events(queue_engine):
    """`:log`: one event per step, in order, each with the job's facts."""
    for handler, options, expected in outcomes().values():
        seen = Recorder()
        job_id = add(queue_engine, "work", queue="q")

        process_next_job(queue_engine, handler, queue="q", worker_id="w", on_event=seen, **options)

        assert expected == seen.names()
        assert {"w"} == {event.worker_id for event in seen.events}
        facts = {(event.job_id, event.job_type, event.queue, event.attempt) for event in seen.of(events.JobEvent)}
        assert {(job_id, "work", "q", 1)} == facts


def test_a_failed_attempt_says_what_comes_next(queue_engine):
    """The event carries the exception, the delay and the retries left; None means archived."""
    seen = Recorder()
    add(queue_engine)

    def fail(*_):
        raise ValueError("no good")

    for _ in range(2):
        process_next_job(queue_engine, fail, retry=RetryStrategy(retries=1), on_event=seen)

    first, second = seen.of(events.JobAttemptFailed)
    assert (0.0, 0, 1) == (first.retry_in.total_seconds(), first.retries_left, first.attempt)
    assert (None, 0, 2) == (second.retry_in, second.retries_left, second.attempt)
    assert "no good" == str(first.exception)


def test_success_is_told_after_it_is_committed(queue_engine):
    """When the event comes, the job is in the archive, seen from any connection."""
    found = []

    def look(event):
        if isinstance(event, events.JobSucceeded | events.JobFailed):
            found.append([row.status for row in archived(queue_engine)])
        if isinstance(event, events.JobRetried | events.JobReleased):
            found.append([row.claimed_by for row in queued(queue_engine)])

    for handler, options, _ in outcomes().values():
        add(queue_engine)
        process_next_job(queue_engine, handler, on_event=look, **options)

    assert [["success"], ["success", "failure"], [None], [None, None]] == [sorted(one, key=str, reverse=True) for one in found]


class Refused(BaseException):
    """What `except Exception` does not catch."""


@pytest.mark.parametrize("exception", [ValueError, SystemExit, GeneratorExit, Refused])
def test_a_sink_that_raises_costs_nothing(queue_engine, exception):
    """Callback raises: whatever a sink raises, at whichever event, each job has its outcome once; and it is logged."""

    def sink(_event):
        raise exception("broken sink")

    for number, (handler, options, _) in enumerate(outcomes().values()):
        add(queue_engine, queue=str(number))
        assert process_next_job(queue_engine, handler, queue=str(number), on_event=sink, **options)

    assert ["failure", "success"] == sorted(row.status for row in archived(queue_engine))
    assert [None, None] == [row.claimed_by for row in queued(queue_engine)]


def test_a_sink_that_raises_is_logged(queue_engine, caplog):
    """The log says which event the sink failed at, with the traceback."""
    add(queue_engine)

    def sink(event):
        if type(event) is events.JobSucceeded:
            raise LookupError("broken sink")

    process_next_job(queue_engine, lambda *_: None, on_event=sink)

    (record,) = caplog.records
    assert "ERROR" == record.levelname
    assert "an event sink failed at JobSucceeded: LookupError: broken sink" in record.getMessage()
    assert record.exc_info is not None


@pytest.mark.parametrize("exception", [ValueError, SystemExit])
def test_logging_that_raises_costs_nothing(queue_engine, exception, capsys):
    """Also where the logging filter of the application fails, the default sink and its complaint about it cost no job."""

    def refuse(_record):
        raise exception("broken filter")

    logger = logging.getLogger("proletarian_sa")
    logger.addFilter(refuse)
    try:
        for handler, options, _ in outcomes().values():
            add(queue_engine)
            assert process_next_job(queue_engine, handler, **options)
    finally:
        logger.removeFilter(refuse)

    assert ["failure", "success"] == sorted(row.status for row in archived(queue_engine))
    assert f"an event sink and logging failed: {exception.__name__} at JobAttemptFailed" in capsys.readouterr().err


def test_ctrl_c_in_a_sink_travels(queue_engine):
    """Ctrl-C may come at any time in the main thread, in a sink too: the program ends, and the job is free again."""
    add(queue_engine)

    def sink(event):
        if isinstance(event, events.JobStarted):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        process_next_job(queue_engine, lambda *_: None, on_event=sink)

    assert [(None, 0)] == [(row.claimed_by, row.attempts) for row in queued(queue_engine)]


KINDS = [kind for _, kind in inspect.getmembers(events, inspect.isclass) if issubclass(kind, events.Event)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_events_are_frozen_facts(kind):
    """Every event is a frozen dataclass with a docstring that says what happened, and knows its worker."""
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert kind.__doc__
    assert "worker_id" in {field.name for field in dataclasses.fields(kind)}
