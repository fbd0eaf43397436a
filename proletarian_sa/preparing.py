"""Look at the database before a worker starts, or wait until it can be served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import exc

from proletarian_sa.backoff import backoff
from proletarian_sa.errors import TablesMissing
from proletarian_sa.held_check import check_held
from proletarian_sa.install import check_tables
from proletarian_sa.own_connection import past_stale
from proletarian_sa.rights import check_rights, explained
from proletarian_sa.runtime import Runtime, prepare
from proletarian_sa.trouble import Trouble

if TYPE_CHECKING:
    import threading

WAITING_FOR_TABLES: Final = "waiting for the tables"


def prepare_in_time(runtime: Runtime, *, wait_for_tables: bool, stop_asked: threading.Event) -> Runtime | None:
    """Return what runs the worker; None if a stop came while it waited for the tables.

    **Transaction:** reads the catalogue, and tries what a worker does, on no row of the application's.
    """
    trouble = Trouble(runtime.emit, runtime.worker_id, WAITING_FOR_TABLES, runtime.vigil)
    while True:
        try:
            prepared = past_stale(lambda: _prepare(runtime), runtime.engine)
        except (TablesMissing, exc.DBAPIError) as missing:
            is_missing = isinstance(missing, TablesMissing) or runtime.statements.is_missing_table(missing)
            if not wait_for_tables or not is_missing:
                raise
            if stop_asked.wait(trouble.met(missing, backoff)):
                return None
        else:
            trouble.over()
            return prepared


def _prepare(runtime: Runtime) -> Runtime:
    with explained(runtime.engine, runtime.tables, "Connecting"):
        prepared = prepare(runtime)
    check_tables(runtime.engine, tables=prepared.tables)  # on a standby too, which refuses the transactions of ours
    check_rights(prepared.engine, tables=prepared.tables)
    if prepared.claim == "held":
        with explained(prepared.engine, prepared.tables, "Trying a held claim on a row of its own"):
            check_held(prepared)
    return prepared
