"""What a worker logs of a database that is away: the beginning, the end and a handful of lines, however many threads it has."""

import datetime as dt
import logging
from collections.abc import Callable
from itertools import pairwise
from threading import Event, Thread
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import events, health
from proletarian_sa.finish import Recording
from proletarian_sa.health import LASTING, Vigil
from proletarian_sa.log import log_event
from proletarian_sa.run import Decision
from proletarian_sa.trouble import RECORDING, Trouble
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, Spoken, add
from tests.servers.database import Database

THREADS = 4
AT_ONCE, LONG = dt.timedelta(), LASTING * 10
LOST, REFUSED = OSError("lost"), OSError("refused")


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    """Log as an application does by default."""
    caplog.set_level(logging.INFO)


def met(trouble: Trouble, error: Exception = LOST, retry_in: dt.timedelta = AT_ONCE, **facts: Any) -> None:
    """Let it meet an error."""
    trouble.met(error, lambda _failures: retry_in, **facts)


def said(caplog: pytest.LogCaptureFixture, activity: str = RECORDING) -> list[str]:
    """Return the levels of the lines about an activity, with a mark where a traceback is shown."""
    records = [record for record in caplog.records if f"] {activity}: " in record.getMessage()]
    return [record.levelname + "!" * (record.exc_info is not None) for record in records]


def recording() -> Recording:
    """Return something to be recorded."""
    return Recording(Decision(claimed=None, verdict="success"))  # type: ignore[arg-type]


def test_several_wait_for_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """Log flood: outcomes that several threads cannot record are one line; the recovery is told once, of the last; then anew."""
    seen = Recorder()

    def sink(event: events.Event) -> None:
        seen(event)
        log_event(event)

    trouble, waiting = Trouble(sink, "w", RECORDING, Vigil()), [recording() for _ in range(THREADS)]
    for _ in range(2):
        for _ in range(2):
            for one in waiting:
                met(trouble, waiting=[one])
        trouble.over(waiting[:1])
        trouble.over([recording()])
        for one in waiting[1:]:
            met(trouble, waiting=[one])
            trouble.over([one])

    assert ["WARNING!", "INFO"] * 2 == said(caplog)
    assert [*range(1, 3 * THREADS)] * 2 == [event.consecutive for event in seen.of(events.TransientErrorMet)]
    assert [3 * THREADS - 1] * 2 == [event.failures for event in seen.of(events.Recovered)]


def test_another_reason_of_another_thread(caplog: pytest.LogCaptureFixture) -> None:
    """Cause hidden: another reason is told, whichever thread has met it."""
    trouble, waiting = Trouble(log_event, "w", RECORDING, Vigil()), [recording(), recording()]
    for error, one in zip([LOST, LOST, LOST, REFUSED], waiting * 2, strict=True):
        met(trouble, error, waiting=[one])

    assert ["WARNING!", "WARNING!"] == said(caplog)


def test_one_that_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for an outcome that is given up, or forgotten: what works next ends the trouble."""
    trouble, (one, forgotten) = Trouble(log_event, "w", RECORDING, Vigil()), (recording(), recording())
    met(trouble, waiting=[one, forgotten])
    trouble.give_up(one)
    del forgotten
    before = said(caplog)
    trouble.over([recording()])

    assert ["WARNING!"] == before
    assert ["WARNING!", "INFO"] == said(caplog)


def test_long_waits_are_told_of_the_worker() -> None:
    """Log flood: when waits are long a worker says again that it waits, not sooner than it has said, of all that it does once."""
    vigil = Vigil()
    activities = [f"activity {number}" for number in range(THREADS)]
    first = [vigil.news(activity, LOST, AT_ONCE) for activity in activities]
    short = [vigil.news(activity, LOST, LASTING / 2) for activity in activities]
    long = [vigil.news(activity, LOST, LONG) for _ in range(3) for activity in activities]

    assert ["new"] * THREADS == first
    assert ["repeated"] * THREADS == short
    assert ["lasting"] + ["repeated"] * (3 * THREADS - 1) == long


def test_a_wait_that_is_over_is_followed_by_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage that lasts is told again, once the wait is over that was told of."""
    wait = dt.timedelta(milliseconds=20)
    monkeypatch.setattr(health, "LASTING", wait)
    vigil = Vigil()
    told = [vigil.news(RECORDING, LOST, wait) for _ in range(2)]
    wait_until(lambda: vigil.news(RECORDING, LOST, wait) == "lasting", timeout=PATIENCE)

    assert ["new", "repeated"] == told


def test_workers_of_one_name(caplog: pytest.LogCaptureFixture) -> None:
    """Two workers of one name in one process: each tells of its own trouble, whatever becomes of the other."""
    one, other = (Trouble(log_event, "w", "claiming jobs", Vigil()) for _ in range(2))
    for trouble in (one, other, one, other):
        met(trouble)
    one.over()
    met(other)
    other.over()
    met(one)

    assert ["WARNING!", "WARNING!", "INFO", "INFO", "WARNING!"] == said(caplog, "claiming jobs")


def test_outcomes_of_several_jobs(
    claim: str, queue_engine: sa.Engine, database: Database, work: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Log flood: while the database refuses the outcomes of several jobs, that is one line, and another when all are recorded."""
    engine, gate, seen = database.create_engine(pool_size=3 * THREADS), Gate(), Recorder()
    spoken = Spoken(engine)

    def sink(event: events.Event) -> None:
        log_event(event)
        seen(event)

    worker, _ = work(gate, engine, worker_threads=THREADS, on_event=sink)
    worker.start()
    for _ in range(THREADS):
        add(queue_engine)
    for _ in range(THREADS):
        gate.begun.get(timeout=PATIENCE)
    spoken.fail = lambda statement: "archived_job" in statement
    gate.open.set()  # a leased worker has one thread that records, a held one records in each
    seen.wait_for(events.TransientErrorMet, 2 * THREADS if claim == "held" else 2, activity=RECORDING)
    stopping = Thread(target=worker.stop)
    stopping.start()
    seen.wait_for(events.WorkerStopping)  # from then on nobody takes a held job whose lock is lost
    spoken.fail = lambda _statement: False
    stopping.join(PATIENCE)

    assert ["WARNING", "INFO"] == said(caplog)


def test_no_answer_to_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log flood: what several threads wait for together is told as one silence, and over when none of them waits for long."""
    monkeypatch.setattr(health, "SILENT", 0.02)
    vigil, seen, over, go = Vigil(), Recorder(), Event(), [Event() for _ in range(THREADS)]

    def ask(end: Event) -> None:
        with vigil.asking(RECORDING):
            end.wait(PATIENCE)

    asking = [Thread(target=ask, args=(end,)) for end in go]
    keeper = Thread(target=vigil.keep, args=(seen, "w", over))
    for thread in (keeper, *asking):
        thread.start()
        if thread is asking[0]:
            seen.wait_for(events.DatabaseSilent)
    for end, thread in list(zip(go, asking, strict=True))[1:]:
        end.set()
        thread.join(PATIENCE)
    count = len(seen.of(events.DatabaseSilent))
    seen.wait_for(events.DatabaseSilent, count + 1)
    still = seen.of(events.DatabaseAnswered)
    go[0].set()
    seen.wait_for(events.DatabaseAnswered)
    over.set()
    keeper.join(PATIENCE)

    assert [] == still
    lasted = [event.seconds for event in seen.of(events.DatabaseSilent)]
    assert all(later >= 2 * earlier for earlier, later in pairwise(lasted))
    assert ["DatabaseAnswered"] == [name for name in seen.names() if name != "DatabaseSilent"]
