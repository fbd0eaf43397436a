"""A connection of ours that one loop keeps, and gives up at the first error."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import exc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection, Engine


class OwnConnection:
    """Transactions on a connection that stays checked out between them: setting it up costs round trips on the MySQL family.

    `keep=False` gives it back after each transaction, for pools that are too small. Not for two threads at once. After an error
    the connection is given back, because one that was revalidated would no longer have its isolation level.
    """

    def __init__(self, engine: Engine, *, keep: bool = True) -> None:
        self._engine = engine
        self._keep = keep
        self._connection: Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield the connection, and commit; on an error roll back and give the connection up."""
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            yield self._connection
            self._connection.commit()
            if not self._keep:
                self.close()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Roll back what is open and give the connection back to the pool."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
        except exc.SQLAlchemyError:
            connection.invalidate()
            connection.close()
