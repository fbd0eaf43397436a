"""What every step of the pipeline is given: the database, the handlers, and the rules of one worker."""

from __future__ import annotations

import datetime as dt
import itertools
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from sqlalchemy.engine import Engine
from sqlalchemy.pool import AssertionPool, QueuePool, SingletonThreadPool, StaticPool

from proletarian_sa.clock import as_timedelta
from proletarian_sa.dialects import Statements, statements_for
from proletarian_sa.errors import DatabaseNotSupported
from proletarian_sa.forks import leave_inherited
from proletarian_sa.handlers import HandlerMode, Handlers, Retry, as_handlers, check_callback, check_retry
from proletarian_sa.health import Vigil
from proletarian_sa.installed import check_version_once
from proletarian_sa.log import emitter, is_quiet, log_event
from proletarian_sa.models import JobTables, check_job_tables, default_tables
from proletarian_sa.names import check_name
from proletarian_sa.own_connection import INSISTED, close_what_cannot_be_reset
from proletarian_sa.own_loops import make_thread
from proletarian_sa.trouble import RECORDING, Trouble
from proletarian_sa.turns import TURNS, taking_turns

MakeThread = Callable[[Callable[[], None], str], threading.Thread]

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection
    from sqlalchemy.orm import Session

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.events import Event, Sink
    from proletarian_sa.handlers import Found
    from proletarian_sa.held_session import HeldTransaction
    from proletarian_sa.running import RunningJob
    from proletarian_sa.session import HandlerTransaction

Claim = Literal["leased", "held"]
FailedJob = Callable[["RunningJob", BaseException], object]
SHORTEST_LEASE: Final = dt.timedelta(seconds=0.05)
LONGEST_LEASE: Final = dt.timedelta(days=7)
DEFAULT_MAX_CRASHES: Final = 5


class ClaimTokens:
    """Make claim tokens that never repeat: worker id, a random instance per start, a counter."""

    def __init__(self, worker_id: str) -> None:
        self._prefix = f"{worker_id[:200]}#{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)

    def new(self) -> str:
        """Return a token that was never returned before, by any process."""
        return f"{self._prefix}:{next(self._numbers)}"


class Colour(Protocol):
    """What is different where handlers are coroutines: how they are called, and what they are given."""

    def job(self, claimed: ClaimedJob, payload: Any, open_transaction: Callable[[], HandlerTransaction]) -> RunningJob:
        """Return the job for its handler."""
        ...

    def failed(self, claimed: ClaimedJob, payload: Any, open_transaction: Callable[[], HandlerTransaction]) -> RunningJob:
        """Return the job for `failed_job`."""
        ...

    def own(self, runtime: Runtime, job: ClaimedJob) -> HandlerTransaction:
        """Return what is behind `job.session`: a transaction of its own."""
        ...

    def joined(self, runtime: Runtime, job: ClaimedJob, connection: Connection, commit: Callable[[], None]) -> HeldTransaction:
        """Return what is behind `job.session`: a savepoint in a transaction of the worker's."""
        ...

    def call(self, runtime: Runtime, claimed: ClaimedJob, running: RunningJob, found: Found) -> BaseException | None:
        """Call the handler, and return what it raised."""
        ...

    def result_of(self, result: object, name: str) -> object:
        """Return what a function of the application's returned, once that is there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """One worker's view of the world, without state of its own but the token counter.

    Attributes:
        recording: What the outcomes of jobs meet on their way into the database.
        is_quiet: Whether nobody wants to know of what is told of each job that goes well: such events need not be made.
        colour: Of the handlers, where they are coroutines.
    """

    engine: Engine
    options: Mapping[str, Any]
    statements: Statements
    tables: JobTables
    queues: tuple[str, ...]
    handlers: Handlers
    retry: Retry
    lease: dt.timedelta
    max_crashes: int
    failed_job: FailedJob | None
    claim: Claim
    held_warning: dt.timedelta
    worker_id: str
    session_factory: Callable[[], Session] | None
    emit: Callable[[Event], None]
    is_quiet: Callable[[], bool]
    tokens: ClaimTokens = field(compare=False)
    vigil: Vigil = field(compare=False)
    recording: Trouble = field(compare=False)
    colour: Colour | None = None

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Return a thread for `target`, not started, which bears the worker's name before its own."""
        return make_thread(self.engine, target, f"{self.worker_id} {name}")


def build_runtime(
    engine: Any,
    handler: Any,
    *,
    queue: str | Sequence[str],
    tables: JobTables = default_tables,
    claim: Claim = "leased",
    lease: dt.timedelta | float = 60.0,
    retry: Retry = None,
    handler_mode: HandlerMode = "default",
    session_factory: Callable[[], Session] | None = None,
    max_crashes: int = DEFAULT_MAX_CRASHES,
    failed_job: FailedJob | None = None,
    held_warning: dt.timedelta | float = 60.0,
    worker_id: str | None = None,
    on_event: Sink = log_event,
    is_async: bool = False,
) -> Runtime:
    """Check the options and return the runtime, not yet prepared for its database; `is_async`: for handlers that are coroutines.

    **Transaction:** nothing: does not connect.
    """
    if not isinstance(engine, Engine):
        raise TypeError(
            f"A worker needs an Engine, not {type(engine).__name__}: it takes connections of its own and commits on them. "
            "Give create_engine(url), or session.get_bind()."
        )
    if engine.dialect.is_async and not is_async:
        raise TypeError(
            f"A worker's threads cannot use {engine.dialect.name}+{engine.dialect.driver}, a driver for asyncio. "
            "Give it an engine of its own: create_engine(url) with a synchronous driver, such as psycopg, pymysql or pysqlite."
        )
    if not callable(on_event):
        raise TypeError(f"on_event must be a function of one event, not {on_event!r}.")
    check_callback(on_event, "on_event", "event")
    check_job_tables(tables)
    if session_factory is not None and not callable(session_factory):
        raise TypeError(f"session_factory must be a function that returns a Session, not {session_factory!r}.")
    if isinstance(max_crashes, bool) or not isinstance(max_crashes, int) or max_crashes < 0:
        raise ValueError(f"max_crashes must be an int of at least 0, not {max_crashes!r}.")
    check_callback(failed_job, "failed_job", "job", "exception", is_async=is_async)
    if claim not in ("leased", "held"):
        raise ValueError(f"claim must be 'leased' or 'held', not {claim!r}.")
    check_retry(retry, is_async=is_async)
    queues = check_queues(queue)
    name = check_name(worker_id, "worker_id") if worker_id is not None else f"proletarian[{','.join(queues)}]"
    statements = statements_for(engine.dialect, tables)
    handlers = as_handlers(handler, handler_mode, is_async=is_async)
    duration = as_timedelta(lease, "lease", minimum=SHORTEST_LEASE, maximum=LONGEST_LEASE)
    emit, vigil = emitter(on_event), Vigil()
    return Runtime(
        engine=engine,
        options={},
        statements=statements,
        tables=tables,
        queues=queues,
        handlers=handlers,
        retry=retry,
        lease=duration,
        max_crashes=max_crashes,
        failed_job=failed_job,
        claim=claim,
        held_warning=as_timedelta(held_warning, "held_warning", minimum=dt.timedelta()),
        worker_id=name,
        session_factory=session_factory,
        emit=emit,
        is_quiet=is_quiet if on_event is log_event else lambda: False,
        tokens=ClaimTokens(name),
        vigil=vigil,
        recording=Trouble(emit, name, RECORDING, vigil),
    )


def check_queues(queue: Any) -> tuple[str, ...]:
    """Return the names of one queue or several, in their order.

    Raises:
        TypeError: Neither a name nor a sequence of names.
        ValueError: A bad name, one name twice, or none.
    """
    if isinstance(queue, str | bytes):
        return (check_name(queue, "queue"),)
    if not isinstance(queue, Sequence):
        raise TypeError(f"queue must be a string, not {queue!r}, or a list of strings: queue=['urgent', 'default'].")
    names = tuple(check_name(name, f"queue[{index}]") for index, name in enumerate(queue))
    if not names or len(set(names)) < len(names):
        raise ValueError(f"queue must name one or more queues, each once, not {list(names)!r}.")
    return names


def prepare(runtime: Runtime) -> Runtime:
    """Look at the database, and return the runtime with an engine of ours for it and with tokens of its own.

    Raises:
        DatabaseNotSupported: An SQLite database in memory, a server that is too old, a pool that shares one connection.
        TablesMissing: The tables are of an older version.

    **Transaction:** a connection of its own, rolled back.
    """
    engine, statements = runtime.engine, runtime.statements
    if isinstance(engine.pool, StaticPool):
        raise DatabaseNotSupported(
            f"{engine.url!r} uses StaticPool: all threads would share one connection and its transaction. Use the default pool."
        )
    if isinstance(engine.pool, AssertionPool):
        raise DatabaseNotSupported(
            f"{engine.url!r} uses AssertionPool: a worker needs more than the one connection it allows. Use the default pool."
        )
    leave_inherited(engine)
    with engine.connect() as connection:
        reason = statements.why_not(connection)
        if reason is not None:
            raise DatabaseNotSupported(f"{engine.url!r} cannot serve a worker: {reason}")
        if isinstance(engine.pool, SingletonThreadPool):  # not before: it is the default pool of databases in memory
            raise DatabaseNotSupported(
                f"{engine.url!r} uses SingletonThreadPool: what one thread does would share one connection and its transaction. "
                "Use the default pool."
            )
        check_version_once(connection, runtime.tables)
        options = statements.own_options(connection)
    # SQLAlchemy lets what the application's engine was given, if it was, win over what an engine made from it is given.
    insisted = {INSISTED: options} if options.keys() & engine.get_execution_options().keys() else {}
    turns = {} if statements.row_locks or TURNS in engine.get_execution_options() else taking_turns(engine)
    close_what_cannot_be_reset(engine.dialect)
    own_engine = engine.execution_options(**options, **insisted, **turns)
    vigil, name = Vigil(), runtime.worker_id
    recording = Trouble(runtime.emit, name, RECORDING, vigil)
    return replace(runtime, engine=own_engine, options=options, tokens=ClaimTokens(name), vigil=vigil, recording=recording)


def pool_capacity(engine: Engine) -> int | None:
    """Return how many connections the pool hands out at the same time; None: as many as are asked for."""
    pool = engine.pool
    if not isinstance(pool, QueuePool):
        return None
    overflow: int = getattr(pool, "_max_overflow", 0)
    return None if overflow < 0 or pool.size() == 0 else pool.size() + overflow
