"""Tell workers of new jobs: those of this process after the commit, others by a notification that rides in the transaction."""

from __future__ import annotations

import datetime as dt
import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.engine import TwoPhaseTransaction

from proletarian_sa.moments import microseconds
from proletarian_sa.wakeups import pending, stations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection

    from proletarian_sa.dialects import Statements
    from proletarian_sa.models import JobTables

HORIZON: Final = 10.0
"""Seconds: who listens is told of jobs due within this time, and looks by itself for those that are due later.

It is longer than a worker that listens lets pass between two looks, by as much as a transaction may take to commit.
"""

NO_DELAY: Final = dt.timedelta()


def is_wanted(tables: JobTables) -> bool:
    """Return whether anybody may be waiting for jobs of these tables: a look at two flags."""
    return tables.notify or stations.any_here()


def delay_of(tables: JobTables, process_at: Any, process_in: dt.timedelta | None) -> dt.timedelta:
    """Return in how long a job is due, roughly: by the clock of this process, unless the tables have one."""
    if isinstance(process_at, dt.datetime):
        now = tables.clock.now() if tables.clock is not None else dt.datetime.now(dt.UTC)
        return max(process_at - now, NO_DELAY)
    return process_in or NO_DELAY


def announce(connection: Connection, statements: Statements, queue: str, delay: dt.timedelta = NO_DELAY) -> None:
    """Announce a job that has been inserted: it is due after `delay`.

    **Transaction:** the caller's: with `notify`, sends a notification in it, once for each queue.
    """
    if not delay and stations.any_here():
        _wake_here(connection, statements, queue)
    announce_elsewhere(connection, statements, queue, delay)


def announce_elsewhere(connection: Connection, statements: Statements, queue: str, delay: dt.timedelta) -> None:
    """Notify those who listen, as `announce` does, and nobody else.

    **Transaction:** as `announce`.
    """
    if not statements.tables.notify or statements.notifications is None or delay.total_seconds() >= HORIZON:
        return
    if isinstance(connection.get_transaction(), TwoPhaseTransaction):
        return  # PostgreSQL refuses to prepare a transaction that has sent a notification: a poll finds the job
    topic = topic_of(queue)
    pending.database(connection)
    if statements.in_autocommit(connection) or pending.note(connection, topic):
        statements.notifications.send(connection, topic)


def announce_rows(
    connection: Connection, statements: Statements, now: dt.datetime, rows: Sequence[tuple[Any, ...]], moved: int
) -> None:
    """Announce many jobs, of which `row[1]` is the queue and `row[-1]` when it is due, as `moments` counts.

    `moved`: for how many microseconds at the most a row was put behind others that would be due with it. They have passed when
    all are inserted.

    **Transaction:** as `announce`.
    """
    if not is_wanted(statements.tables):
        return
    soonest: dict[str, int] = {}
    counted = microseconds(now)
    for row in rows:
        queue, due = row[1], row[-1]
        if queue not in soonest or due < soonest[queue]:
            soonest[queue] = due
    for queue, due in soonest.items():
        delay = due - counted if due - counted > moved else 0
        announce(connection, statements, queue, dt.timedelta(microseconds=delay))


@lru_cache(maxsize=1000)
def topic_of(queue: str) -> str:
    """Return what a notification says of a queue: short and ASCII, whatever its name."""
    return hashlib.sha256(queue.encode()).hexdigest()[:32]


def _wake_here(connection: Connection, statements: Statements, queue: str) -> None:
    due = stations.Due(pending.database(connection), statements.job.fullname, queue)
    if statements.in_autocommit(connection):
        stations.wake([due])
    else:
        pending.note(connection, due)
