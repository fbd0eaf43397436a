"""How PostgreSQL stores the table of queued jobs: with room in each page for what claims make of its rows.

A claim writes another version of a row. Where that finds room in the same page no index is touched; else each index gets another
entry, over which later claims have to step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement

from proletarian_sa.models import FALLS_AWAY

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

STORAGE: Final = "fillfactor = 35"
_OWN: Final = "postgresql_with"
"""Option by which the application says itself how its table is stored."""


class SetStorage(ExecutableDDLElement):
    """Set it for a table that has just been made: SQLAlchemy 2.0 has no option for the statement that makes it."""


@compiles(SetStorage)
def _set_storage(element: SetStorage, compiler: Any, **_options: Any) -> str:
    return f"ALTER TABLE {compiler.preparer.format_table(element.target)} SET ({STORAGE})"


def install() -> None:
    """Listen to every table that is made by this process."""
    event.listen(sa.Table, "after_create", _after_create)


def is_claimed_from(table: sa.Table) -> bool:
    """Return whether this is a table of queued jobs, of which alone the rows are changed."""
    return FALLS_AWAY in table.info and "lease_until" in table.c


def _after_create(table: sa.Table, connection: Connection, **_options: Any) -> None:
    if connection.dialect.name == "postgresql" and is_claimed_from(table) and not table.kwargs.get(_OWN):
        connection.execute(SetStorage().against(table))
