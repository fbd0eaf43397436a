"""Compare the tables in a database with what this version needs, and say how to mend each difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from proletarian_sa.ddl import tables_on
from proletarian_sa.dialects import schema_names, statements_for
from proletarian_sa.dialects.dialect_definitions import DIALECTS, definitions_of
from proletarian_sa.errors import DatabaseNotSupported, TablesForeign
from proletarian_sa.installed import (
    check_ids,
    check_visible,
    command,
    installed_version,
    is_original,
    kind_of,
    misfit,
    place_of,
    upgrade_advice,
)
from proletarian_sa.rights import explained
from proletarian_sa.versions import latest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import URL, Connection

    from proletarian_sa.dialects.definitions import Definitions
    from proletarian_sa.models import JobTables

_MEANINGLESS: Final = frozenset({"postgresql_include", "postgresql_where", "sqlite_where"})  # empty, or compared apart


@dataclass(frozen=True)
class Difference:
    """What is not as it must be, in one line, and what to type; None: the line says it."""

    what: str
    cure: str | None


@dataclass(frozen=True)
class _Live:
    """A table of ours as it is in the database."""

    connection: Connection
    definitions: Definitions
    tables: JobTables
    table: sa.Table
    place: str
    columns: dict[str, Any]
    key: Any
    indexes: dict[str, Any]
    collations: dict[str, str | None]
    wrong_engine: str | None


def differences(connection: Connection, tables: JobTables) -> list[Difference]:
    """Return how the tables in the database differ from what this version needs: nothing if they fit.

    Compared are the columns with type, length, collation and nullability, the primary key and who numbers it, the indexes, and
    the storage engine. Columns, indexes and defaults that are there beside ours are not.

    Args:
        connection: On the database.
        tables: Which tables.

    Raises:
        DatabaseNotSupported: Not PostgreSQL, MySQL, MariaDB or SQLite, or too old.
        RightsMissing: This user may not look.

    **Transaction:** reads the catalogue, in the caller's.
    """
    reason = statements_for(connection.dialect, tables).why_not(connection)
    definitions = definitions_of(connection.dialect.name)
    if reason is not None or definitions is None:
        raise DatabaseNotSupported(f"{connection.engine.url!r} cannot serve a worker: {reason}")
    found = [*_of_version(connection, tables)]
    for table in (tables.job, tables.archived_job):
        live = _look(connection, definitions, tables, table)
        if isinstance(live, _Live):
            found += _differences(live)
        else:
            found.append(live)
    return found


def report(url: URL, **names: Any) -> str:
    """Connect, compare, and return what is to be printed: nothing if the tables fit.

    Args:
        url: Of the database, for a driver that is not async.
        names: As for `tables_on`.

    Raises:
        DatabaseNotSupported: As `differences`.
        RightsMissing: Likewise.
        ValueError: A name that cannot be one, an async driver, or a SQLite file that is not there.

    **Transaction:** its own, rolled back.
    """
    dialect = url.get_dialect()
    definitions = definitions_of(dialect.name)
    if definitions is None:
        raise ValueError(f"proletarian-sa runs on {', '.join(DIALECTS[:-1])} and {DIALECTS[-1]}, not on {dialect.name!r}.")
    tables = tables_on(dialect.name, **names)
    if dialect.is_async:
        raise ValueError(f"{url.drivername!r} is an async driver: give {definitions.driver!r}.")
    if not definitions.is_there(url):
        raise ValueError(f"There is no file {url.database!r}.")
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with explained(engine, tables, "Connecting"):
        connection = engine.connect()
    with connection:
        found = differences(connection, tables)
    lines: list[str] = []
    for number, difference in enumerate(found):
        lines.append(difference.what)
        following = found[number + 1].cure if number + 1 < len(found) else None
        if difference.cure is not None and difference.cure != following:  # one statement may mend several
            command = difference.cure.startswith("proletarian-sa")
            lines.append(f"    {difference.cure}{'' if command else ';'}")
    return "\n".join(lines)


def _look(connection: Connection, definitions: Definitions, tables: JobTables, table: sa.Table) -> _Live | Difference:
    """Read what the database says of a table; return a difference if it is not there, or not ours."""
    inspector, name = sa.inspect(connection), table.name
    schema, place = schema_names.effective_schema(connection, table.schema), place_of(connection, table)
    with explained(connection.engine, tables, f"Looking at the table {place}"):
        if not inspector.has_table(name, schema=schema):
            check_visible(connection, tables, table)
            dialect = connection.dialect.name
            return Difference(
                f"{place}: there is no such table. With Alembic: {command('revision', dialect, tables)}, then alembic upgrade "
                "head. Without:",
                f"{command('ddl', dialect, tables)} | {definitions.how}",
            )
        columns = {column["name"]: column for column in inspector.get_columns(name, schema=schema)}
        # What may be NULL came later, or can: a table without the others was never one of ours.
        missing = {column.name for column in table.c} - set(columns)
        try:
            if any(not table.c[column].nullable for column in missing):
                raise misfit(connection, table, missing, columns.keys(), tables)
            check_ids(table, place, columns["job_id"]["type"], tables)
        except TablesForeign as error:
            return Difference(str(error), None)
        return _Live(
            connection,
            definitions,
            tables,
            table,
            place,
            columns,
            inspector.get_pk_constraint(name, schema=schema),
            {str(index["name"]): index for index in inspector.get_indexes(name, schema=schema)},
            definitions.collations(connection, name, schema),
            definitions.wrong_engine(inspector, name, schema),
        )


def _of_version(connection: Connection, tables: JobTables) -> Iterator[Difference]:
    """Say first what one upgrade mends."""
    try:
        version = installed_version(connection, tables)
    except TablesForeign:
        return  # told table by table
    if 0 < version < latest():
        advice = upgrade_advice(connection.dialect.name, tables, version)
        yield Difference(f"The tables have version {version}. {advice}", None)


def _differences(live: _Live) -> Iterator[Difference]:
    if is_original(live.connection, live.tables, kind_of(live.table, live.tables), live.columns.keys()):
        cure = f"{command('revision', live.connection.dialect.name, live.tables)} --adopt"
        yield Difference(f"{live.place}: the table was made by the scripts of Proletarian, the Clojure library.", cure)
        return  # which mends all of it
    for column in live.table.c:
        yield from _of_column(live, column)
    key = live.key["constrained_columns"]
    if key != ["job_id"]:
        what = f"{live.place}: the primary key is {_listed(key)}, must be (job_id)."
        yield Difference(what, live.definitions.change_key(live.table, live.key, live.columns))
    for index in sorted(live.table.indexes, key=lambda index: str(index.name)):
        yield from _of_index(live, index)
    if live.wrong_engine is not None:
        what = f"{live.place}: the storage engine is {live.wrong_engine}, must be InnoDB."
        yield Difference(what, live.definitions.use_engine(live.table))


def _of_column(live: _Live, column: sa.Column[Any]) -> Iterator[Difference]:
    definitions, there = live.definitions, live.columns
    name, stored = f"{live.place}.{column.name}", there.get(column.name)
    if stored is None:
        yield Difference(f"{name}: there is no such column.", definitions.add_column(column))
        return
    is_type, must_be_type = definitions.type(stored["type"]), definitions.type(column.type)
    if is_type != must_be_type:
        cure = definitions.change_type(column, stored["type"], there)
        yield Difference(f"{name}: the type is {is_type}, must be {must_be_type}.", cure)
    is_in, must_be_in = live.collations.get(column.name), definitions.collation(column)
    if must_be_in is not None and is_in is not None and is_in != must_be_in:
        cure = definitions.change_type(column, stored["type"], there)
        yield Difference(f"{name}: the collation is {is_in}, must be {must_be_in}.", cure)
    if stored["nullable"] != column.nullable and not column.primary_key:
        must = "NULL must be allowed" if column.nullable else "NULL must not be allowed"
        yield Difference(f"{name}: {must}.", definitions.change_null(column, there))
    numbered = live.table.autoincrement_column is column
    if numbered and not definitions.is_numbered(live.connection, live.table, stored):
        cure = definitions.number(column, live.tables.archived_job, there)
        yield Difference(f"{name}: the database does not number the rows, and must.", cure)


def _of_index(live: _Live, index: sa.Index) -> Iterator[Difference]:
    name, definitions = str(index.name), live.definitions
    stored = live.indexes.get(name)
    if stored is None:
        yield Difference(f"{live.place}: there is no index {name}.", definitions.create_index(index))
        return
    must_be = _spelled([column.name for column in index.columns], unique=bool(index.unique), where=definitions.where(index.kwargs))
    options = stored.get("dialect_options", {})
    rest = {key: value for key, value in options.items() if key not in _MEANINGLESS and value}
    rest |= {key: stored[key] for key in ("expressions", "column_sorting", "type", "include_columns") if stored.get(key)}
    if rest.get("type") == "UNIQUE":  # older SQLAlchemy says it twice
        del rest["type"]
    is_so = _spelled(stored["column_names"], unique=bool(stored["unique"]), where=definitions.where(options), rest=rest)
    if is_so != must_be:
        drop = definitions.drop_index(index, stored.get("duplicates_constraint"))
        cure = f"{drop}; {definitions.create_index(index)}"
        yield Difference(f"{live.place}: the index {name} is {is_so}, must be {must_be}.", cure)


def _spelled(columns: list[Any], *, unique: bool, where: Any, rest: dict[str, Any] | None = None) -> str:
    text = f"{'unique ' if unique else ''}{_listed(columns)}"
    if where is not None:
        text += f" where {' '.join(str(where).lower().split()).strip('()')}"
    return f"{text} with {rest}" if rest else text


def _listed(columns: list[Any]) -> str:
    return f"({', '.join(map(str, columns))})" if columns else "missing"
