"""What PostgreSQL's planner is told before our statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection

# What our statements read is known beforehand: a few rows by their keys. The planner does not know it, because its statistics,
# and the plans that an idle worker has prepared, are older than the burst of jobs that comes next: it would read all of the table,
# once for each job in hand.
BY_KEY = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
TOUCHED = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_sort", "lock_timeout")
"""What transactions of ours change, and the application's part of one must not notice."""
_REMEMBERED = "proletarian_sa_settings"  # key of Connection.info
IN_ORDER = BY_KEY | {"enable_sort": "off"}  # the claim: due jobs are read in the order of the index


def settings(values: Mapping[str, str]) -> sa.Select[Any]:
    """Return the statement that sets these until the end of the transaction.

    Args:
        values: By name; constants of ours, because they become part of the text.
    """
    # One column: a driver's work for a result grows with each.
    return sa.select(sa.literal_column(" || ".join(f"set_config('{name}', '{value}', true)" for name, value in values.items())))


_BEFORE = sa.select(*(sa.func.current_setting(name).label(name) for name in TOUCHED))
_LEND = sa.select(*(sa.func.set_config(name, sa.bindparam(name), True) for name in TOUCHED))


def remember(connection: Connection) -> None:
    """Ask what the application has set on a new connection of ours, for `lend`.

    **Transaction:** none is left open.
    """
    if _REMEMBERED not in connection.info:
        connection.info[_REMEMBERED] = dict(connection.execute(_BEFORE).mappings().one())
        connection.rollback()


def lend(connection: Connection) -> None:
    """Set what the application has set, until the end of the transaction or until its savepoint is rolled back."""
    connection.execute(_LEND, connection.info[_REMEMBERED])
