"""A connection of ours that one loop keeps, and gives up at the first error."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import exc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import Connection, Dialect, Engine

    from proletarian_sa.dialects import Statements

Result = TypeVar("Result")

MOST_STALE: Final = 100
"""How many connections in a row may be found stale in a pool."""


def past_stale(begin: Callable[[], Result], dialect: Dialect) -> Result:
    """Return what `begin` returns, calling it again while the pool hands it connections that the server has ended meanwhile.

    Args:
        begin: Connects, and does what may be done twice. A database that refuses connections is not asked again.
        dialect: The engine's.

    Raises:
        DBAPIError: The database cannot serve us. SQLAlchemy leaves the driver's own error as it is where it sets the isolation
            level of a connection; it is wrapped here, for those who judge errors.
    """
    tries = 0
    while True:
        tries += 1
        try:
            return begin()
        except exc.DBAPIError as error:
            if not error.connection_invalidated or tries > MOST_STALE:
                raise
        except dialect.loaded_dbapi.Error as error:
            stale = dialect.is_disconnect(error, None, None)
            if not stale or tries > MOST_STALE:
                raise exc.DBAPIError.instance(
                    "(setting up a connection)",
                    None,
                    error,
                    dialect.loaded_dbapi.Error,
                    connection_invalidated=stale,
                    dialect=dialect,
                ) from error


class OwnConnection:
    """Transactions on a connection that stays checked out between them: setting it up costs round trips on the MySQL family.

    Not for two threads at once. After an error the connection is given back, because one that was revalidated would no longer have
    its isolation level.

    Args:
        engine: One of ours, with our isolation level.
        keep: False gives the connection back after each transaction, for pools that are too small.
        statements: Those that make it wait only briefly for locks; None: it waits as it does for the application.

    Attributes:
        commit_failed: The last transaction failed in its commit: it may have been committed all the same.
    """

    def __init__(self, engine: Engine, *, keep: bool = True, statements: Statements | None = None) -> None:
        self._engine = engine
        self._keep = keep
        self._statements = statements
        self._connection: Connection | None = None
        self._before: Any = None
        self.commit_failed = False

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield the connection, and commit; on an error roll back and give the connection up."""
        self.commit_failed = False
        try:
            if self._connection is None:
                past_stale(self._connect, self._engine.dialect)
            assert self._connection is not None
            yield self._connection
            self.commit_failed = True
            self._connection.commit()
            self.commit_failed = False
            if not self._keep:
                self.close()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self.close()  # that of an earlier try
        self._connection = self._engine.connect()
        if self._statements is not None:
            self._before = self._statements.make_impatient(self._connection)

    def close(self) -> None:
        """Roll back what is open and give the connection back to the pool, as it was."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if not connection.invalidated:
                connection.rollback()
                if self._statements is not None:
                    self._statements.make_patient(connection, self._before)
            connection.close()
        except exc.SQLAlchemyError:
            connection.invalidate()
            connection.close()
