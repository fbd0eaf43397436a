"""Put jobs into the caller's own transaction: they exist if and only if it commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import event, inspect
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.orm.attributes import instance_dict, set_attribute

from proletarian_sa.dialects import statements_for
from proletarian_sa.insert import Row, insert_many, insert_one
from proletarian_sa.models import DEFAULT_QUEUE, JobMixin, JobTables, check_job_tables, default_tables
from proletarian_sa.wakeups.announce import announce, delay_of, is_wanted

if TYPE_CHECKING:
    import datetime as dt
    import uuid
    from collections.abc import Awaitable, Iterable, Iterator, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

SyncBind = Session | scoped_session[Any] | Connection


@overload
def enqueue(
    bind: SyncBind | AsyncSession | async_scoped_session[Any],
    job_type: str,
    payload: Any = None,
    *,
    queue: str = ...,
    process_at: dt.datetime | None = ...,
    process_in: dt.timedelta | float | None = ...,
) -> uuid.UUID: ...
@overload
def enqueue(
    bind: SyncBind | AsyncSession | async_scoped_session[Any],
    job_type: str,
    payload: Any = None,
    *,
    queue: str = ...,
    process_at: dt.datetime | None = ...,
    process_in: dt.timedelta | float | None = ...,
    tables: JobTables,
) -> Any: ...
@overload
def enqueue(
    bind: AsyncConnection,
    job_type: str,
    payload: Any = None,
    *,
    queue: str = ...,
    process_at: dt.datetime | None = ...,
    process_in: dt.timedelta | float | None = ...,
) -> Awaitable[uuid.UUID]: ...
@overload
def enqueue(
    bind: AsyncConnection,
    job_type: str,
    payload: Any = None,
    *,
    queue: str = ...,
    process_at: dt.datetime | None = ...,
    process_in: dt.timedelta | float | None = ...,
    tables: JobTables,
) -> Awaitable[Any]: ...
def enqueue(
    bind: Any,
    job_type: str,
    payload: Any = None,
    *,
    queue: str = DEFAULT_QUEUE,
    process_at: dt.datetime | None = None,
    process_in: dt.timedelta | float | None = None,
    tables: JobTables = default_tables,
) -> Any:
    """Enqueue a job in the caller's transaction, and return its id.

    On a session this is `session.add(Job(…))`: no I/O, inserted with the next flush. On a connection, and where the database makes
    the ids (`DatabaseIds`), the row is inserted at once.

        with Session(engine) as session, session.begin():
            session.add(User(email="a@b.c"))
            enqueue(session, "send-welcome-mail", {"to": "a@b.c"})

    An AsyncSession is the same, without `await`, for nothing is sent. A call on an AsyncConnection is awaited: what is refused is
    refused by the call, and nothing is inserted without the `await`, of which Python then warns.

    Args:
        bind: Session, scoped_session, AsyncSession, Connection, or AsyncConnection (then await the result).
        job_type: Which handler runs it; 1 to 255 characters, matched exactly.
        payload: Any value the serializer takes; None by default.
        queue: Which worker runs it; `default` by default.
        process_at: When it is due, an aware datetime; a past one means now. Default: now, by the database's clock.
        process_in: Alternatively a delay: timedelta or seconds. If both are given, `process_at` wins.
        tables: Which pair of tables; the worker must be given the same.

    Returns:
        The job's id: a `uuid.UUID`, unless the tables' `job_ids` say otherwise.

    Raises:
        TypeError: `bind` is none of the above, or the payload holds a type that the serializer does not take. Or `bind` is an
            AsyncSession, on which nothing can be inserted at once, and the database makes the ids.
        ValueError: A naive datetime, a bad name, a payload value that cannot be stored.
        PayloadTooLarge: The encoded payload exceeds the tables' `max_payload`.

    **Transaction:** the caller's; inserts on `session.connection()` where the database makes the ids. Never commits, rolls back, or
    flushes anything.
    """
    check_job_tables(tables)
    job = tables.Job(job_type=job_type, payload=payload, queue=queue, process_at=process_at, process_in=process_in)
    session = _session(bind)
    if session is not None and job.job_id is not None:
        session.add(job)
        return job.job_id
    if session is not None and hasattr(session, "run_sync"):
        raise TypeError(
            "The database makes the ids of these tables, so the row must be inserted at once, which takes an await: "
            f"job_id = await session.run_sync(enqueue, {job_type!r}, payload, tables=tables). Or session.add(tables.Job(…)): its "
            "job_id is known after the flush."
        )
    if session is not None:
        return insert_one(_connection(session, tables), job)
    if isinstance(bind, Connection):
        return insert_one(bind, job)
    if hasattr(bind, "run_sync"):
        return _awaited("enqueue", bind, insert_one, job)
    raise _bad_bind(bind, "enqueue")


@overload
def enqueue_many(bind: SyncBind, rows: Sequence[Row]) -> list[uuid.UUID]: ...
@overload
def enqueue_many(bind: SyncBind, rows: Sequence[Row], *, tables: JobTables) -> list[Any]: ...
@overload
def enqueue_many(bind: SyncBind, rows: Iterator[Row], *, tables: JobTables = ...) -> int: ...
@overload
def enqueue_many(
    bind: AsyncSession | async_scoped_session[Any] | AsyncConnection, rows: Sequence[Row]
) -> Awaitable[list[uuid.UUID]]: ...
@overload
def enqueue_many(
    bind: AsyncSession | async_scoped_session[Any] | AsyncConnection, rows: Sequence[Row], *, tables: JobTables
) -> Awaitable[list[Any]]: ...
@overload
def enqueue_many(
    bind: AsyncSession | async_scoped_session[Any] | AsyncConnection, rows: Iterator[Row], *, tables: JobTables = ...
) -> Awaitable[int]: ...
def enqueue_many(bind: Any, rows: Iterable[Row], *, tables: JobTables = default_tables) -> Any:
    """Enqueue many jobs at once in the caller's transaction, in order.

        ids = enqueue_many(session, [{"job_type": "resize", "payload": {"image": n}} for n in range(10_000)])

    A sequence is checked whole before the first row is inserted. An iterator is read and inserted in chunks, in constant memory;
    if a row is refused, a savepoint takes back those before it. Jobs that would be due at the same moment are due one
    microsecond apart, in order.

    The rows take the fastest way that does the same as single inserts, defaults, constraints and triggers of the application's
    included. PostgreSQL with psycopg, a hundred rows or more: COPY; with other drivers, or where COPY is refused (row-level
    security, pipeline mode) or would do something else (rules, views, column types of the application's own): one statement of
    arrays for each thousand rows. Elsewhere, and where a column of the application's has a default that Python makes:
    statements of many rows. Hooks on the cursor (`before_cursor_execute`), the log and errors see a COPY as they see any
    statement; hooks on expressions (`before_execute`) do not, for it is text.

    Args:
        bind: Session, scoped_session or Connection; AsyncSession or AsyncConnection (then await the result).
        rows: Mappings with `job_type` and, where wanted, `payload`, `queue`, `process_at`, `process_in`, `job_id`, each as
            for `enqueue`.
        tables: Which pair of tables; the worker must be given the same.

    Returns:
        For a sequence the ids, in order; for an iterator the number of jobs.

    Raises:
        TypeError: As `enqueue`; the message begins with the row, `rows[17]: …`.
        ValueError: As `enqueue`, likewise; or an iterator is given on a connection in autocommit.

    **Transaction:** the caller's: executes on `session.connection()`, which flushes nothing. Never commits or rolls back
    more than its own savepoint.
    """
    check_job_tables(tables)
    session = _session(bind)
    if session is not None and hasattr(session, "run_sync"):
        return _awaited("enqueue_many", session, lambda sync: insert_many(_connection(sync, tables), rows, tables))
    if session is not None:
        return insert_many(_connection(session, tables), rows, tables)
    if isinstance(bind, Connection):
        return insert_many(bind, rows, tables)
    if hasattr(bind, "run_sync"):
        return _awaited("enqueue_many", bind, insert_many, rows, tables)
    raise _bad_bind(bind, "enqueue_many")


def _session(bind: Any) -> Any:
    """Return what has the `add` of a session, sync or async, or None."""
    if isinstance(bind, Session | scoped_session):
        return bind
    if hasattr(bind, "add") and hasattr(bind, "registry"):  # async_scoped_session, whose module not everybody can import
        return bind()
    return bind if hasattr(bind, "add") and hasattr(bind, "run_sync") else None


def _connection(session: Session | scoped_session[Any], tables: JobTables) -> Connection:
    return session.connection(bind_arguments={"mapper": inspect(tables.Job)})


def _awaited(function: str, bind: Any, *call: Any) -> Any:
    """Return what runs a call in asyncio, named so that Python's warning about an `await` that is missing says of which."""

    async def run() -> Any:
        return await bind.run_sync(*call)

    running: Any = run()
    running.__qualname__ = f"proletarian_sa.{function}"
    return running


def _bad_bind(bind: Any, function: str) -> TypeError:
    if type(bind).__module__.startswith("sqlalchemy.ext.asyncio"):
        wait = "await " if function == "enqueue_many" else ""
        return TypeError(
            f"{function} needs an AsyncSession or an AsyncConnection of yours, whose transaction the job joins, not "
            f"{type(bind).__name__}: async with AsyncSession(engine) as session, session.begin(): {wait}{function}(session, …)."
        )
    return TypeError(
        f"{function} needs a Session or a Connection of yours, whose transaction the job joins, not {type(bind).__name__}: "
        f"with Session(engine) as session, session.begin(): {function}(session, …)."
    )


def _set_times(_mapper: object, connection: Connection, job: JobMixin) -> None:
    """Give a job that is being flushed its times, now that the database is known.

    A job for now on a database with a clock needs nothing: the columns' defaults say so, and such rows are inserted
    together.
    """
    statements = statements_for(connection.dialect, job.job_tables)
    given = instance_dict(job)
    delay = job._process_in
    if is_wanted(job.job_tables):
        job._due_in = delay_of(job.job_tables, given.get("process_at"), delay)
    if job.job_tables.clock is not None:
        return
    if statements.native_clock and "process_at" not in given and "enqueued_at" not in given and not delay:
        return
    for name, time in statements.enqueue_times(given.get("process_at"), delay).items():
        set_attribute(job, name, time)


def _announce(_mapper: object, connection: Connection, job: JobMixin) -> None:
    """Tell those who wait of a job that has been flushed."""
    if is_wanted(job.job_tables):
        announce(connection, statements_for(connection.dialect, job.job_tables), job.queue, job._due_in)


event.listen(JobMixin, "before_insert", _set_times, propagate=True)
event.listen(JobMixin, "after_insert", _announce, propagate=True)
