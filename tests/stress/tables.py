"""Where jobs of the stress tests leave their marks; nothing here is unique, so that whatever happens twice shows."""

import re
import time
from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData()

PATIENCE = 60.0
"""Seconds."""
FULL = re.compile("Too many connections|too many clients|remaining connection")


def _table(name: str, *columns: sa.Column[object]) -> sa.Table:
    return sa.Table(name, metadata, sa.Column("number", sa.Integer, primary_key=True), *columns)


runs = _table("stress_runs", sa.Column("job_id", sa.String(36), nullable=False))
"""One row a run, committed at once by a connection that the worker knows nothing of."""

effects = _table("stress_effects", sa.Column("job_id", sa.String(36), nullable=False))
"""One row a job, written through `job.session`."""

signups = _table("stress_signups", sa.Column("jobs", sa.Integer, nullable=False))
"""One row a transaction of a producer: the business that enqueues jobs."""


def patient_engine(url: str, **options: Any) -> sa.Engine:
    """Create an engine of the application's, with the server's own isolation, that waits where a server has no room for it.

    On SQLite it waits for its turn for as long as a busy machine may need: writers there do not queue up, so some wait long. A
    transaction that turns from reader to writer is refused all the same.
    """
    if sa.make_url(url).get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": 100}
    engine = sa.create_engine(url, **options)
    sa.event.listen(engine, "do_connect", wait_for_room)
    return engine


def wait_for_room(dialect: Any, _record: object, arguments: list[Any], parameters: dict[str, Any]) -> Any:
    """Connect, again and again while others have all the connections."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return dialect.connect(*arguments, **parameters)
        except dialect.loaded_dbapi.OperationalError as error:
            if not FULL.search(str(error)) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
