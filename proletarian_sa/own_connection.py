"""A connection of ours that one loop keeps, and gives up at the first error."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import exc
from sqlalchemy.pool import NullPool, QueuePool

from proletarian_sa.turns import NO_TURN, take_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import Connection, Dialect, Engine

Result = TypeVar("Result")

MOST_STALE: Final = 100
"""How many connections in a row may be found stale in a pool that does not tell how many wait in it."""

_TAUGHT: Final = "proletarian_sa_resets"  # attribute of a dialect: see close_what_cannot_be_reset

INSISTED: Final = "proletarian_sa_insisted"
"""Execution option of an engine of ours: the options that each connection is to be given by itself."""


def connect(engine: Engine) -> Connection:
    """Connect with the options of an engine of ours, whatever the application's engine beneath was given."""
    with _wrapping(engine.dialect):
        connection = engine.connect()
    insisted = engine.get_execution_options().get(INSISTED)
    if insisted:
        try:
            connection.execution_options(**insisted)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def _wrapping(dialect: Dialect) -> Iterator[None]:
    """Wrap what a driver for asyncio raises while it connects and SQLAlchemy leaves as it is, for those who judge errors.

    asyncpg lets the system's own errors through (refused, no such host, time-out), and to SQLAlchemy 2.0 all of its own, too.
    """
    try:
        yield
    except (exc.SQLAlchemyError, dialect.loaded_dbapi.Error):
        raise
    except Exception as error:
        its_own = type(error).__module__.partition(".")[0] == dialect.driver.partition("_")[0]
        if not dialect.is_async or not (its_own or isinstance(error, OSError)):
            raise
        raise exc.OperationalError("(connecting)", None, error) from error


def past_stale(begin: Callable[[], Result], engine: Engine) -> Result:
    """Return what `begin` returns, calling it again while the pool hands it connections that the server has ended meanwhile.

    Args:
        begin: Connects, and does what may be done twice. A database that refuses connections is not asked again.
        engine: To whose database. No more is tried than the connections that wait in its pool, and a new one.

    Raises:
        DBAPIError: The database cannot serve us. SQLAlchemy leaves the driver's own error as it is where it sets the isolation
            level of a connection, and some where it connects; it is wrapped here, for those who judge errors.
    """
    dialect, pool = engine.dialect, engine.pool
    left = pool.checkedin() if isinstance(pool, QueuePool) else 0 if isinstance(pool, NullPool) else MOST_STALE
    while True:
        left -= 1
        try:
            with _wrapping(dialect):
                return begin()
        except exc.DBAPIError as error:
            if not error.connection_invalidated or left < 0:
                raise
        except dialect.loaded_dbapi.Error as error:
            stale = dialect.is_disconnect(error, None, None)
            if not stale or left < 0:
                raise exc.DBAPIError.instance(
                    "(setting up a connection)",
                    None,
                    error,
                    dialect.loaded_dbapi.Error,
                    connection_invalidated=stale,
                    dialect=dialect,
                ) from error


def close_what_cannot_be_reset(dialect: Dialect) -> None:
    """Let a connection that has lost its server be given back to the pool, where its isolation level is to be set as it was before.

    SQLAlchemy lets the driver's error through there: what has been committed would look as if it had failed, and the pool would
    never have the connection back, nor make another in its place. Closed, it is found stale at its next use.
    """
    if _TAUGHT in dialect.__dict__:
        return
    reset = dialect.reset_isolation_level

    def reset_or_close(connection: Any) -> None:
        try:
            reset(connection)
        except dialect.loaded_dbapi.Error:
            with suppress(Exception):  # it may be closed already
                connection.close()

    setattr(dialect, _TAUGHT, True)
    dialect.__dict__["reset_isolation_level"] = reset_or_close


class OwnConnection:
    """Transactions on a connection that stays checked out between them: setting it up costs round trips on the MySQL family.

    Not for two threads at once. After an error the connection is given back, because one that was revalidated would no longer have
    its isolation level.

    Args:
        engine: One of ours, with our isolation level.
        keep: False gives the connection back after each transaction, for pools that are too small.
        settle: Sets up a new connection and returns what to restore, None if that is nothing.
        restore: Undoes that before the connection is given back.
        commit: Commits where another transaction follows at once; by default as anywhere.
        in_line: Whether its transactions wait for their turns where one may write at a time.

    Attributes:
        commit_failed: The last transaction failed in its commit: it may have been committed all the same.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        keep: bool = True,
        settle: Callable[[Connection], Any] | None = None,
        restore: Callable[[Connection, Any], None] | None = None,
        commit: Callable[[Connection], None] | None = None,
        in_line: bool = True,
    ) -> None:
        self._engine = engine
        self._in_line = in_line
        self._keep = keep
        self._settle = settle
        self._restore = restore
        self._commit_going_on = commit
        self._connection: Connection | None = None
        self._before: Any = None
        self.commit_failed = False

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield the connection, and commit; on an error roll back and give the connection up."""
        turn = take_turn(self._engine) if self._in_line else NO_TURN
        try:
            yield self.begin()
            self.commit()
        except BaseException:
            self.close()
            raise
        finally:
            turn.end()

    def begin(self) -> Connection:
        """Return the connection. Whoever begins also commits, or closes."""
        self.commit_failed = False
        if self._connection is None:
            past_stale(self._connect, self._engine)
        assert self._connection is not None
        return self._connection

    def commit(self, *, going_on: bool = False) -> None:
        """Commit what is open, if anything is; `going_on`: another transaction follows at once, and may begin with that."""
        if self._connection is None:
            return
        self.commit_failed = True
        if going_on and self._keep and self._commit_going_on is not None:
            self._commit_going_on(self._connection)
        else:
            self._connection.commit()
        self.commit_failed = False
        if not self._keep:
            self.close()

    @property
    def is_open(self) -> bool:
        """Whether a connection is checked out."""
        return self._connection is not None

    def rollback(self) -> None:
        """Roll back what is open, and keep the connection if it is to be kept."""
        try:
            if self._connection is not None:
                self._connection.rollback()
        except exc.SQLAlchemyError:
            self.close()
        if not self._keep:
            self.close()

    def _connect(self) -> None:
        self.close()  # that of an earlier try
        self._connection = connect(self._engine)
        if self._settle is not None:
            self._before = self._settle(self._connection)

    def close(self) -> None:
        """Roll back what is open and give the connection back to the pool, as it was."""
        connection, self._connection = self._connection, None
        before, self._before = self._before, None
        if connection is None or connection.closed:  # by a handler that should not
            return
        try:
            if self.commit_failed:
                connection.invalidate()  # SQLAlchemy takes the transaction for over and sends no rollback; `restore` commits
            if not connection.invalidated:
                connection.rollback()
                if self._restore is not None and before is not None:
                    self._restore(connection, before)
            connection.close()
        except exc.SQLAlchemyError:
            connection.invalidate()
            connection.close()
