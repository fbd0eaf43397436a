"""Idle workers: one poller for each engine and queue of a process, and whoever waits is told when it has to look."""

import datetime as dt
import itertools
import time
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import JobTables, ManualClock
from proletarian_sa.runtime import build_runtime
from proletarian_sa.wakeups import stations
from proletarian_sa.wakeups.idle import Idle
from tests.helpers import wait_until
from tests.observing import PATIENCE, add
from tests.plans import Captured

NEVER = 3600.0
"""Seconds in which no test ends."""


def station_of(engine: sa.Engine, **options: Any) -> stations.Station:
    """Return where workers on this engine wait."""
    runtime = build_runtime(engine, lambda *_: None, **{"queue": "default"} | options)
    return stations.join(runtime)


def test_a_clock_that_is_changed_meanwhile(queue_engine: sa.Engine) -> None:
    """Tables that are given a clock while a worker waits, as tests do: it leaves where it has joined."""
    tables = JobTables()
    station = station_of(queue_engine, tables=tables)
    tables.clock = ManualClock(dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
    stations.leave(station)

    assert not stations.any_here()


@pytest.mark.usefixtures("claim")
def test_one_worker_polls_for_all(queue_engine: sa.Engine, work: Any) -> None:
    """However many workers look for the same jobs through one engine, with however many threads, an interval sees one poll."""
    interval, count = 0.05, 12
    sent: list[float] = []

    def before_cursor_execute(_connection: object, _cursor: object, statement: str, *others: object) -> None:
        if Captured(statement, others[0]).of_jobs:
            sent.append(time.monotonic())

    workers = [work(lambda _job: None, polling_interval=interval, worker_threads=4)[0] for _ in range(4)]
    for worker in workers:
        worker.start()
    sa.event.listen(queue_engine, "before_cursor_execute", before_cursor_execute)
    first = 2 * len(workers)  # each looks once when it starts
    wait_until(lambda: len(sent) >= first + count, timeout=PATIENCE)
    polls = sent[first : first + count]

    # Four pollers would be through in a quarter of it.
    assert polls[-1] - polls[0] >= (count - 3) * interval * 0.9


def test_workers_of_other_queues_poll_for_themselves(queue_engine: sa.Engine) -> None:
    """A poll of some queues is none of others, nor of another order, other tables or another engine on the same URL."""
    other = sa.create_engine(queue_engine.url)
    tables = JobTables(job_table="other_job", archived_job_table="other_archived_job")
    variants: list[tuple[sa.Engine, dict[str, Any]]] = [
        (queue_engine, {"queue": ["a", "b"]}),
        (queue_engine, {"queue": ["b", "a"]}),
        (queue_engine, {"queue": "a"}),
        (queue_engine, {"queue": "a", "tables": tables}),
        (queue_engine.execution_options(schema_translate_map={"proletarian": "tenant"}), {"queue": "a"}),
        (other, {"queue": "a"}),
    ]
    joined = [station_of(engine, **options) for engine, options in variants]
    same = [station_of(engine.execution_options(any="thing"), **options) for engine, options in variants]
    for station in joined + same:
        stations.leave(station)

    assert len(variants) == len({id(station) for station in joined})
    assert joined == same
    assert not stations.any_here()
    other.dispose()


def test_the_others_go_on(queue_engine: sa.Engine) -> None:
    """A worker that takes all it can lets another look at once, and so does one that stops: nobody waits for its next poll."""
    runtime = build_runtime(queue_engine, lambda *_: None, queue="default")
    with Idle(runtime, NEVER) as another:
        with Idle(runtime, NEVER) as one:
            wakes = another.about_to_claim()
            one.hand_on()
            another.wait(_Never(), wakes, NEVER)  # returns, because one has handed on
            left = another._here.more
            wakes = another.about_to_claim()
        another.wait(_Never(), wakes, NEVER)  # returns, because one has left

    assert not left
    assert not stations.any_here()


class _Never:
    """A flag that is never set."""

    def is_set(self) -> bool:
        return False


def test_a_wake_up_during_the_claim_is_not_lost(queue_engine: sa.Engine) -> None:
    """Who is woken between its claim and its wait does not wait."""
    runtime = build_runtime(queue_engine, lambda *_: None, queue="default")
    with Idle(runtime, NEVER) as idle:
        wakes = idle.about_to_claim()
        add(queue_engine)
        idle.wait(_Never(), wakes, NEVER)
        woken = idle._here.wakes

    assert 1 == woken - wakes


def test_waits_are_jittered(queue_engine: sa.Engine) -> None:
    """Intervals are up to a tenth longer, so that processes that started together do not keep polling together; none is shorter."""
    runtime = build_runtime(queue_engine, lambda *_: None, queue="default")
    with Idle(runtime, 10) as idle:
        pauses = [idle.pause(None) for _ in range(100)]

    assert 10 <= min(pauses) < 10.3
    assert 10.7 < max(pauses) <= 11
    assert any(one != other for one, other in itertools.pairwise(pauses))
