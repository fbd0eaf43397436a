"""Statements that are sent thousands of times: compiled at their first execution, and then sent as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Dialect

Processor = "Callable[[Any], Any] | None"


class Compiled:
    """What one statement is in the words of a driver.

    Attributes:
        text: What the driver is given.
    """

    def __init__(self, text: str, compiled: Any, dialect: Dialect, columns: Sequence[sa.ColumnElement[Any]]) -> None:
        self.text = text
        self._names: Sequence[str] | None = compiled.positiontup
        self._fixed = {name: bind.effective_value for name, bind in compiled.binds.items() if not bind.required}
        self._into = {name: _into_driver(bind.type, dialect) for name, bind in compiled.binds.items()}
        self._from = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]

    def parameters(self, values: Mapping[str, Any]) -> Any:
        """Return the parameters for the driver."""
        given = {}
        for name, process in self._into.items():
            value = values[name] if name in values else self._fixed[name]
            given[name] = value if process is None else process(value)
        return given if self._names is None else tuple(given[name] for name in self._names)

    def row(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return a row of the driver's as SQLAlchemy returns it."""
        return tuple(
            value if process is None else process(value) for value, process in zip(row, self._from, strict=True)
        )


def _into_driver(kind: sa.types.TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    return kind.dialect_impl(dialect).bind_processor(dialect)


class CompiledOnce:
    """A statement and what became of it, for each of the schemas that the application maps ours to.

    Args:
        statement: Without parameters that change its text.
        columns: What it returns.
    """

    def __init__(self, statement: sa.Executable, columns: Sequence[sa.ColumnElement[Any]] = ()) -> None:
        self._statement = statement
        self._columns = columns
        self._compiled: dict[Any, Compiled] = {}

    def known(self, connection: Connection) -> Compiled | None:
        """Return what it is on this connection, once it has been executed."""
        return self._compiled.get(_schemas(connection))

    def execute(self, connection: Connection, values: Mapping[str, Any]) -> list[Any]:
        """Execute it, and return all rows, or the number of rows alone where it returns none."""
        known = self.known(connection)
        if known is None:
            result = connection.execute(self._statement, values)
            context: Any = result.context
            self._compiled[_schemas(connection)] = Compiled(context.statement, context.compiled, connection.dialect, self._columns)
            return list(result) if result.returns_rows else [result.rowcount]
        result = connection.exec_driver_sql(known.text, known.parameters(values))
        return [known.row(row) for row in result] if result.returns_rows else [result.rowcount]


def _schemas(connection: Connection) -> Any:
    mapped = connection.get_execution_options().get("schema_translate_map")
    return None if not mapped else frozenset(mapped.items())
