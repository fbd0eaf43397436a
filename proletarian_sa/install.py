"""Create, drop and check the tables without a migration tool."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.schema import CreateSchema

from proletarian_sa.dialects import schema_names, statements_for
from proletarian_sa.dialects.roles import roles_of
from proletarian_sa.errors import RightsMissing, TablesForeign, TablesMissing
from proletarian_sa.job_ids import python_type
from proletarian_sa.models import JobTables, check_job_tables, default_tables
from proletarian_sa.rights import explained, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator


def create_all(bind: Engine | Connection, *, tables: JobTables = default_tables) -> None:
    """Create the schema, the two tables and their indexes, each unless it is there.

    Args:
        bind: An engine, or a connection, of which the transaction stays the caller's.
        tables: Which pair of tables; the default one if not given.

    Raises:
        TablesForeign: A table of that name is there and is not ours.
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
        _check(connection, tables, must_exist=False)
        tables.job.metadata.drop_all(connection, tables=[tables.job, tables.archived_job])


def check_tables(bind: Engine | Connection, *, tables: JobTables = default_tables) -> None:
    """Raise unless the two tables are there with all columns that this version needs.

    Args:
        bind: An engine or a connection.
        tables: Which pair of tables; the default one if not given.

    Raises:
        TablesMissing: A table is not there.
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


def _check(connection: Connection, tables: JobTables, *, must_exist: bool) -> None:
    inspector = sa.inspect(connection)
    for table in (tables.job, tables.archived_job):
        schema = schema_names.effective_schema(connection, table.schema)
        place = f"{schema}.{table.name}" if schema else table.name
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
        with explained(connection.engine, tables, f"Looking at the table {place}"):
            columns = {column["name"]: column["type"] for column in inspector.get_columns(table.name, schema=schema)}
        missing = {column.name for column in table.c} - set(columns)
        if missing:
            raise TablesForeign(not_ours(connection, place, missing, tables))
        check_ids(table, place, columns["job_id"], tables)


def not_ours(connection: Connection, place: str, missing: set[str], tables: JobTables) -> str:
    """Return the message about a table that lacks columns of ours."""
    return (
        f"The table {place} in {connection.engine.url!r} is not a table of proletarian-sa: it has no column "
        f"{', '.join(sorted(missing))}. {_renaming(tables)}"
    )


def _renaming(tables: JobTables) -> str:
    if tables.Job.__module__ != JobTables.__module__:
        return f"Rename ours, or add the column: {tables.Job.__name__}.__tablename__ = 'queue_job', or another __job_schema__."
    return (
        "Rename ours: tables = JobTables(job_table='queue_job', archived_job_table='queue_archived_job'), and pass tables=tables "
        "to enqueue and to the worker."
    )


def check_ids(table: sa.Table, place: str, stored: sa.types.TypeEngine[Any], tables: JobTables) -> None:
    """Raise if the ids in the database are numbers and those of the model are not, or the reverse."""
    kind = python_type(table.c.job_id.type)
    if kind is not None and (kind is int) != (python_type(stored) is int):
        raise TablesForeign(
            f"The ids in the table {place} are {stored!r}, but {type(tables.job_ids).__name__} needs a column of {kind.__name__}. "
            "Give the JobTables(job_ids=…) with which the table was created, or other names."
        )


def check_visible(connection: Connection, tables: JobTables, table: sa.Table) -> None:
    """Raise if the table is there, but in a schema that this user may not use."""
    roles = roles_of(connection.dialect.name)
    closed = None if roles is None else roles.closed_schema(connection, table.name)
    if closed is not None:
        what = f"The table {table.name} is in the schema {closed}, on which it has no USAGE"
        raise RightsMissing(refusal(connection.engine.url, connection.dialect.name, tables, what))
