"""Whether the database lets us: what a worker needs is tried at its start, and a refusal is explained."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import exc

from proletarian_sa.dialects import schema_names, statements_for
from proletarian_sa.dialects.roles import JOB_RIGHTS, roles_of
from proletarian_sa.errors import RightsMissing
from proletarian_sa.models import DEFAULT_SCHEMA, JobTables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import URL, Engine


def check_rights(engine: Engine, *, tables: JobTables) -> None:
    """Raise unless this user may do what a worker does with the tables.

    Each right is tried with a statement that touches no row: it is the server that judges, roles within roles, rights on columns
    and all. INSERT on the queued jobs is not asked for: a worker whose handlers enqueue nothing does without.

    Raises:
        RightsMissing: The server refuses one of them; the message says which, and what to type.

    **Transaction:** its own, rolled back. Locks no row.
    """
    roles = roles_of(engine.dialect.name)
    if roles is None:
        return
    statements = statements_for(engine.dialect, tables)
    try:
        with engine.connect() as connection, roles.impatient(connection):
            for table, rights in ((tables.job, JOB_RIGHTS), (tables.archived_job, roles.archive_rights)):
                for right in rights:
                    if table is tables.job and right == "INSERT":
                        continue
                    with explained(engine, tables, f"{right} on the table {table.name}"):
                        connection.execute(_try(right, table))
    except exc.DBAPIError as error:
        if error.connection_invalidated or not statements.is_transient(error):
            raise
        # It is read-only for now, or the tables are being altered: the worker waits for that to end.


@contextmanager
def explained(engine: Engine, tables: JobTables, what: str) -> Iterator[None]:
    """Turn the server's refusal for want of a right into `RightsMissing`; to other errors say what to do, where that is known."""
    try:
        yield
    except exc.DBAPIError as error:
        roles = roles_of(engine.dialect.name)
        if roles is None or not roles.is_denied(error):
            advice = statements_for(engine.dialect, tables).advice(error)
            if advice is not None:
                error.add_note(advice)
            raise
        reason = (str(error.orig).strip() or type(error.orig).__name__).splitlines()[0]
        raise RightsMissing(refusal(engine.url, engine.dialect.name, tables, f"{what}: {reason}")) from error


def refusal(url: URL, dialect: str, tables: JobTables, what: str) -> str:
    """Return the message about a right that is missing."""
    command = grants_command(url, dialect, tables)
    return (
        f"The user of {url!r} lacks a right. {what.rstrip('.')}. To give the rights of a worker, an administrator runs what this "
        f"prints: {command}. An application that only enqueues gets fewer: --enqueue-role in place of --role."
    )


def grants_command(url: URL, dialect: str, tables: JobTables) -> str:
    """Return the command that prints the rights of a worker on these tables."""
    job, roles = tables.job, roles_of(dialect)
    words = ["proletarian-sa", "grants", "--dialect", dialect]
    if job.schema != DEFAULT_SCHEMA:
        words += ["--schema", job.schema or ""]
    for option, name, default in (
        ("--job-table", job.name, "job"),
        ("--archived-job-table", tables.archived_job.name, "archived_job"),
    ):
        words += [option, name] if name != default else []
    if roles is not None and roles.schemas_are_databases and url.database and not schema_names.schema_on(dialect, job.schema):
        words += ["--database", url.database]
    return shlex.join([*words, "--role", url.username or "NAME"])


def _try(right: str, table: sa.Table) -> sa.Executable:
    """Return a statement that needs the right and touches no row."""
    # Equal to NULL is nothing; and where safe updates are on, MariaDB wants a key in the condition, though that be false.
    no_row = table.c.job_id.op("=", is_comparison=True)(sa.null())
    if right == "INSERT":
        columns = [column for column in table.c if column.computed is None and column.identity is None]
        return sa.insert(table).from_select(columns, sa.select(*columns).where(no_row))
    if right == "UPDATE":
        return sa.update(table).where(no_row).values(claimed_by=table.c.claimed_by)
    if right == "DELETE":
        return sa.delete(table).where(no_row)
    return sa.select(table.c.job_id, table.c.payload, table.c.claimed_by).where(no_row)
