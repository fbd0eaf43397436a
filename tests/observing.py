"""Watch a worker by its events, and bring about what the database does to it."""

import datetime as dt
import queue
import threading
import time
import uuid
from typing import Any, TypeVar

import sqlalchemy as sa

from proletarian_sa import JobTables, ManualClock, default_tables, enqueue
from proletarian_sa.claimed import ClaimedJob
from proletarian_sa.dialects import Statements, statements_for
from proletarian_sa.events import Event
from tests.helpers import PATIENCE, wait_until
from tests.servers.sessions import sessions

Kind = TypeVar("Kind", bound=Event)


class Recorder:
    """A sink that keeps all events, and lets a test wait for them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def of(self, kind: type[Kind], **facts: Any) -> list[Kind]:
        """Return the events of a kind so far."""
        return [
            event
            for event in list(self.events)
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in facts.items())
        ]

    def names(self) -> list[str]:
        """Return the names of all events so far, in order."""
        return [type(event).__name__ for event in list(self.events)]

    def wait_for(self, kind: type[Kind], count: int = 1, timeout: float = PATIENCE, **facts: Any) -> Kind:
        """Return the `count`-th event of a kind, or fail when it has not come in time."""
        deadline = time.monotonic() + timeout
        with self._news:
            while len(found := self.of(kind, **facts)) < count:
                if not self._news.wait(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"no {kind.__name__} within {timeout} s; the last were {self.names()[-30:]}")
        return found[count - 1]


class Gate:
    """A handler that says that it has begun, and waits until it may return."""

    def __init__(self):
        self.begun = queue.Queue()
        self.open = threading.Event()

    def __call__(self, job):
        self.begun.put(job)
        assert self.open.wait(PATIENCE)


class Spoken:
    """Watches what the threads of a worker say to the database; holds a statement up, or lets it fail."""

    def __init__(self, engine: sa.Engine) -> None:
        self.hold = lambda _statement: False
        self.fail = lambda _statement: False
        self.arrived, self.go, self.said = threading.Event(), threading.Event(), queue.Queue()
        sa.event.listen(engine, "before_cursor_execute", self._before)
        sa.event.listen(engine, "after_cursor_execute", self._after)

    def _before(self, _connection, _cursor, statement, *_):
        if threading.current_thread() is threading.main_thread():
            return
        if self.hold(statement):
            self.hold = lambda _statement: False
            self.arrived.set()
            assert self.go.wait(PATIENCE)
        if self.fail(statement):
            raise sa.exc.TimeoutError("injected: no connection")

    def _after(self, _connection, _cursor, statement, *_):
        if threading.current_thread() is not threading.main_thread():
            self.said.put(statement)

    def wait_for_a_poll(self):
        """Return when the worker has looked for jobs."""
        while "process_at" not in self.said.get(timeout=PATIENCE):
            continue


def add(engine: sa.Engine, job_type: str = "work", payload: Any = None, **options: Any) -> uuid.UUID:
    """Enqueue a job and commit."""
    with engine.begin() as connection:
        return enqueue(connection, job_type, payload, **options)


def change(engine: sa.Engine, job_id: uuid.UUID, tables: JobTables = default_tables, **values: Any) -> None:
    """Change a job's row behind the library's back."""
    with engine.begin() as connection:
        changed = connection.execute(sa.update(tables.job).where(tables.job.c.job_id == job_id).values(**values)).rowcount
    assert 1 == changed


def lapse(engine: sa.Engine, job_id: uuid.UUID, tables: JobTables = default_tables) -> None:
    """Make a claim look as if its worker had died a day ago."""
    job = tables.job.c
    with engine.begin() as connection:
        changed = connection.execute(
            sa.update(tables.job).where(job.job_id == job_id, job.claimed_by.is_not(None)).values(lease_until=job.enqueued_at)
        ).rowcount
    assert 1 == changed


def statements(engine: sa.Engine, tables: JobTables = default_tables) -> Statements:
    """Return what the pipeline says to this database."""
    return statements_for(engine.dialect, tables)


def claim(
    engine: sa.Engine,
    token: str,
    *,
    limit: int = 10,
    lease: float = 3600,
    tables: JobTables = default_tables,
    queue: str = "default",
) -> list[ClaimedJob]:
    """Claim jobs as a worker does."""
    with engine.connect() as connection:
        seconds = dt.timedelta(seconds=lease)
        claimed = statements(engine, tables).claim(connection, queue=queue, token=token, lease=seconds, limit=limit)
        connection.commit()
    return claimed


def clocked_tables(clock: ManualClock) -> JobTables:
    """Return the tables of `queue_engine` under a clock that the test moves."""
    return JobTables(clock=clock)


def session_id(connection: sa.Connection) -> int:
    """Return the server's number of this connection."""
    query = "SELECT pg_backend_pid()" if connection.dialect.name == "postgresql" else "SELECT connection_id()"
    return int(connection.exec_driver_sql(query).scalar_one())


def end_session(engine: sa.Engine, number: int) -> None:
    """Let the server end a connection, and return when it is gone."""
    end = f"SELECT pg_terminate_backend({number})" if engine.dialect.name == "postgresql" else f"KILL {number}"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(end)
    wait_for_end(engine, number)


def wait_for_end(engine: sa.Engine, number: int) -> None:
    """Return when a connection is gone from the server, and with it its locks."""
    if engine.dialect.name != "postgresql":
        wait_until(lambda: all(session.number != number for session in sessions(engine.url)))
        return
    still = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {number}"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        wait_until(lambda: not connection.exec_driver_sql(still).scalar())


def is_waiting(engine: sa.Engine, number: int) -> bool:
    """Return whether a connection waits for a lock."""
    return "wait" in transactions(engine, [number])


def transactions(engine: sa.Engine, numbers: list[int]) -> list[str]:
    """Return what these connections do in a transaction: "wait" for a lock, or are "open"."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if connection.dialect.name == "postgresql":
            query = sa.text("SELECT wait_event_type FROM pg_stat_activity WHERE pid = ANY(:numbers) AND xact_start IS NOT NULL")
            found = connection.scalars(query, {"numbers": numbers}).all()
            return ["wait" if event == "Lock" else "open" for event in found]
        # information_schema.innodb_trx is not renewed while somebody keeps looking at it.
        status = connection.exec_driver_sql("SHOW ENGINE INNODB STATUS").one()[2]
    blocks = [block for block in status.split("---TRANSACTION ")[1:] if ", not started" not in block.partition("\n")[0]]
    mine = [block for block in blocks if any(f" thread id {number}," in block for number in numbers)]
    return ["wait" if "LOCK WAIT" in block else "open" for block in mine]


def backends(database: Any, **options: Any) -> tuple[sa.Engine, list[int]]:
    """Return an engine and the numbers of its connections at the server."""
    engine: sa.Engine = database.create_engine(**options)
    numbers: list[int] = []

    @sa.event.listens_for(engine, "connect")
    def note(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("SELECT pg_backend_pid()" if engine.dialect.name == "postgresql" else "SELECT connection_id()")
        numbers.append(cursor.fetchone()[0])
        cursor.close()
        connection.rollback()

    return engine, numbers
