"""Put jobs into the caller's own transaction: they exist if and only if it commits."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast, overload

import sqlalchemy as sa
from sqlalchemy import event, inspect
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session

from proletarian_sa.clock import aware_utc
from proletarian_sa.dialects import Statements, statements_for
from proletarian_sa.errors import PayloadError, PayloadTooLarge
from proletarian_sa.models import (
    DEFAULT_QUEUE,
    JobMixin,
    JobTables,
    check_delay,
    check_job_id,
    check_name,
    default_tables,
    due_time,
)

if TYPE_CHECKING:
    import uuid

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

SyncBind = Session | scoped_session[Any] | Connection
Row = Mapping[str, Any]

_CHUNK_ROWS = 1000
_CHUNK_BYTES = 2**20
_REMEMBERED_TIMES = 100_000
_MICROSECOND = dt.timedelta(microseconds=1)
_LATEST = dt.datetime.max.replace(tzinfo=dt.UTC)
_ROW_KEYS = frozenset({"job_type", "payload", "queue", "process_at", "process_in", "job_id"})


@overload
def enqueue(
    bind: SyncBind | AsyncSession | async_scoped_session[Any],
    job_type: str,
    payload: Any = None,
    *,
    queue: str = ...,
    process_at: dt.datetime | None = ...,
    process_in: dt.timedelta | float | None = ...,
    tables: JobTables = ...,
) -> uuid.UUID: ...
@overload
def enqueue(
    bind: AsyncConnection,
    job_type: str,
    payload: Any = None,
    *,
    queue: str = ...,
    process_at: dt.datetime | None = ...,
    process_in: dt.timedelta | float | None = ...,
    tables: JobTables = ...,
) -> Awaitable[uuid.UUID]: ...
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

    On a session this is `session.add(Job(…))`: no I/O, inserted with the next flush. On a connection the row is inserted
    at once.

        with Session(engine) as session, session.begin():
            session.add(User(email="a@b.c"))
            enqueue(session, "send-welcome-mail", {"to": "a@b.c"})

    Args:
        bind: Session, scoped_session, AsyncSession, Connection, or AsyncConnection (then await the result).
        job_type: Which handler runs it; 1 to 255 characters, matched exactly.
        payload: Any value the serializer takes; None by default.
        queue: Which worker runs it; `default` by default.
        process_at: When it is due, an aware datetime; a past one means now. Default: now, by the database's clock.
        process_in: Alternatively a delay: timedelta or seconds. If both are given, `process_at` wins.
        tables: Which pair of tables; the worker must be given the same.

    Returns:
        The job's id, a `uuid.UUID`.

    Raises:
        TypeError: `bind` is none of the above, or the payload holds a type that the serializer does not take.
        ValueError: A naive datetime, a bad name, a payload value that cannot be stored.
        PayloadTooLarge: The encoded payload exceeds the tables' `max_payload`.

    **Transaction:** the caller's. Never commits, rolls back, or flushes anything.
    """
    job = tables.Job(job_type=job_type, payload=payload, queue=queue, process_at=process_at, process_in=process_in)
    session = _session(bind)
    if session is not None:
        session.add(job)
        return job.job_id
    if isinstance(bind, Connection):
        return _insert(bind, job)
    if hasattr(bind, "run_sync"):
        return bind.run_sync(_insert, job)
    raise _bad_bind(bind, "enqueue")


@overload
def enqueue_many(bind: SyncBind, rows: Sequence[Row], *, tables: JobTables = ...) -> list[uuid.UUID]: ...
@overload
def enqueue_many(bind: SyncBind, rows: Iterator[Row], *, tables: JobTables = ...) -> int: ...
@overload
def enqueue_many(
    bind: AsyncSession | async_scoped_session[Any] | AsyncConnection, rows: Sequence[Row], *, tables: JobTables = ...
) -> Awaitable[list[uuid.UUID]]: ...
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
    session = _session(bind)
    if session is not None and hasattr(session, "run_sync"):
        return session.run_sync(lambda sync: _enqueue_many(_connection(sync, tables), rows, tables))
    if session is not None:
        return _enqueue_many(_connection(session, tables), rows, tables)
    if isinstance(bind, Connection):
        return _enqueue_many(bind, rows, tables)
    if hasattr(bind, "run_sync"):
        return bind.run_sync(_enqueue_many, rows, tables)
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


def _bad_bind(bind: Any, function: str) -> TypeError:
    return TypeError(
        f"{function} needs a Session or a Connection of yours, whose transaction the job joins, not {type(bind).__name__}: "
        f"with Session(engine) as session, session.begin(): {function}(session, …)."
    )


def _insert(connection: Connection, job: JobMixin) -> uuid.UUID:
    statements = statements_for(connection.dialect, job.job_tables)
    times = statements.enqueue_times(job.process_at, job._process_in)
    values = {
        "job_id": job.job_id,
        "queue": job.queue,
        "job_type": job.job_type,
        "payload": job.payload_text,
        "attempts": 0,
        **times,
    }
    connection.execute(sa.insert(statements.job).values(values))
    return job.job_id


def _set_times(_mapper: object, connection: Connection, job: JobMixin) -> None:
    """Give a job that is being flushed its times, now that the database is known.

    A job for now on a database with a clock needs nothing: the columns' defaults say so, and such rows are inserted
    together.
    """
    statements = statements_for(connection.dialect, job.job_tables)
    given = inspect(job).dict
    delay = job._process_in
    if job.job_tables.clock is not None:
        return
    if statements.native_clock and "process_at" not in given and "enqueued_at" not in given and not delay:
        return
    for name, time in statements.enqueue_times(given.get("process_at"), delay).items():
        setattr(job, name, time)


event.listen(JobMixin, "before_insert", _set_times, propagate=True)


def _enqueue_many(connection: Connection, rows: Iterable[Row], tables: JobTables) -> list[uuid.UUID] | int:
    statements = statements_for(connection.dialect, tables)
    due_times = _DueTimes(connection, statements)
    if isinstance(rows, Sequence):
        prepared = [_prepare(row, index, tables) for index, row in enumerate(rows)]
        for chunk in _chunks(iter(prepared)):
            _insert_chunk(connection, statements, chunk, due_times)
        return [cast("uuid.UUID", row["job_id"]) for row in prepared]
    if not isinstance(rows, Iterator):
        raise TypeError(
            f"rows must be a sequence or an iterator of mappings, not {type(rows).__name__}: "
            'enqueue_many(session, [{"job_type": "resize", "payload": 1}]).'
        )
    if statements.in_autocommit(connection):
        raise ValueError(
            "An iterator needs a transaction, so that a bad row takes back those before it; this connection is in autocommit. "
            "Give a list: enqueue_many(connection, list(rows))."
        )
    count = 0
    statements.begin_before_savepoint(connection)
    with connection.begin_nested():
        for chunk in _chunks(_prepare(row, index, tables) for index, row in enumerate(rows)):
            _insert_chunk(connection, statements, chunk, due_times)
            count += len(chunk)
    return count


def _prepare(row: Row, index: int, tables: JobTables) -> dict[str, Any]:
    """Check and encode one row."""
    try:
        if not isinstance(row, Mapping):
            raise TypeError(f"a row must be a mapping with a job_type, not {type(row).__name__}.")
        unknown = set(row) - _ROW_KEYS
        if unknown or "job_type" not in row:
            raise TypeError(f"a row takes the keys {', '.join(sorted(_ROW_KEYS))} and needs job_type; this one has {sorted(row)}.")
        process_at, process_in = row.get("process_at"), row.get("process_in")
        job_id = row.get("job_id")
        return {
            "job_id": tables.job_ids.new() if job_id is None else check_job_id(job_id),
            "queue": check_name(row.get("queue", DEFAULT_QUEUE), "queue"),
            "job_type": check_name(row["job_type"], "job_type"),
            "payload": tables.encode(row.get("payload")),
            "attempts": 0,
            "process_at": None if process_at is None else aware_utc(process_at, "process_at"),
            "process_in": None if process_in is None else check_delay(process_in, "process_in"),
        }
    except (TypeError, ValueError) as error:
        # Of the error's own class only where it is ours: a serializer's may take more than a message.
        kind = next(kind for kind in (PayloadTooLarge, PayloadError, TypeError, ValueError) if isinstance(error, kind))
        raise kind(f"rows[{index}]: {error}") from error


def _chunks(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row["payload"])
        if len(chunk) >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _DueTimes:
    """Keep jobs in order that would be due at the same moment: one microsecond apart.

    The clock is read once, before the first row: read again for each chunk, a job with a delay could be due before its predecessor.
    """

    def __init__(self, connection: Connection, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements
        self._given: dict[dt.datetime, int] = {}

    @cached_property
    def now(self) -> dt.datetime:
        """What time it was before the first row."""
        return self._statements.read_clock(self._connection)

    def spread(self, due: dt.datetime) -> dt.datetime:
        """Return the moment, moved by the number of jobs that had it before."""
        if len(self._given) >= _REMEMBERED_TIMES:
            self._given.clear()
        before = self._given.get(due, 0)
        self._given[due] = before + 1
        return due + _MICROSECOND * before if before < (_LATEST - due) // _MICROSECOND else _LATEST


def _insert_chunk(connection: Connection, statements: Statements, chunk: list[dict[str, Any]], due_times: _DueTimes) -> None:
    values = []
    for row in chunk:
        inserted = dict(row)
        due = due_time(due_times.now, inserted["process_at"], inserted.pop("process_in"))
        values.append(inserted | {"enqueued_at": due_times.now, "process_at": due_times.spread(due)})
    connection.execute(sa.insert(statements.job), values)
