"""Which tables a database has: ours, of which version, or somebody else's; and what to type about it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

import sqlalchemy as sa

from proletarian_sa.dialects import schema_names, statements_for
from proletarian_sa.dialects.roles import roles_of
from proletarian_sa.errors import ProletarianError, RightsMissing, TablesForeign, TablesMissing
from proletarian_sa.job_ids import DatabaseIds, python_type
from proletarian_sa.models import DEFAULT_SCHEMA, JobTables
from proletarian_sa.names import index_name
from proletarian_sa.rights import explained, refusal
from proletarian_sa.version import __version__
from proletarian_sa.versions import ORIGINAL, VERSIONS, latest

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from sqlalchemy.engine import Connection

FIRST: Final = VERSIONS[1]
_current: Final[WeakKeyDictionary[Any, WeakSet[JobTables]]] = WeakKeyDictionary()  # by pool


def installed_version(connection: Connection, tables: JobTables) -> int:
    """Return which version of the tables a database has, read from their structure; 0: there are not both of them.

    A version of which something is missing counts as the one before: what makes it can be run again. Of the first only the columns
    count: what else is missing is for `proletarian-sa check`. A later one than this release knows counts as the last that it knows.

    Raises:
        TablesForeign: A table of that name is there and is not ours.
        RightsMissing: This user may not look.

    **Transaction:** reads the catalogue, in the caller's.
    """
    inspector = sa.inspect(connection)
    columns: dict[str, set[str]] = {}
    indexes: dict[str, set[str]] = {}
    for kind, table in kinds(tables).items():
        schema = schema_names.effective_schema(connection, table.schema)
        with explained(connection.engine, tables, f"Looking at the table {place_of(connection, table)}"):
            if not inspector.has_table(table.name, schema=schema):
                continue
            columns[kind] = {column["name"] for column in inspector.get_columns(table.name, schema=schema)}
            indexes[kind] = {str(index["name"]) for index in inspector.get_indexes(table.name, schema=schema)}
        if missing := FIRST.columns[kind] - columns[kind]:
            raise misfit(connection, table, missing, columns[kind], tables)
    if len(columns) < len(kinds(tables)):
        return 0
    version = 1
    while version < latest() and _has(VERSIONS[version + 1], tables, columns, indexes):
        version += 1
    return version


def check_version_once(connection: Connection, tables: JobTables) -> None:
    """Raise if the database has an older version of the tables; once it has the last, it is not asked again.

    Raises:
        TablesMissing: It has.

    **Transaction:** as `installed_version`.
    """
    known = _current.setdefault(connection.engine.pool, WeakSet())
    if latest() == 1 or tables in known:
        return
    version = installed_version(connection, tables)
    if 0 < version < latest():
        raise outdated(connection, tables, version)
    if version:
        known.add(tables)


def _has(version: Any, tables: JobTables, columns: dict[str, set[str]], indexes: dict[str, set[str]]) -> bool:
    names = {kind: table.name for kind, table in kinds(tables).items()}
    return all(needed <= columns[kind] for kind, needed in version.columns.items()) and all(
        index_name(names[kind], suffix) in indexes[kind] for kind, suffixes in version.indexes.items() for suffix in suffixes
    )


def kinds(tables: JobTables) -> dict[str, sa.Table]:
    """Return the two tables by what they are, whatever they are called."""
    return {"job": tables.job, "archived_job": tables.archived_job}


def kind_of(table: sa.Table, tables: JobTables) -> str:
    """Return what one of the two tables is: `job` or `archived_job`."""
    return next(kind for kind, ours in kinds(tables).items() if ours is table)


def place_of(connection: Connection, table: sa.Table) -> str:
    """Return a table's name in this database, with its schema, for people."""
    schema = schema_names.effective_schema(connection, table.schema)
    return f"{schema}.{table.name}" if schema else table.name


def misfit(
    connection: Connection, table: sa.Table, missing: AbstractSet[str], there: AbstractSet[str], tables: JobTables
) -> ProletarianError:
    """Return the error about a table that lacks columns: it is the original's, an older one of ours, or somebody else's."""
    kind = kind_of(table, tables)
    later = {name for version in VERSIONS.values() for name in version.columns.get(kind, ())}
    what = f"The table {place_of(connection, table)} in {connection.engine.url!r}"
    lacks = f"it has no column {', '.join(sorted(missing))}"
    if there >= FIRST.columns[kind] and missing <= later:
        return outdated(connection, tables, max(1, installed_version(connection, tables)))
    if is_original(connection, tables, kind, there):
        return TablesForeign(
            f"{what} was made by the scripts of Proletarian, the Clojure library: {lacks}. To take both over: "
            f"{command('revision', connection.dialect.name, tables)} --adopt, then alembic upgrade head. Or leave them alone. "
            f"{_renaming(tables)}"
        )
    return TablesForeign(f"{what} is not a table of proletarian-sa: {lacks}. {_renaming(tables)}")


def is_original(connection: Connection, tables: JobTables, kind: str, there: AbstractSet[str]) -> bool:
    """Return whether a table of these columns is the original's, which cannot do without row locks, and not taken over yet."""
    row_locks = statements_for(connection.dialect, tables).row_locks
    return row_locks and there & FIRST.columns[kind] == ORIGINAL.columns[kind]


def outdated(connection: Connection, tables: JobTables, version: int) -> TablesMissing:
    """Return the error about tables of a version before the last."""
    return TablesMissing(
        f"The tables {tables.job.name} and {tables.archived_job.name} in {connection.engine.url!r} have version {version}. "
        f"{upgrade_advice(connection.dialect.name, tables, version)}"
    )


def upgrade_advice(dialect: str, tables: JobTables, version: int) -> str:
    """Return what to type about tables of a version before the last."""
    ddl = f"{command('ddl', dialect, tables)} --from {version} --to {latest()}"
    return (
        f"proletarian-sa {__version__} needs version {latest()}. With Alembic: {command('revision', dialect, tables)}, "
        f"then alembic upgrade head. Without: {ddl}"
    )


def command(name: str, dialect: str, tables: JobTables) -> str:
    """Return a command of ours with the options that say which tables."""
    words = ["proletarian-sa", name]
    schema = tables.job.schema
    if name == "ddl":
        words += ["--dialect", dialect]
    if schema not in {DEFAULT_SCHEMA, schema_names.schema_on(dialect, DEFAULT_SCHEMA)}:
        words += ["--schema", schema or ""]
    for option, given, default in (
        ("--job-table", tables.job.name, "job"),
        ("--archived-job-table", tables.archived_job.name, "archived_job"),
        ("--job-ids", "database" if isinstance(tables.job_ids, DatabaseIds) else "uuid", "uuid"),
    ):
        words += [option, given] if given != default else []
    return shlex.join(words)


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
