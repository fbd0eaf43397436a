"""Create, drop and check the tables without a migration tool."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.schema import CreateSchema

from proletarian_sa.dialects import schema_names, statements_for
from proletarian_sa.errors import TablesMissing
from proletarian_sa.installed import check_ids, check_visible, installed_version, kinds, misfit, outdated, place_of
from proletarian_sa.models import JobTables, check_job_tables, default_tables
from proletarian_sa.rights import explained
from proletarian_sa.versions import latest

if TYPE_CHECKING:
    from collections.abc import Iterator


def create_all(bind: Engine | Connection, *, tables: JobTables = default_tables) -> None:
    """Create the schema, the two tables and their indexes, each unless it is there.

    Args:
        bind: An engine, or a connection, of which the transaction stays the caller's.
        tables: Which pair of tables; the default one if not given.

    Raises:
        TablesForeign: A table of that name is there and is not ours.
        TablesMissing: The tables are there, in an older version: they are to be upgraded.
        DatabaseNotSupported: Not PostgreSQL, MySQL, MariaDB or SQLite.

    **Transaction:** on an engine, one of its own, committed; on a connection, the caller's. MySQL and MariaDB commit at every
    DDL statement.
    """
    with _connection(bind, tables) as connection:
        statements_for(connection.dialect, tables)
        _check(connection, tables, must_exist=False)
        schema = schema_names.effective_schema(connection, tables.job.schema)
        if schema is not None and not sa.inspect(connection).has_schema(schema):
            connection.execute(CreateSchema(schema, if_not_exists=True))
        metadata_tables = [tables.job, tables.archived_job]
        tables.job.metadata.create_all(connection, tables=metadata_tables)


def drop_all(bind: Engine | Connection, *, tables: JobTables = default_tables) -> None:
    """Drop the two tables with all their jobs. The schema stays: there may be other things in it.

    Args:
        bind: An engine, or a connection, of which the transaction stays the caller's.
        tables: Which pair of tables; the default one if not given.

    Raises:
        TablesForeign: A table of that name is there and is not ours.

    **Transaction:** as `create_all`.
    """
    with _connection(bind, tables) as connection:
        _check(connection, tables, must_exist=False, any_version=True)
        tables.job.metadata.drop_all(connection, tables=[tables.job, tables.archived_job])


def check_tables(bind: Engine | Connection, *, tables: JobTables = default_tables) -> None:
    """Raise unless the two tables are there with all columns that this version needs.

    Args:
        bind: An engine or a connection.
        tables: Which pair of tables; the default one if not given.

    Raises:
        TablesMissing: A table is not there, or both are of an older version.
        TablesForeign: A table of that name is there and is not ours.
        RightsMissing: This user may not look whether a table is there. On MySQL and MariaDB that takes a right on each table.

    **Transaction:** reads the catalogue; on an engine, rolled back.
    """
    with _connection(bind, tables) as connection:
        statements_for(connection.dialect, tables)
        _check(connection, tables, must_exist=True)


@contextmanager
def _connection(bind: Engine | Connection, tables: JobTables) -> Iterator[Connection]:
    check_job_tables(tables)
    if isinstance(bind, Connection):
        yield bind
    elif isinstance(bind, Engine):
        with explained(bind, tables, "Connecting"):
            connection = bind.connect()
        with connection, connection.begin():
            yield connection
    else:
        raise TypeError(f"Give an Engine or a Connection, not {type(bind).__name__}: create_all(engine).")


def _check(connection: Connection, tables: JobTables, *, must_exist: bool, any_version: bool = False) -> None:
    inspector = sa.inspect(connection)
    found = 0
    for table in kinds(tables).values():
        schema, place = schema_names.effective_schema(connection, table.schema), place_of(connection, table)
        with explained(connection.engine, tables, f"Looking for the table {place}"):
            there = inspector.has_table(table.name, schema=schema)
        if not there:
            if must_exist:
                check_visible(connection, tables, table)
                raise TablesMissing(
                    f"There is no table {place} in {connection.engine.url!r}. Create the tables once. "
                    "With Alembic: proletarian-sa revision, then alembic upgrade head. Without: proletarian_sa.create_all(engine)."
                )
            continue
        found += 1
        with explained(connection.engine, tables, f"Looking at the table {place}"):
            columns = {column["name"]: column["type"] for column in inspector.get_columns(table.name, schema=schema)}
        missing = {column.name for column in table.c} - set(columns)
        if missing:
            error = misfit(connection, table, missing, columns.keys(), tables)
            if not (any_version and isinstance(error, TablesMissing)):
                raise error
        check_ids(table, place, columns["job_id"], tables)
    if found == len(kinds(tables)) and latest() > 1 and not any_version:
        version = installed_version(connection, tables)
        if version < latest():
            raise outdated(connection, tables, version)
