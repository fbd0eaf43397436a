"""COPY through psycopg as a statement of SQLAlchemy's: its hooks, its log and its exceptions are the same as for any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.pq import PipelineStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection

_TEXT_ENCODING: Final = "utf-8"


def takes_copy(connection: Connection) -> bool:
    """Return whether the driver lets this connection COPY now, with text in UTF-8."""
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        return False
    return driver.pgconn.pipeline_status == PipelineStatus.OFF and driver.info.encoding == _TEXT_ENCODING


def copy_in(connection: Connection, statement: str, data: Iterator[bytes]) -> None:
    """Execute COPY … FROM STDIN with this data, of which no part may need the connection.

    Raises:
        DBAPIError: As for any other statement.

    **Transaction:** the caller's.
    """
    driver: Any = connection.connection.driver_connection
    kind: Any = _AsyncCopyCursor if isinstance(driver, psycopg.AsyncConnection) else _CopyCursor
    usual = driver.cursor_factory

    def make(*arguments: Any, **options: Any) -> Any:
        driver.cursor_factory = usual  # the next cursor is another's, such as a hook's
        cursor = kind(*arguments, **options)
        cursor.data = data
        return cursor

    driver.cursor_factory = make
    try:
        connection.exec_driver_sql(statement, execution_options={"stream_results": False})
    finally:
        driver.cursor_factory = usual


class _CopyCursor(psycopg.Cursor[Any]):
    """A cursor of which every statement is a COPY."""

    data: Iterator[bytes]

    def execute(self, query: Any, params: Any = None, **options: Any) -> _CopyCursor:
        with self.copy(query) as copy:
            for part in self.data:
                copy.write(part)
        return self


class _AsyncCopyCursor(psycopg.AsyncCursor[Any]):
    """The same, for asyncio."""

    data: Iterator[bytes]

    async def execute(self, query: Any, params: Any = None, **options: Any) -> _AsyncCopyCursor:
        async with self.copy(query) as copy:
            for part in self.data:
                await copy.write(part)
        return self
