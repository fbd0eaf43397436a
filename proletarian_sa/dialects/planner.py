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


_SETTLED = "proletarian_sa_settled"  # likewise: our settings are those of the session
_BEFORE = sa.select(*(sa.func.current_setting(name).label(name) for name in TOUCHED))
_LEND = sa.select(*(sa.func.set_config(name, sa.bindparam(name), True) for name in TOUCHED))


def remember(connection: Connection) -> None:
    """Ask what the application has set on a new connection of ours, for `lend`.

    **Transaction:** none is left open.
    """
    if _REMEMBERED not in connection.info:
        connection.info[_REMEMBERED] = dict(connection.execute(_BEFORE).mappings().one())
        connection.rollback()


def is_direct(connection: Connection) -> bool:
    """Return whether no pooler stands before the server: what is set for this session is then not met by another client.

    The number of the session is told twice: when it begins, which a pooler answers itself, and by the server when it is asked.

    **Transaction:** none is left open.
    """
    driver: Any = connection.connection.driver_connection
    told = getattr(getattr(driver, "info", None), "backend_pid", None)  # psycopg and psycopg2
    if told is None:
        return False
    asked = connection.execute(sa.select(sa.func.pg_backend_pid())).scalar()
    connection.rollback()
    return bool(told == asked)


def settle(connection: Connection, values: Mapping[str, str]) -> dict[str, str]:
    """Set these for the session, and return what they were before.

    **Transaction:** commits.
    """
    names = list(values)
    before = dict(zip(names, connection.execute(sa.select(*map(sa.func.current_setting, names))).one(), strict=True))
    connection.execute(_set_session(values))
    connection.commit()
    connection.info[_SETTLED] = True
    return before


def unsettle(connection: Connection, before: Mapping[str, str]) -> None:
    """Set what `settle` has returned.

    **Transaction:** commits.
    """
    connection.info.pop(_SETTLED, None)
    connection.execute(_set_session(before))
    connection.commit()


def is_settled(connection: Connection) -> bool:
    """Return whether the session has our settings."""
    return _SETTLED in connection.info


def _set_session(values: Mapping[str, str]) -> sa.Select[Any]:
    return sa.select(*(sa.func.set_config(name, value, False) for name, value in values.items()))


def lend(connection: Connection) -> None:
    """Set what the application has set, until the end of the transaction or until its savepoint is rolled back."""
    connection.execute(_LEND, connection.info[_REMEMBERED])
