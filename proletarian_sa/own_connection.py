"""A connection of ours that one loop keeps, and gives up at the first error."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import exc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection, Engine

    from proletarian_sa.dialects import Statements


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
                self._connection = self._engine.connect()
                if self._statements is not None:
                    self._before = self._statements.make_impatient(self._connection)
            yield self._connection
            self.commit_failed = True
            self._connection.commit()
            self.commit_failed = False
            if not self._keep:
                self.close()
        except BaseException:
            self.close()
            raise

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
