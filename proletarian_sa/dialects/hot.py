"""Statements that are sent for each job: by the driver's own cursor, without what SQLAlchemy does anew for each execution.

That is where nobody looks: with listeners to what is sent, or with a log of it, everything goes SQLAlchemy's way. What the driver
raises becomes the same errors as there, by SQLAlchemy's own hand, and is told to those who listen for errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, CursorResult
    from sqlalchemy.pool import PoolProxiedConnection

_UNWATCHED: Final = "proletarian_sa_unwatched"  # key of Connection.info


def look_for_watchers(connection: Connection) -> None:
    """Take note whether anybody wants to see what is sent from now on: once for each job, as it costs as much as a statement."""
    heard, driver = connection.dispatch, connection.dialect.dispatch
    connection.info[_UNWATCHED] = not (
        connection._echo
        or heard.before_execute
        or heard.after_execute
        or heard.before_cursor_execute
        or heard.after_cursor_execute
        or heard.begin
        or heard.commit
        or driver.do_execute
    )


def _is_free(connection: Connection) -> bool:
    """Return whether nobody looks, and nothing is left of which SQLAlchemy would complain before it sends anything."""
    transaction = connection.get_transaction()
    at_rest = (transaction is None or transaction.is_active) and connection.get_nested_transaction() is None
    return at_rest and not connection.invalidated and connection.info.get(_UNWATCHED, False)


class HotStatement:
    """A statement that returns a few rows.

    SQLAlchemy sends it the first time on a connection. What it has made of it, a text and conversions of values, is sent again as
    it is.
    """

    def __init__(self, statement: sa.Select[Any] | sa.UpdateBase) -> None:
        self._statement = statement
        self._sent: WeakKeyDictionary[Connection, _Sent] = WeakKeyDictionary()

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Execute it with these values, and return its rows."""
        sent = self._sent.get(connection)
        if sent is not None and _is_free(connection):
            return sent.again(connection, values)
        result: CursorResult[Any] = connection.execute(self._statement, values)
        if sent is None:
            self._sent[connection] = _Sent(self._statement, result)
        return result.all()


class _Sent:
    """What was sent on one connection, and how to send it again with other values."""

    def __init__(self, statement: Any, result: CursorResult[Any]) -> None:
        context: Any = result.context
        compiled, dialect = context.compiled, context.dialect
        writers = {name: bind.type.dialect_impl(dialect).bind_processor(dialect) for name, bind in compiled.binds.items()}
        readers = [
            column.type.dialect_impl(dialect).result_processor(dialect, described[1])
            for column, described in zip(statement.exported_columns, context.cursor.description, strict=True)
        ]
        self._text: str = context.statement
        self._constants: dict[str, Any] = compiled.params
        self._names: list[str] | None = compiled.positiontup
        self._writers = [(name, write) for name, write in writers.items() if write is not None]
        self._readers = [(place, read) for place, read in enumerate(readers) if read is not None]
        self._cursor: Any = None

    def again(self, connection: Connection, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Send it, and return its rows."""
        named = {**self._constants, **values}
        for name, write in self._writers:
            named[name] = write(named[name])
        parameters: Any = named if self._names is None else tuple([named[name] for name in self._names])
        if connection.get_transaction() is None:
            connection.begin()
        cursor, self._cursor = self._cursor, None
        try:
            cursor = cursor or connection.connection.cursor()
            connection.dialect.do_execute(cursor, self._text, parameters)
            rows = cursor.fetchall()
        except BaseException as error:  # noqa: BLE001 - raised again
            _raise(connection, error, self._text, parameters, cursor)
        self._cursor = cursor  # not for a connection in trouble
        return [self._read(row) for row in rows] if self._readers else rows

    def _read(self, row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for place, read in self._readers:
            values[place] = read(values[place])
        return values


def commit_and_begin(connection: Connection, text: str) -> bool:
    """Commit and begin the next transaction in one round trip, by this text; False if SQLAlchemy is to do the one or the other.

    To SQLAlchemy it is the same transaction that goes on.
    """
    if not _is_free(connection):
        return False
    lasting = _Lasting(connection.connection, text)
    try:
        connection.dialect.do_commit(
            cast("PoolProxiedConnection", lasting)
        )  # which others may have wrapped, as we do ourselves to hear of commits
    except BaseException as error:  # noqa: BLE001 - raised again
        _raise(connection, error, text, (), None)
    return True


class _Lasting:
    """A driver's connection, for those who commit on it: one transaction is the end of the other."""

    def __init__(self, pooled: Any, text: str) -> None:
        self._pooled = pooled
        self._text = text
        self.info = pooled.info

    def commit(self) -> None:
        """Send the text."""
        cursor = self._pooled.cursor()
        cursor.execute(self._text)
        cursor.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pooled, name)


def _raise(connection: Connection, error: BaseException, text: str, parameters: Any, cursor: Any) -> NoReturn:
    """Raise what SQLAlchemy (2.0 and 2.1) makes of a driver's error."""
    connection._handle_dbapi_exception(error, text, parameters, cursor, None)
