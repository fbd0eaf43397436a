"""The user of a worker process on a server of the test's own, with no more rights than it needs."""

import secrets
from contextlib import suppress

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from tests.faults.own_server import OwnServer
from tests.faults.scene import Scene
from tests.helpers import wait_until
from tests.servers.sessions import sessions

PASSWORD = "first"  # noqa: S105 - of a user on a throwaway server
MOST = 10
"""Connections of a server that can be told so while it runs; no server takes a smaller number."""
GROUP = "workers"
RULE = f"host all +{GROUP} 127.0.0.1/32 password\n"


class Account:
    """A user who may work with the scene's tables, and what an operator does to it.

    Attributes:
        name: Of no other user.
    """

    def __init__(self, server: OwnServer, scene: Scene) -> None:
        self._server, self._scene = server, scene
        self.name = f"worker_{secrets.token_hex(4)}"
        self.is_postgresql = scene.engine.dialect.name == "postgresql"
        if self.is_postgresql:
            ask_for_passwords(server)
            self.run(
                f"CREATE ROLE {self.name} LOGIN IN ROLE {GROUP} PASSWORD '{PASSWORD}'",
                f"GRANT USAGE ON SCHEMA proletarian TO {self.name}",
            )
            for schema in ("proletarian", "public"):
                self.run(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {self.name}")
            self.run(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {self.name}")
        else:
            self.run(f"CREATE USER {self.name}@'%%' IDENTIFIED BY '{PASSWORD}'")
            rights = "SELECT, INSERT, UPDATE, DELETE"
            self.run(f"GRANT {rights} ON {scene.engine.url.database}.* TO {self.name}@'%%'")

    @property
    def url(self) -> str:
        """The scene's database, as this user."""
        mine = self._scene.engine.url.set(username=self.name, password=PASSWORD)
        return mine.render_as_string(hide_password=False)

    def run(self, *statements: str) -> None:
        """Run statements as the administrator, in the scene's database."""
        with self._scene.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def alter(self, postgresql: str, others: str) -> None:
        """Change what is said of it."""
        self.run(f"ALTER ROLE {self.name} {postgresql}" if self.is_postgresql else f"ALTER USER {self.name}@'%%' {others}")

    def change_password(self, password: str) -> None:
        """Give it another password; connections that it has go on."""
        self.alter(f"PASSWORD '{password}'", f"IDENTIFIED BY '{password}'")

    def sessions(self) -> list[int]:
        """Return the server's numbers of its connections, and of those of which it does not know yet whose they are."""
        if not self.is_postgresql:
            names = (self.name, "unauthenticated user")
            return [session.number for session in sessions(self._scene.engine.url) if session.user in names]
        query = (
            f"SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
            f"AND coalesce(usename, '{self.name}') = '{self.name}'"
        )
        with self._scene.engine.connect() as connection:
            return [row[0] for row in connection.exec_driver_sql(query)]

    def end_sessions(self) -> None:
        """End its connections, as a failover or an operator does."""
        for number in self.sessions():
            with suppress(sa.exc.DBAPIError):  # it has just ended by itself
                self.run(f"SELECT pg_terminate_backend({number})" if self.is_postgresql else f"KILL {number}")


class Crowd:
    """Others who take all the connections that a server has."""

    def __init__(self, server: OwnServer, scene: Scene, account: Account) -> None:
        self._server, self._account = server, account
        self._others = Account(server, scene)
        self._taken: list[sa.Connection] = []

    def come(self) -> None:
        """Take every connection, those of the account too."""
        if not self._account.is_postgresql:
            self._before = self._server.ask("SELECT @@GLOBAL.max_connections")
            self._server.ask(f"SET GLOBAL max_connections = {MOST}")
        engine = sa.create_engine(self._others.url, poolclass=NullPool)
        while True:
            self._account.end_sessions()
            try:
                self._taken.append(engine.connect())
            except sa.exc.OperationalError:
                if not self._account.sessions():
                    return

    def leave(self) -> None:
        """Make room, and give them back, which takes a server a moment."""
        if not self._account.is_postgresql:
            wait_until(self._make_room)
        for connection in self._taken:
            connection.close()
        self._taken.clear()

    def _make_room(self) -> bool:
        """Return whether the administrator has come in: one place is kept for him, which those who try in vain take for moments."""
        with suppress(sa.exc.OperationalError):
            self._server.ask(f"SET GLOBAL max_connections = {self._before}")
            return True
        return False


class Limit:
    """No more connections for an account than it has; those are somebody else's."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._taken: list[sa.Connection] = []

    def come(self) -> None:
        """End its connections, and let it have no other."""
        self._account.alter("CONNECTION LIMIT 0", "WITH MAX_USER_CONNECTIONS 1")
        self._account.end_sessions()
        if not self._account.is_postgresql:  # where 0 means no limit
            wait_until(self._is_alone)
            self._taken.append(sa.create_engine(self._account.url, poolclass=NullPool).connect())

    def _is_alone(self) -> bool:
        """Return whether it has no connection left, not even one that was being made; such are ended, too."""
        self._account.end_sessions()
        return not self._account.sessions()

    def leave(self) -> None:
        """Let it have as many as it likes."""
        self._account.alter("CONNECTION LIMIT -1", "WITH MAX_USER_CONNECTIONS 0")
        while self._taken:
            self._taken.pop().close()


def ask_for_passwords(server: OwnServer) -> None:
    """Let PostgreSQL ask workers for their passwords; the administrator needs none."""
    file = server.node.folder / "data" / "pg_hba.conf"
    text = file.read_text()
    if RULE in text:
        return
    server.ask(f"CREATE ROLE {GROUP}")
    file.write_text(RULE + text)
    before = server.ask("SELECT pg_conf_load_time()")
    server.ask("SELECT pg_reload_conf()")
    wait_until(lambda: server.ask("SELECT pg_conf_load_time()") != before)
