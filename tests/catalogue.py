"""What a database says of our tables, to be compared."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine

from proletarian_sa import JobTables
from proletarian_sa.dialects import schema_names


def options_of(index: Any) -> dict[str, str]:
    """Return an index's options of its dialect, comparable."""
    return {key: str(value) for key, value in index.get("dialect_options", {}).items()}


def _has_autoincrement(connection: sa.Connection, table: str) -> bool:
    """Return whether SQLite keeps account of the greatest number that it has given."""
    if connection.dialect.name != "sqlite":
        return False
    return "AUTOINCREMENT" in connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).scalar_one()


def storage(connection: sa.Connection, name: str, schema: str | None) -> list[str]:
    """Return the storage parameters of a table, where a database has them for each."""
    if connection.dialect.name != "postgresql":
        return []
    query = sa.text(
        "SELECT unnest(reloptions) FROM pg_class WHERE relname = :name"
        " AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = coalesce(:schema, current_schema())) ORDER BY 1"
    )
    return list(connection.scalars(query, {"name": name, "schema": schema}))


def catalogue(engine: Engine, tables: JobTables) -> dict[str, Any]:
    """Return what the database says of the two tables."""
    found: dict[str, Any] = {}
    with engine.connect() as connection:
        inspector = sa.inspect(connection)
        mysql_family = connection.dialect.name in ("mysql", "mariadb")  # older SQLAlchemy knows no table options elsewhere
        for table in (tables.job, tables.archived_job):
            schema = schema_names.effective_schema(connection, table.schema)
            found[table.name] = {
                "columns": [
                    (
                        column["name"],
                        repr(column["type"]),
                        column["nullable"],
                        column["default"],
                        column.get("autoincrement"),
                        column.get("identity"),
                    )
                    for column in inspector.get_columns(table.name, schema)
                ],
                "never again": _has_autoincrement(connection, table.name),
                "key": inspector.get_pk_constraint(table.name, schema)["constrained_columns"],
                "indexes": [
                    (
                        index["name"],
                        index["column_names"],
                        index["unique"],
                        options_of(index),
                    )
                    for index in sorted(inspector.get_indexes(table.name, schema), key=lambda one: str(one["name"]))
                ],
                "storage": storage(connection, table.name, schema),
                "options": inspector.get_table_options(table.name, schema) if mysql_family else {},
            }
    return found
