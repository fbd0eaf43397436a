"""How each database defines and alters our tables: SQL text for people to read and run, never executed here.

Rendered by SQLAlchemy's own compiler of the dialect, from the models.
"""

# ruff: noqa: S608 - text for people to read, of names that are quoted
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable, DropIndex, DropTable

from proletarian_sa.types import MYSQL_FAMILY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.sql.ddl import ExecutableDDLElement
    from sqlalchemy.types import TypeEngine

_COPY: Final = "_before"  # what a table that is made anew on SQLite is called afterwards


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
            *(self._render(CreateIndex(index, if_not_exists=True)) for index in _in_order(table)),
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


class PostgreSQLDefinitions(Definitions):
    """Each clause of a column is altered by itself."""

    title = "PostgreSQL"
    how = "psql -v ON_ERROR_STOP=1 DATABASE"
    driver = "postgresql+psycopg"

    def create_schema(self, schema: str) -> str:
        tag, create = "$create$", self._render(CreateSchema(schema))
        while tag in schema:
            tag = f"{tag[:-1]}_$"
        # CREATE SCHEMA IF NOT EXISTS asks for the right to create one even where it is there.
        there = f"SELECT FROM pg_catalog.pg_namespace WHERE nspname = {self._literal(schema)}"
        return f"DO {tag}\nBEGIN\n    IF NOT EXISTS ({there}) THEN\n        {create};\n    END IF;\nEND\n{tag}"

    def change_type(self, column: sa.Column[Any], stored: TypeEngine[Any], there: Collection[str]) -> str:
        name, kind = self.quote(column.name), self.type(column.type)
        # A cast would take times without a zone for times in the session's.
        no_zone = isinstance(stored, sa.TIMESTAMP) and not stored.timezone
        using = f"{name} AT TIME ZONE 'UTC'" if no_zone else f"{name}::{kind}"
        return f"ALTER TABLE {self.name(column.table)} ALTER COLUMN {name} TYPE {kind} USING {using}"

    def change_null(self, column: sa.Column[Any], there: Collection[str]) -> str:
        act = "DROP" if column.nullable else "SET"
        return f"ALTER TABLE {self.name(column.table)} ALTER COLUMN {self.quote(column.name)} {act} NOT NULL"

    def number(self, column: sa.Column[Any], archive: sa.Table, there: Collection[str]) -> str:
        table, name = self.name(column.table), self.quote(column.name)
        sequence = f"pg_get_serial_sequence({self._literal(table)}, {self._literal(column.name)})"
        known = ", ".join(f"(SELECT max({name}) + 1 FROM {known})" for known in (table, self.name(archive)))
        return (
            f"ALTER TABLE {table} ALTER COLUMN {name} ADD GENERATED BY DEFAULT AS IDENTITY; "
            f"SELECT setval({sequence}, greatest(1, {known}), false)"
        )

    def change_key(self, table: sa.Table, stored: Any, there: Collection[str]) -> str:
        drop = f"DROP CONSTRAINT {self.quote(stored['name'])}, " if stored["name"] else ""
        return f"ALTER TABLE {self.name(table)} {drop}ADD PRIMARY KEY ({self.quote('job_id')})"


class MySQLDefinitions(Definitions):
    """A column is altered as a whole; indexes are created with their table, for CREATE INDEX has no IF NOT EXISTS."""

    title = "MySQL"
    how = "mysql DATABASE"
    driver = "mysql+pymysql"

    def create(self, table: sa.Table) -> list[str]:
        copy = table.to_metadata(sa.MetaData())
        for index in _in_order(table):
            copy.append_constraint(_InlineIndex(str(index.name), [column.name for column in index.columns], unique=index.unique))
        return [self._render(CreateTable(copy, if_not_exists=True))]

    def collation(self, column: sa.Column[Any]) -> str | None:
        is_text = isinstance(column.type.dialect_impl(self._dialect), sa.String)
        return str(column.table.kwargs[f"{self._dialect.name}_collate"]) if is_text else None

    def collations(self, connection: Connection, name: str, schema: str | None) -> dict[str, str | None]:
        columns = sa.table(
            "columns", *map(sa.column, ("table_schema", "table_name", "column_name", "collation_name")), schema="information_schema"
        )
        place = sa.func.database() if schema is None else schema
        query = sa.select(columns.c.column_name, columns.c.collation_name)
        rows = connection.execute(query.where(columns.c.table_schema == place, columns.c.table_name == name))
        return {str(row[0]): row[1] for row in rows}

    def wrong_engine(self, inspector: sa.Inspector, name: str, schema: str | None) -> str | None:
        options: Mapping[str, Any] = inspector.get_table_options(name, schema=schema)
        stored = next((value for name, value in options.items() if name.endswith("_engine")), None)
        return None if stored is None or str(stored).lower() == "innodb" else str(stored)

    def use_engine(self, table: sa.Table) -> str:
        return f"ALTER TABLE {self.name(table)} ENGINE = InnoDB"

    def add_column(self, column: sa.Column[Any]) -> str:
        return f"ALTER TABLE {self.name(column.table)} ADD COLUMN {self._column(column)}"

    def change_type(self, column: sa.Column[Any], stored: TypeEngine[Any], there: Collection[str]) -> str:
        return f"ALTER TABLE {self.name(column.table)} MODIFY COLUMN {self._column(column)}"

    def change_null(self, column: sa.Column[Any], there: Collection[str]) -> str:
        return self.change_type(column, column.type, there)

    def number(self, column: sa.Column[Any], archive: sa.Table, there: Collection[str]) -> str:
        # The counter is then beyond the table's own numbers; the archive's must not be given again either. It takes no expression.
        beyond = f"(SELECT coalesce(max({self.quote(column.name)}), 0) + 1 FROM {self.name(archive)})"
        alter = self._literal(f"ALTER TABLE {self.name(column.table)} AUTO_INCREMENT = ")
        return (
            f"{self.change_type(column, column.type, there)}; SET @alter = concat({alter}, {beyond}); "
            "PREPARE alter_counter FROM @alter; EXECUTE alter_counter; DEALLOCATE PREPARE alter_counter"
        )

    def _literal(self, text: str) -> str:
        return super()._literal(text.replace("\\", "\\\\"))

    def change_key(self, table: sa.Table, stored: Any, there: Collection[str]) -> str:
        drop = "DROP PRIMARY KEY, " if stored["constrained_columns"] else ""
        return f"ALTER TABLE {self.name(table)} {drop}ADD PRIMARY KEY ({self.quote('job_id')})"

    def _column(self, column: sa.Column[Any]) -> str:
        collation = self.collation(column)
        text = "" if collation is None else f" CHARACTER SET {collation.partition('_')[0]} COLLATE {collation}"
        number = " AUTO_INCREMENT" if column.table.autoincrement_column is column else ""
        return f"{self.quote(column.name)} {self.type(column.type)}{text} {'NULL' if column.nullable else 'NOT NULL'}{number}"


class MariaDBDefinitions(MySQLDefinitions):
    """As MySQL."""

    title = "MariaDB"
    how = "mariadb DATABASE"
    driver = "mariadb+pymysql"


class SQLiteDefinitions(Definitions):
    """Columns cannot be altered: the table is made anew, and the rows are copied."""

    title = "SQLite"
    how = "sqlite3 -bail FILE"
    driver = "sqlite"
    has_schemas = False

    def is_there(self, url: URL) -> bool:
        return not url.database or url.database.startswith((":memory:", "file:")) or Path(url.database).exists()

    def is_numbered(self, connection: Connection, table: sa.Table, column: Any) -> bool:
        query = sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(:name)")
        return "AUTOINCREMENT" in str(connection.execute(query, {"name": table.name}).scalar()).upper()

    def change_type(self, column: sa.Column[Any], stored: TypeEngine[Any], there: Collection[str]) -> str:
        return self._anew(column.table, there)

    def change_null(self, column: sa.Column[Any], there: Collection[str]) -> str:
        return self._anew(column.table, there)

    def number(self, column: sa.Column[Any], archive: sa.Table, there: Collection[str]) -> str:
        return self._anew(column.table, there, archive)

    def change_key(self, table: sa.Table, stored: Any, there: Collection[str]) -> str:
        return self._anew(table, there)

    def _anew(self, table: sa.Table, there: Collection[str], archive: sa.Table | None = None) -> str:
        """Make the table anew under its name; the old one stays beside it, whatever happens."""
        new, old = self.name(table), self.quote(f"{table.name}{_COPY}")
        columns = ", ".join(self.quote(column.name) for column in table.c if column.name in there)
        statements = [
            "PRAGMA foreign_keys = OFF",
            "PRAGMA legacy_alter_table = ON",  # foreign keys of other tables keep the name
            "BEGIN IMMEDIATE",
            *(f"DROP INDEX IF EXISTS {self.quote(str(index.name))}" for index in _in_order(table)),
            f"ALTER TABLE {new} RENAME TO {old}",
            *(text.replace(",\n    ", ", ").replace("(\n    ", "(").replace("\n)", ")") for text in self.create(table)),
            f"INSERT INTO {new} ({columns}) SELECT {columns} FROM {old}",
        ]
        if table.autoincrement_column is not None:  # no number is given again
            name, before = self._literal(table.name), self._literal(f"{table.name}{_COPY}")
            greatest = f"SELECT seq FROM sqlite_sequence WHERE name IN ({name}, {before})"
            if archive is not None:
                greatest += f" UNION ALL SELECT max(job_id) FROM {self.name(archive)}"
            statements += [
                f"CREATE TEMP TABLE numbers AS {greatest}",
                f"DELETE FROM sqlite_sequence WHERE name = {name}",
                f"INSERT INTO sqlite_sequence (name, seq) SELECT {name}, coalesce(max(seq), 0) FROM numbers",
                "DROP TABLE numbers",
            ]
        return "; ".join([*statements, "COMMIT"])


class _InlineIndex(sa.schema.Constraint):
    """An index as a line of CREATE TABLE."""

    __visit_name__ = "proletarian_sa_inline_index"

    def __init__(self, name: str, columns: list[str], *, unique: bool) -> None:
        super().__init__(name=name)
        self.columns, self.unique = columns, unique


@compiles(_InlineIndex, *MYSQL_FAMILY)
def _inline_index(index: _InlineIndex, compiler: Any, **_options: Any) -> str:
    quote = compiler.preparer.quote
    columns = ", ".join(quote(name) for name in index.columns)
    return f"{'UNIQUE ' if index.unique else ''}INDEX {quote(str(index.name))} ({columns})"


def _in_order(table: sa.Table) -> list[sa.Index]:
    return sorted(table.indexes, key=lambda index: str(index.name))


_BY_DIALECT: Final[dict[str, type[Definitions]]] = {
    "postgresql": PostgreSQLDefinitions,
    "mysql": MySQLDefinitions,
    "mariadb": MariaDBDefinitions,
    "sqlite": SQLiteDefinitions,
}
DIALECTS: Final = tuple(_BY_DIALECT)


def definitions_of(dialect: str) -> Definitions | None:
    """Return how this dialect defines tables, None if it is none of ours."""
    kind = _BY_DIALECT.get(dialect)
    return None if kind is None else kind(dialect)
