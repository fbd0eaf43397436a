"""How each database defines and alters our tables: SQL text for people to read and run, never executed here.

Rendered by SQLAlchemy's own compiler of the dialect, from the models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable, DropIndex, DropTable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.sql.ddl import ExecutableDDLElement
    from sqlalchemy.types import TypeEngine


class Definitions:
    """How one database says it.

    Attributes:
        title: The name of the database.
        how: The native client, with what makes it stop at the first error.
        driver: A driver that is not async, as in URLs.
        has_schemas: A table lies in a schema, or a database, that can be named.
    """

    title: ClassVar[str]
    how: ClassVar[str]
    driver: ClassVar[str]
    has_schemas: ClassVar[bool] = True

    def __init__(self, dialect: str) -> None:
        kind: Any = sa.make_url(f"{dialect}://").get_dialect()
        # With the drivers' own parameter styles a percent sign would be doubled.
        self._dialect = kind(paramstyle="named")
        self._preparer = self._dialect.identifier_preparer

    def name(self, table: sa.Table) -> str:
        """Quote a table's name, with its schema."""
        return str(self._preparer.format_table(table))

    def quote(self, name: str) -> str:
        """Quote the name of a column."""
        return str(self._preparer.quote(name))

    def create_schema(self, schema: str) -> str:
        """Return the statement that makes a schema unless it is there."""
        return self._render(CreateSchema(schema, if_not_exists=True))

    def create(self, table: sa.Table) -> list[str]:
        """Return the statements that make a table and its indexes, each unless it is there."""
        return [
            self._render(CreateTable(table, if_not_exists=True)),
            *(self._render(CreateIndex(index, if_not_exists=True)) for index in in_order(table)),
        ]

    def drop(self, table: sa.Table) -> str:
        """Return the statement that drops a table if it is there."""
        return self._render(DropTable(table, if_exists=True))

    def create_index(self, index: sa.Index) -> str:
        """Return the statement that makes an index."""
        return self._render(CreateIndex(index))

    def drop_index(self, index: sa.Index, constraint: str | None) -> str:
        """Return the statement that drops an index, or the constraint to which it belongs."""
        if constraint is not None and index.table is not None:
            return f"ALTER TABLE {self.name(index.table)} DROP CONSTRAINT {self.quote(constraint)}"
        return self._render(DropIndex(index))

    def type(self, kind: TypeEngine[Any]) -> str:
        """Return a type, of a model or of the database, in the words of the database, without what is compared apart."""
        # Collations are compared by themselves; the width of a number's display means nothing.
        kind = kind.dialect_impl(self._dialect)
        if getattr(kind, "collation", None) is not None or getattr(kind, "display_width", None) is not None:
            kind = kind.copy() if hasattr(kind, "copy") else kind
            vars(kind).update({name: None for name in ("collation", "charset", "display_width") if hasattr(kind, name)})
        return str(kind.compile(dialect=self._dialect))

    def collation(self, column: sa.Column[Any]) -> str | None:
        """Return the collation that a column must have; None: whichever."""
        return None

    def collations(self, connection: Connection, name: str, schema: str | None) -> dict[str, str | None]:
        """Return the collations of a table's columns, where `collation` asks for one."""
        return {}

    def is_there(self, url: URL) -> bool:
        """Return False if connecting would make a new database."""
        return True

    def where(self, options: Mapping[str, Any]) -> Any:
        """Return the condition of a partial index from its options, of a model or of the database."""
        return options.get(f"{self._dialect.name}_where")

    def wrong_engine(self, inspector: sa.Inspector, name: str, schema: str | None) -> str | None:
        """Return the storage engine of a table that has a wrong one."""
        return None

    def use_engine(self, table: sa.Table) -> str:
        """Return the statement that gives a table the right storage engine."""
        raise NotImplementedError

    def is_numbered(self, connection: Connection, table: sa.Table, column: Any) -> bool:
        """Return whether the database numbers the rows by this column, which it has told about, and repeats no number."""
        return bool(column.get("autoincrement") or column.get("identity"))

    def add_column(self, column: sa.Column[Any]) -> str:
        """Return the statement that adds a column, which may be NULL."""
        return f"ALTER TABLE {self.name(column.table)} ADD COLUMN {self.quote(column.name)} {self.type(column.type)}"

    def change_type(self, column: sa.Column[Any], stored: TypeEngine[Any], there: Collection[str]) -> str:
        """Return what gives a column its type, and its collation. `there`: the columns that the table has."""
        raise NotImplementedError

    def change_null(self, column: sa.Column[Any], there: Collection[str]) -> str:
        """Return what lets a column be NULL, or forbids it."""
        raise NotImplementedError

    def number(self, column: sa.Column[Any], archive: sa.Table, there: Collection[str]) -> str:
        """Return what lets the database number the rows, beyond what is there."""
        raise NotImplementedError

    def change_key(self, table: sa.Table, stored: Any, there: Collection[str]) -> str:
        """Return what makes `job_id` the primary key, in place of the one that is there, if any."""
        raise NotImplementedError

    def _render(self, element: ExecutableDDLElement) -> str:
        text = str(element.compile(dialect=self._dialect)).strip()
        return text.replace(", \n\t", ",\n    ").replace("(\n\t", "(\n    ")

    def _literal(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"


def in_order(table: sa.Table) -> list[sa.Index]:
    """Return the indexes of a table in an order that is always the same."""
    return sorted(table.indexes, key=lambda index: str(index.name))
