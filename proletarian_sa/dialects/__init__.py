"""The databases: which statements serve which dialect. The only place that asks for a dialect's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proletarian_sa.dialects import schema_names, storage
from proletarian_sa.dialects.base import Archived, NotNew, Statements
from proletarian_sa.dialects.bulk import NewRow, RowWriter, made_id
from proletarian_sa.dialects.drivers import check_driver
from proletarian_sa.dialects.mysql import MySQLStatements
from proletarian_sa.dialects.postgresql import PostgreSQLStatements
from proletarian_sa.dialects.sqlite import SQLiteStatements
from proletarian_sa.errors import DatabaseNotSupported

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

    from proletarian_sa.models import JobTables

__all__ = ["Archived", "NewRow", "NotNew", "RowWriter", "Statements", "made_id", "statements_for"]

_BY_DIALECT: Final[dict[str, type[Statements]]] = {
    "postgresql": PostgreSQLStatements,
    "mysql": MySQLStatements,
    "mariadb": MySQLStatements,
    "sqlite": SQLiteStatements,
}

schema_names.install()
storage.install()


def statements_for(dialect: Dialect, tables: JobTables) -> Statements:
    """Return the statements of these tables on this dialect, built at the first call.

    Raises:
        DatabaseNotSupported: There are none for this dialect, or its driver is broken.
    """
    kind = _BY_DIALECT.get(dialect.name)
    if kind is None:
        raise DatabaseNotSupported(
            f"proletarian-sa runs on PostgreSQL, MySQL, MariaDB and SQLite, not on {dialect.name!r}. Give a Session or engine of "
            "one of those."
        )
    check_driver(dialect)
    statements = tables.built.get(kind)
    if not isinstance(statements, Statements):
        statements = tables.built[kind] = kind(tables)
    return statements
