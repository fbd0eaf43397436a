"""How much a database really reads for what a connection asks of it."""

from collections.abc import Callable

import sqlalchemy as sa

_INSTRUCTIONS = 10


def effort_of(connection: sa.Connection, action: Callable[[], object]) -> int:
    """Return how many rows the database reads during the action; on SQLite, how many tens of instructions it executes.

    A scan of n rows is at least n.

    **Transaction:** the connection's, left open.
    """
    if connection.dialect.name == "sqlite":
        return _instructions(connection, action)
    before = _rows_read(connection)
    action()
    return _rows_read(connection) - before


def _rows_read(connection: sa.Connection) -> int:
    if connection.dialect.name == "postgresql":
        # the counters also hold what earlier transactions have not reported yet, hence the difference
        columns = "coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)"
        return int(connection.exec_driver_sql(f"SELECT sum({columns}) FROM pg_stat_xact_user_tables").scalar() or 0)
    rows = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'").all()
    return sum(int(value) for _, value in rows)


def _instructions(connection: sa.Connection, action: Callable[[], object]) -> int:
    count = 0

    def progress() -> int:
        nonlocal count
        count += 1
        return 0

    raw = connection.connection.driver_connection
    assert raw is not None
    raw.set_progress_handler(progress, _INSTRUCTIONS)
    try:
        action()
    finally:
        raw.set_progress_handler(None, 0)
    return count
