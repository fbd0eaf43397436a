"""Turns at a database where one may write at a time: brief for each thread, with rests in which everybody else gets in."""

import threading
import time

import pytest
import sqlalchemy as sa

from proletarian_sa import turns
from proletarian_sa.dialects import statements_for
from proletarian_sa.heartbeat import Heartbeats
from proletarian_sa.models import default_tables
from proletarian_sa.own_connection import OwnConnection
from proletarian_sa.runtime import build_runtime, prepare
from proletarian_sa.step import claim_leased
from proletarian_sa.turns import (
    BRIEFLY,
    LITTLE,
    LONGEST_REST,
    NO_TURN,
    OVERLAP,
    PATIENCE,
    PERIOD,
    REST,
    TURNS,
    Turns,
    take_turn,
    taking_turns,
)
from tests.observing import add

START = 1000 * PERIOD + 0.002
"""A moment at the beginning of a period, seconds of the epoch."""


def spend(spending: Turns, began: float, seconds: float) -> None:
    """Have a turn, without waiting for the time to pass."""
    assert 0.0 == spending._pause(began)
    spending._lock.acquire()
    spending._ended(began + seconds, seconds)


def test_little_writing_never_waits() -> None:
    """Who has hardly written in a period begins at once, also while the busy ones rest."""
    some = Turns()
    spend(some, START, LITTLE / 2)

    assert 0.0 == some._pause(START + PERIOD - REST / 2)


def test_the_busy_rest_at_the_end_of_each_period() -> None:
    """Who has written a lot begins nothing in the last part of a period, and is free again in the next."""
    some = Turns()
    spend(some, START, 2 * LITTLE)

    assert 0.0 == some._pause(START + PERIOD - REST - 0.01)
    assert pytest.approx(REST / 2, abs=0.003) == some._pause(START + PERIOD - REST / 2)
    assert 0.0 == some._pause(START + PERIOD + 0.001)


@pytest.mark.parametrize(("held", "owed"), [(0.1, REST), (0.2, 0.2), (5.0, LONGEST_REST)])
def test_a_turn_that_reaches_into_a_rest_owes_one(held: float, owed: float) -> None:
    """After a transaction that has taken some of a rest, nobody of ours begins for as long as it took, within bounds."""
    some, end = Turns(), START + 20 * PERIOD - REST + 2 * OVERLAP
    spend(some, end - held, held)

    assert pytest.approx(owed, abs=0.003) == some._pause(end)
    assert 0.0 == some._pause(end + owed + 0.01)


def test_a_clock_that_is_set_back_costs_no_more_than_a_period() -> None:
    """However the clock of the machine jumps, nobody rests for longer than a period."""
    some = Turns()
    spend(some, START, PERIOD)

    assert PERIOD >= some._pause(START - 3600)


def test_two_threads_have_no_turn_at_the_same_time() -> None:
    """The second thread begins when the first has ended."""
    some, begun, said = Turns(), threading.Event(), []

    def second() -> None:
        begun.set()
        turn = some.begin()
        said.append("second")
        turn.end()

    turn = some.begin()
    thread = threading.Thread(target=second)
    thread.start()
    begun.wait(60)
    said.append("first")
    turn.end()
    turn.end()
    thread.join()

    assert ["first", "second"] == said


def test_nobody_waits_for_a_turn_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a handler that holds the lock for long, the database decides who waits for how long; its end is its own then."""
    monkeypatch.setattr(turns, "PATIENCE", 0.02)
    some = Turns()
    first = some.begin()
    began = time.monotonic()
    second = some.begin()
    waited = time.monotonic() - began
    second.end()

    assert waited >= 0.02
    assert some._lock.locked()
    first.end()
    assert not some._lock.locked()


@pytest.mark.parametrize(("ended", "taken"), [(1, True), (0, False)])
def test_who_waits_for_several_turns_waits_in_line(ended: int, taken: bool) -> None:
    """As long as turns end, the next ones wait for them, however many they are; where none ends, the database decides."""
    some = Turns()

    class Busy:
        """A lock that others have five times longer than anybody waits for one turn."""

        left = 5

        def acquire(self, timeout: float) -> bool:
            self.left -= 1
            some._ends += ended
            return timeout > 0 and self.left < 0

        def release(self) -> None:
            pass

    some._lock = Busy()

    assert taken == some.begin()._taken


def test_waiting_for_the_lock_is_no_writing() -> None:
    """What is counted begins with the lock of a handler; of our own brief transactions no more than they take themselves."""
    some = Turns()
    brief = some.begin()
    brief._began -= 10
    brief.end()
    counted = some._spent
    handlers = some.begin()
    handlers._began -= 10
    handlers.has_lock()
    handlers._began -= 1
    handlers.end()

    assert pytest.approx(BRIEFLY) == counted
    assert 1 <= some._spent - counted < 5


def test_all_workers_on_one_engine_share_the_turns(queue_engine: sa.Engine) -> None:
    """Only where one may write at a time there are turns, the same ones for all that use an engine."""
    one, other = (prepare(build_runtime(queue_engine, lambda *_: None, queue="default")).engine for _ in range(2))
    needed = not statements_for(queue_engine.dialect, default_tables).row_locks

    assert needed == (TURNS in one.get_execution_options())
    assert one.get_execution_options().get(TURNS) is other.get_execution_options().get(TURNS)
    assert needed == (take_turn(one) is not NO_TURN)
    assert take_turn(queue_engine) is NO_TURN


def test_other_databases_have_other_turns(tmp_path) -> None:
    """Engines on different files take no turns with each other."""
    one, other = (taking_turns(sa.create_engine(f"sqlite:///{tmp_path / name}"))[TURNS] for name in "ab")

    assert one is not other


def test_heartbeats_do_not_wait_in_line(queue_engine: sa.Engine) -> None:
    """While a handler of a worker's has its turn, a lease is prolonged all the same."""
    add(queue_engine)
    runtime = prepare(build_runtime(queue_engine, lambda *_: None, queue="default"))
    own, heartbeats = OwnConnection(runtime.engine), Heartbeats(runtime)
    (in_hand,) = heartbeats.add(claim_leased(runtime, own, limit=1), time.monotonic() - 50)
    before = in_hand.valid_until
    own.close()
    turn = take_turn(runtime.engine)
    began = time.monotonic()
    try:
        assert heartbeats.beat()
    finally:
        turn.end()
        heartbeats.remove(in_hand)
        heartbeats.beat()

    assert before < in_hand.valid_until
    assert time.monotonic() - began < PATIENCE
