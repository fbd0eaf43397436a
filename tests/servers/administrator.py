"""Create and drop databases on a server, over one connection that is kept."""

from contextlib import suppress

import sqlalchemy as sa

from tests.servers.server import Server
from tests.servers.sessions import sessions

PATIENCE = 60
"""Seconds that dropping may wait for a lock; MySQL's default is a year."""


class Administrator:
    """The one who makes a server's databases."""

    def __init__(self, server: Server) -> None:
        self.url = sa.make_url(server.url)
        self.engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT", pool_size=1)
        self.is_postgresql = self.engine.dialect.name == "postgresql"
        self._can_prepare: bool | None = None

    def create_database(self, name: str) -> None:
        """Create an empty database with the server's own defaults, in Unicode."""
        charset = "TEMPLATE template0 ENCODING 'UTF8'" if self.is_postgresql else "CHARACTER SET utf8mb4"
        self.execute(f"CREATE DATABASE {name} {charset}")

    def drop_database(self, name: str) -> None:
        """Drop a database and end the connections that are left in it."""
        if self.is_postgresql:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")
            return
        left = [session.number for session in sessions(self.url) if session.database == name]
        with self.engine.connect() as connection:
            for number in left:
                # KILL fails for a session that has just ended by itself
                with suppress(sa.exc.OperationalError, sa.exc.InternalError):
                    connection.exec_driver_sql(f"KILL {number}")
            connection.exec_driver_sql(f"SET lock_wait_timeout = {PATIENCE}")
            connection.execute(sa.schema.DropSchema(name))

    def drop_role(self, name: str) -> None:
        """Drop a role, on MySQL and MariaDB the account of that name from anywhere, if it is there."""
        quoted = self.engine.dialect.identifier_preparer.quote_identifier(name)
        self.execute(f"DROP ROLE IF EXISTS {quoted}" if self.is_postgresql else f"DROP USER IF EXISTS {quoted}@'%%'")

    def can_prepare(self) -> bool:
        """Tell whether two-phase transactions are on; PostgreSQL has them off unless configured."""
        if self._can_prepare is None:
            with self.engine.connect() as connection:
                self._can_prepare = (
                    not self.is_postgresql or int(connection.scalar(sa.text("SHOW max_prepared_transactions")) or 0) > 0
                )
        return self._can_prepare

    def execute(self, statement: str) -> None:
        """Execute one statement outside of transactions."""
        with self.engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def close(self) -> None:
        """Close the connection."""
        self.engine.dispose()
