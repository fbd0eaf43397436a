"""Print the SQL between two versions of the tables, for the database's own client, by running a revision's body offline."""

from __future__ import annotations

import io
from typing import Any

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.util import CommandError
from sqlalchemy.dialects import mysql

from alembic_ext.proletarian_sa.body import Names, body
from proletarian_sa.dialects.dialect_definitions import DIALECTS, definitions_of
from proletarian_sa.errors import DatabaseNotSupported
from proletarian_sa.version import __version__


def statements(dialect: str, names: Names, start: int, end: int) -> str:
    """Return the SQL that leads from one version of the tables to another, up or down. Nothing is connected.

    Args:
        dialect: `postgresql`, `mysql`, `mariadb` or `sqlite`.
        names: Which tables.
        start: The version that is there; 0: none.
        end: The version that is wanted; 0: none, which loses all jobs.

    Raises:
        DatabaseNotSupported: An unknown dialect.
        ValueError: There is no such version, or nothing between the two.

    **Transaction:** nothing; on PostgreSQL the text is one.
    """
    definitions = definitions_of(dialect)
    if definitions is None:
        raise DatabaseNotSupported(f"There is no DDL for {dialect!r}. Give --dialect {', '.join(DIALECTS[:-1])} or {DIALECTS[-1]}.")
    text = body(names, start, end)
    buffer = io.StringIO()
    kind: Any = sa.make_url(f"{dialect}://").get_dialect()
    # With the drivers' own parameter styles a percent sign would be doubled.
    context = MigrationContext.configure(dialect=kind(paramstyle="named"), opts={"as_sql": True, "output_buffer": buffer})
    with context.begin_transaction():
        exec(text, {"op": Operations(context), "sa": sa, "mysql": mysql, "CommandError": CommandError})  # noqa: S102 - the text is ours, with names as literals
    head = (
        f"-- Changes the tables of proletarian-sa {__version__} on {definitions.title} from version {start} to version {end}. "
        f"To be run by: {definitions.how}\n"
    )
    if end < start:
        head += "-- What later versions have added is lost.\n" if end else "-- All jobs are lost.\n"
    return f"{head}\n{buffer.getvalue().strip()}\n"
