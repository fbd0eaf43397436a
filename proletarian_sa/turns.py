"""Where one may write at a time: take turns with the application, which cannot queue up and would starve beside a busy worker."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from proletarian_sa.own_loops import on_loop, sleep

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine
    from sqlalchemy.pool import Pool

PERIOD: Final = 0.5
REST: Final = 0.15
"""At the end of each period, of the clock that all processes share, busy workers begin no transaction for so long, seconds.

Who waits for SQLite's lock looks at it every tenth of a second at the least (`sqliteDefaultBusyCallback` in SQLite's main.c), so a
rest that is longer lets everybody in, on a busy machine too.
"""
LONGEST_REST: Final = 0.3  # seconds; others have the lock for as long as a handler has had it, up to this
OVERLAP: Final = 0.02  # seconds of a rest that a transaction may take without owing them
LITTLE: Final = 0.05  # seconds of writing in a period with which a worker is in nobody's way
BRIEFLY: Final = 0.03  # seconds that one of our own transactions takes at the most; what is longer is waiting for the lock
PATIENCE: Final = 1.0  # seconds that one turn of another thread may take; after that SQLite decides who waits for how long
LOOKS: Final = (0.002, 0.01)  # seconds until one looks again under an event loop, where nobody may wait for a lock
TURNS: Final = "proletarian_sa_turns"  # execution option of an engine of ours

_turns: WeakKeyDictionary[Pool, Turns] = WeakKeyDictionary()


class Turns:
    """The turns of this process's threads at one database. Nothing depends on them but fairness: the database has its own lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._not_before = 0.0
        self._period = 0.0
        self._spent = 0.0  # seconds in this period
        self._ends = 0  # of turns

    def begin(self) -> Turn:
        """Wait for a turn: until no other thread has one, and nobody is to rest."""
        ends = self._ends
        while not (taken := self._acquire()) and ends != self._ends:
            ends = self._ends  # others have had their turns meanwhile
        try:
            pause = self._pause(time.time()) if taken else 0.0
            if pause > 0:
                sleep(pause)
        except BaseException:  # Ctrl-C
            if taken:
                self._lock.release()
            raise
        return Turn(self, taken=taken)

    def _acquire(self) -> bool:
        if not on_loop():
            return self._lock.acquire(timeout=PATIENCE)
        until = time.monotonic() + PATIENCE
        while not self._lock.acquire(blocking=False):
            if time.monotonic() >= until:
                return False
            sleep(random.uniform(*LOOKS))
        return True

    def _pause(self, now: float) -> float:
        """Return how long to rest first, seconds."""
        period, into = divmod(now, PERIOD)
        if period != self._period:
            self._period, self._spent = period, 0.0
        rest = PERIOD - into if self._spent > LITTLE and into >= PERIOD - REST else 0.0
        return min(max(rest, self._not_before - now), PERIOD)

    def _ended(self, now: float, held: float) -> None:
        self._spent += held
        rested_from = ((now - held) // PERIOD + 1) * PERIOD - REST
        if self._spent > LITTLE and now > rested_from + OVERLAP:
            self._not_before = now + min(max(REST, held), LONGEST_REST)
        self._ends += 1
        self._lock.release()


class Turn:
    """A turn that was taken."""

    def __init__(self, turns: Turns | None, *, taken: bool) -> None:
        self._turns = turns
        self._taken = taken
        self._began = time.time()
        self._longest = BRIEFLY

    def has_lock(self) -> None:
        """Count from now, and for as long as it takes: the database's lock is ours, for a handler."""
        self._began, self._longest = time.time(), float("inf")

    def end(self) -> None:
        """Give it back; a second call does nothing."""
        turns, self._turns = self._turns, None
        if turns is not None and self._taken:
            now = time.time()
            turns._ended(now, max(0.0, min(now - self._began, self._longest)))


NO_TURN: Final = Turn(None, taken=False)


def taking_turns(engine: Engine) -> dict[str, Any]:
    """Return the execution option that lets an engine of ours take turns at this engine's database with all others of its pool."""
    return {TURNS: _turns.setdefault(engine.pool, Turns())}


def take_turn(engine: Engine) -> Turn:
    """Wait for a turn at the database of an engine of ours, if one is needed there."""
    turns: Turns | None = engine.get_execution_options().get(TURNS)
    return NO_TURN if turns is None else turns.begin()
