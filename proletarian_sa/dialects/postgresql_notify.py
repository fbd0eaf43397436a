"""PostgreSQL's LISTEN and NOTIFY: sent through any driver, heard through psycopg."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from proletarian_sa.dialects import psycopg_beside
from proletarian_sa.dialects.planner import IN_ORDER, is_settled, settings
from proletarian_sa.moments import LATEST, moment
from proletarian_sa.types import UTCDateTime, current_time, statement_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection, Engine

CHANNEL: Final = "proletarian_sa"
"""One for each database, whatever its tables are called: those who read them through a `schema_translate_map` hear of them, too."""


class PostgreSQLNotifications:
    """A notification names a queue by its topic, and holds no job data: 32 bytes of the 8000 that may be."""

    def __init__(self, job: sa.Table) -> None:
        columns = job.c
        of_queue = columns.queue == sa.bindparam("of_queue")
        # After an empty claim, due jobs are in hand, or locked: few. A lease is over at its time, a lock at any.
        free = sa.func.coalesce(columns.lease_until, columns.process_at)
        latest = sa.literal(moment(LATEST), UTCDateTime())  # somebody may have put a job off to `infinity`, which no driver reads
        taken = sa.select(sa.func.min(free)).where(of_queue, columns.process_at <= statement_time(), free <= latest)
        next_taken = taken.scalar_subquery()
        later = sa.select(columns.process_at).where(of_queue, columns.process_at > statement_time(), columns.process_at <= latest)
        next_due = later.order_by(columns.process_at).limit(1).scalar_subquery()
        self._next = sa.select(
            sa.type_coerce(sa.func.least(next_taken, next_due), UTCDateTime()), sa.type_coerce(current_time(), UTCDateTime())
        )
        self._plan_in_order = settings(IN_ORDER)

    def send(self, connection: Connection, topic: str) -> None:
        """Send a topic with the commit. The command, not `pg_notify`: nobody can be denied that."""
        connection.exec_driver_sql(f"NOTIFY {CHANNEL}, '{topic}'")

    def why_deaf(self, engine: Engine) -> str | None:
        """Return why nothing can be heard through the driver of this engine."""
        if engine.dialect.is_async:
            return psycopg_beside.why_not(engine)
        if engine.dialect.driver != psycopg_beside.DRIVER:
            return (
                f"{engine.dialect.driver} is not used to listen. Give the worker an engine with psycopg: "
                f"create_engine('postgresql+{psycopg_beside.DRIVER}://…')"
            )
        return psycopg_beside.too_old(getattr(engine.dialect, "psycopg_version", psycopg_beside.OLDEST))

    def listen(self, engine: Engine) -> PsycopgEar:
        """Take a connection out of the pool, or beside an engine for asyncio make one, and hear on it what is sent from now on."""
        if engine.dialect.is_async:
            return PsycopgEar(psycopg_beside.connect(engine))
        pooled = engine.raw_connection()
        driver = pooled.driver_connection
        pooled.detach()
        return PsycopgEar(driver)

    def until_next(self, connection: Connection, queues: Sequence[str]) -> float | None:
        """Return in how many seconds the next job can be taken, by the database's clock."""
        if not is_settled(connection):
            connection.execute(self._plan_in_order)
        found = [connection.execute(self._next, {"of_queue": queue}).one() for queue in queues]
        return min(((due - now).total_seconds() for due, now in found if due is not None), default=None)


class PsycopgEar:
    """A connection of psycopg's that listens, in autocommit: it is never in a transaction."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        try:
            driver.rollback()  # what a `connect` hook of the application's may have begun
            driver.autocommit = True
            driver.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            driver.close()
            raise

    def fileno(self) -> int:
        """Return the socket."""
        return int(self._driver.fileno())

    def heard(self) -> set[str]:
        """Return the topics that have come since."""
        return {notification.payload for notification in self._driver.notifies(timeout=0)}

    def check(self) -> None:
        """Make sure that the connection lives."""
        self._driver.execute("SELECT 1")

    def close(self) -> None:
        """Close the connection."""
        self._driver.close()
