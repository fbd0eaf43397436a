"""Whether a database can hold claims: asked before the first one."""

from __future__ import annotations

import datetime as dt
import secrets
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Engine

from proletarian_sa import events
from proletarian_sa.dialects.roles import roles_of
from proletarian_sa.errors import DatabaseNotSupported
from proletarian_sa.held import held_statements
from proletarian_sa.job_ids import ConstantIds, new_id
from proletarian_sa.own_connection import connect, past_stale

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection

    from proletarian_sa.runtime import Runtime

PROBE: Final = "proletarian-sa probe"  # the queue's name begins with it, and no worker has such a queue
LEFT: Final = dt.timedelta(hours=1)  # a probe that is older was left by a process that was killed
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
    past_stale(lambda: _check(runtime), runtime.engine)
    with connect(runtime.engine) as connection:
        before = statements.keep_open(connection, lasting=False)
        left = statements.idle_timeouts(connection)
        connection.rollback()
        if before is not None:
            statements.let_go(connection, before)
    if left:
        runtime.emit(events.IdleTimeoutsFound(worker_id=runtime.worker_id, settings=left))


def _check(runtime: Runtime) -> None:
    statements = held_statements(runtime)
    with connect(runtime.engine) as first, _outside(runtime) as second:
        reason = statements.why_not(first)
        first.rollback()
        if reason is None:
            _sweep(runtime, first)
        if reason is None and not _locks(runtime, first, second):
            reason = "its SKIP LOCKED does not keep a locked row from others. Use claim='leased'."
    if reason is not None:
        raise DatabaseNotSupported(f"{runtime.engine.url!r} cannot hold claims: {reason}")


@contextmanager
def _outside(runtime: Runtime) -> Iterator[Connection]:
    """Connect beside the pool, which may have one connection only."""
    pool = runtime.engine.pool.recreate()
    options = runtime.engine.get_execution_options()  # the application's, such as a map of schemas, and ours
    engine = Engine(pool, runtime.engine.dialect, runtime.engine.url, execution_options=options)
    try:
        with connect(engine) as connection:
            yield connection
    finally:
        pool.dispose()


def _locks(runtime: Runtime, first: Connection, second: Connection) -> bool:
    """Return whether a row that one connection has locked is skipped by the other."""
    if isinstance(runtime.tables.job_ids, ConstantIds):
        return True  # for tests: the row of its one id may be there already
    statements, job = held_statements(runtime), runtime.tables.job
    queue = f"{PROBE} {secrets.token_hex(8)}"
    try:
        job_id = _insert(runtime, first, queue)
    except exc.DBAPIError as error:
        first.rollback()
        if _is_about_the_row(runtime, error):
            return True  # it cannot be tried then: what the server says of itself must do
        raise
    first.commit()
    try:
        statements.begin(first)
        locked = statements.claim(first, queue=queue, token=PROBE)
        return locked is not None and _skips(runtime, second, queue)
    finally:
        second.rollback()
        first.rollback()
        first.execute(job.delete().where(job.c.job_id == job_id))  # by its key: MySQL might wait for other rows
        first.commit()


def _sweep(runtime: Runtime, connection: Connection) -> None:
    """Delete the rows of probes that were killed; by their keys, for other rows might be locked."""
    job = runtime.tables.job
    killed_before = runtime.statements.read_clock(connection) - LEFT
    # each name ends with 16 hexadecimal digits; a range, which all databases find by the index
    probes = job.c.queue.between(f"{PROBE} 0", f"{PROBE} g") & job.c.queue.startswith(f"{PROBE} ")
    left = connection.scalars(sa.select(job.c.job_id).where(probes, job.c.enqueued_at < killed_before)).all()
    for job_id in left:
        connection.execute(job.delete().where(job.c.job_id == job_id))
    connection.commit()


def _is_about_the_row(runtime: Runtime, error: exc.DBAPIError) -> bool:
    """Return whether the database refused the probe's row, for a column or a constraint of the application's own most likely."""
    statements, roles = runtime.statements, roles_of(runtime.engine.dialect.name)
    denied = roles is not None and roles.is_denied(error)
    return not (denied or statements.is_transient(error) or statements.is_missing_table(error))


def _insert(runtime: Runtime, connection: Connection, queue: str) -> Any:
    """Insert the probe's row and return its id; the payload is nobody's, and no serializer is asked for it."""
    values = {"queue": queue, "job_type": "probe", "payload": "null", "attempts": 0}
    job_id = new_id(runtime.tables.job_ids)
    if job_id is not None:
        values["job_id"] = job_id
    times = runtime.statements.enqueue_times(None, None)
    inserted = connection.execute(sa.insert(runtime.tables.job).values(values | times))
    if job_id is None and inserted.inserted_primary_key is not None:
        (job_id,) = inserted.inserted_primary_key
    return job_id


def _skips(runtime: Runtime, connection: Connection, queue: str) -> bool:
    """Return whether a claim finds nothing, and does not wait, while another connection has locked the only job."""
    statements = held_statements(runtime)
    runtime.statements.make_impatient(connection, lasting=False)  # nothing to restore: the connection is closed
    runtime.statements.wait_briefly(connection)
    try:
        statements.begin(connection)
        return statements.claim(connection, queue=queue, token=PROBE) is None
    except exc.DBAPIError as error:
        if runtime.statements.has_waited(error):
            return False
        raise
