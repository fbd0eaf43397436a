"""What a worker says of itself while the database does not answer, refuses, and serves again."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import Health, events, health
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, Spoken, add
from tests.servers.database import Database

SOON = 0.02
"""Seconds after which a missing answer is told in these tests."""


def test_states(claim: str, queue_engine: sa.Engine, work: Callable[..., Any]) -> None:
    """Before the start, while it runs a job, while it stops, and after that; what went well has no reason."""
    gate = Gate()
    worker, _ = work(gate)
    states = [worker.health]
    worker.start()
    add(queue_engine)
    gate.begun.get(timeout=PATIENCE)
    states.append(worker.health)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    wait_until(lambda: worker.health.state == "stopping", timeout=PATIENCE)
    states.append(worker.health)
    gate.open.set()
    stopping.join(PATIENCE)
    states.append(worker.health)

    assert ["stopped", "running", "stopping", "stopped"] == [one.state for one in states]
    assert [0, 1, 1, 0] == [one.running for one in states]
    assert Health(state="stopped", running=0, stalled_for=0.0, reason="") == states[0] == states[-1]


def test_an_error_that_ended_it(claim: str, queue_engine: sa.Engine, database: Database, work: Callable[..., Any]) -> None:
    """`failed`, when it has stopped by itself; the error is in `error`."""
    engine = database.create_engine()
    spoken = Spoken(engine)
    worker, seen = work(lambda _job: None, engine, polling_interval=0.01)
    worker.start()
    spoken.wait_for_a_poll()
    break_the_claims(engine)
    seen.wait_for(events.WorkerFailed)
    assert worker.join(PATIENCE)

    assert "failed" == worker.health.state
    assert "broken" == str(worker.error)


def test_no_answer(
    claim: str, queue_engine: sa.Engine, database: Database, work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cause hidden, no answer at all: health says for how long and of what; an event tells, ever more rarely, and of the end."""
    monkeypatch.setattr(health, "SILENT", SOON)
    engine = database.create_engine()
    spoken = Spoken(engine)
    worker, seen = work(lambda _job: None, engine)
    worker.start()
    spoken.hold = lambda statement: "process_at" in statement
    assert spoken.arrived.wait(PATIENCE)
    told = seen.wait_for(events.DatabaseSilent, 2)
    during = worker.health
    spoken.go.set()
    over = seen.wait_for(events.DatabaseAnswered)
    wait_until(lambda: worker.health.stalled_for < during.stalled_for, timeout=PATIENCE)

    first = seen.of(events.DatabaseSilent)[0]
    assert ("running", "claiming jobs: no answer") == (during.state, during.reason)
    assert SOON <= first.seconds <= told.seconds / 2
    assert during.stalled_for <= over.seconds
    assert {"claiming jobs"} == {event.activity for event in (first, told, over)}


def test_errors(claim: str, queue_engine: sa.Engine, database: Database, work: Callable[..., Any]) -> None:
    """Database outage: while claims fail, health says since when and why, without the statement; then all is well again."""
    engine = database.create_engine()
    spoken = Spoken(engine)
    worker, seen = work(lambda _job: None, engine)
    worker.start()
    spoken.fail = lambda statement: "process_at" in statement
    seen.wait_for(events.TransientErrorMet, 2, activity="claiming jobs")
    during = worker.health
    spoken.fail = lambda _statement: False
    wait_until(lambda: not worker.health.reason.endswith("injected: no connection"), timeout=PATIENCE)

    assert "claiming jobs: TimeoutError: injected: no connection" == during.reason
    assert 0 < during.stalled_for < PATIENCE


def test_what_works_is_forgotten() -> None:
    """What works makes a failure forgotten; of several the longest is told."""
    vigil = health.Vigil()
    vigil.failed("claiming jobs", LookupError("one"))
    vigil.failed("prolonging leases", LookupError("two"))
    first = vigil.stall()
    vigil.works("claiming jobs")
    second = vigil.stall()
    vigil.works("prolonging leases")

    assert "claiming jobs: LookupError: one" == first[1]
    assert "prolonging leases: LookupError: two" == second[1]
    assert (0.0, "") == vigil.stall()


def test_it_is_told_only_of_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that asks nothing of the database is not silent."""
    monkeypatch.setattr(health, "SILENT", SOON)
    vigil, seen, over = health.Vigil(), Recorder(), threading.Event()
    keeper = threading.Thread(target=vigil.keep, args=(seen, "w", over))
    keeper.start()
    with vigil.asking("recording outcomes"):
        seen.wait_for(events.DatabaseSilent)
    seen.wait_for(events.DatabaseAnswered)
    told = len(seen.events)
    over.wait(3 * SOON)
    over.set()
    keeper.join(PATIENCE)

    assert told == len(seen.events)


def test_a_slow_callback_is_no_silence(claim: str, queue_engine: sa.Engine, work: Callable[..., Any]) -> None:
    """While `failed_job` takes its time, nothing is asked of the database, and health does not blame it."""
    begun, go = threading.Event(), threading.Event()

    def failed_job(_job: Any, _error: BaseException) -> None:
        begun.set()
        go.wait(PATIENCE)

    def handler(_job: Any) -> None:
        raise ValueError("no good")

    worker, seen = work(handler, failed_job=failed_job, polling_interval=3600.0)
    worker.start()
    add(queue_engine)
    assert begun.wait(PATIENCE)
    wait_until(lambda: not worker.health.reason.startswith("claiming"), timeout=PATIENCE)
    during = worker.health
    go.set()
    seen.wait_for(events.JobFailed)

    assert (0.0, "") == (during.stalled_for, during.reason)


def break_the_claims(engine: sa.Engine) -> None:
    """Let each claim fail by an error that waiting does not mend."""

    @sa.event.listens_for(engine, "before_cursor_execute")
    def refuse(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        if "process_at" in statement:
            raise LookupError("broken")
