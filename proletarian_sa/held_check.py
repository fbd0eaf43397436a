"""Whether a database can hold claims: asked before the first one."""

from __future__ import annotations

import secrets
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.engine import Engine

from proletarian_sa import events
from proletarian_sa.enqueue import enqueue
from proletarian_sa.errors import DatabaseNotSupported
from proletarian_sa.held import held_statements
from proletarian_sa.own_connection import connect, past_stale

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection

    from proletarian_sa.runtime import Runtime

PROBE: Final = "proletarian-sa probe"  # the queue's name begins with it, and no worker has such a queue
_checked: weakref.WeakSet[Any] = weakref.WeakSet()  # pools


def check_held_once(runtime: Runtime) -> None:
    """Check the database of an engine's pool, at the first call.

    Raises:
        DatabaseNotSupported: As `check_held`.

    **Transaction:** as `check_held`.
    """
    if runtime.engine.pool not in _checked:
        check_held(runtime)
        _checked.add(runtime.engine.pool)


def check_held(runtime: Runtime) -> None:
    """Raise unless row locks keep a job for the one who has claimed it; tell of time-outs that would end a claim.

    Raises:
        DatabaseNotSupported: SQLite; a cluster whose locks hold on one node only; a server whose SKIP LOCKED does not lock.

    **Transaction:** its own, on two connections: enqueues a job in a queue that nobody has, locks it, and deletes it.
    """
    statements = held_statements(runtime)
    past_stale(lambda: _check(runtime), runtime.engine.dialect)
    with connect(runtime.engine) as connection:
        before = statements.keep_open(connection)
        left = statements.idle_timeouts(connection)
        connection.rollback()
        statements.let_go(connection, before)
    if left:
        runtime.emit(events.IdleTimeoutsFound(worker_id=runtime.worker_id, settings=left))


def _check(runtime: Runtime) -> None:
    statements = held_statements(runtime)
    with connect(runtime.engine) as first, _outside(runtime) as second:
        reason = statements.why_not(first)
        first.rollback()
        if reason is None and not _locks(runtime, first, second):
            reason = "its SKIP LOCKED does not keep a locked row from others. Use claim='leased'."
    if reason is not None:
        raise DatabaseNotSupported(f"{runtime.engine.url!r} cannot hold claims: {reason}")


@contextmanager
def _outside(runtime: Runtime) -> Iterator[Connection]:
    """Connect beside the pool, which may have one connection only."""
    pool = runtime.engine.pool.recreate()
    engine = Engine(pool, runtime.engine.dialect, runtime.engine.url).execution_options(**runtime.options)
    try:
        with connect(engine) as connection:
            yield connection
    finally:
        pool.dispose()


def _locks(runtime: Runtime, first: Connection, second: Connection) -> bool:
    """Return whether a row that one connection has locked is skipped by the other."""
    statements = held_statements(runtime)
    queue = f"{PROBE} {secrets.token_hex(8)}"
    enqueue(first, "probe", queue=queue, tables=runtime.tables)
    first.commit()
    try:
        locked = statements.claim(first, queue=queue, token=PROBE)
        runtime.statements.wait_briefly(second)
        skipped = statements.claim(second, queue=queue, token=PROBE)
        return locked is not None and skipped is None
    finally:
        second.rollback()
        job = runtime.tables.job
        first.execute(job.delete().where(job.c.queue == queue))
        first.commit()
