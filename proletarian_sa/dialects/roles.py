"""Roles: which rights the tables ask for, and how each database that has roles says so.

Text to be printed, never executed here. Names are quoted by SQLAlchemy's own preparer of the dialect.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy import exc

from proletarian_sa.dialects.judgement import code
from proletarian_sa.dialects.postgresql import sqlstate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy.engine import Connection
    from sqlalchemy.sql.compiler import IdentifierPreparer

JOB_RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
READ_BACK: Final = ("job_id", "enqueued_at", "process_at")  # what SQLAlchemy may read again after it has inserted a job


_IF_THERE: Final = "EXCEPTION WHEN duplicate_object THEN\n    RAISE NOTICE 'the role is there already';\n"


class Roles:
    """How one database speaks of roles.

    Attributes:
        archive_rights: What archiving needs on the archive: to insert, and to replace a row of the same job id.
        why_replace: Says which of these replaces.
        schemas_are_databases: A table lies in a database, which a statement can name.
        note: What else to know about an enqueue-only role.
    """

    archive_rights: ClassVar[tuple[str, ...]]
    why_replace: ClassVar[str]
    schemas_are_databases: ClassVar[bool]
    note: ClassVar[str] = ""

    def __init__(self, dialect: str) -> None:
        kind: Any = sa.make_url(f"{dialect}://").get_dialect()
        # With the drivers' own parameter styles a percent sign would be doubled.
        self._preparer: IdentifierPreparer = kind(paramstyle="named").identifier_preparer

    def table(self, place: str | None, name: str) -> str:
        """Quote a table's name, with the schema or database if one is given."""
        quoted = self._preparer.quote(name)
        return quoted if place is None else f"{self._preparer.quote(place)}.{quoted}"

    def account(self, name: str, host: str) -> str:
        """Quote a role's name."""
        raise NotImplementedError

    def create(self, name: str, host: str) -> tuple[str, str]:
        """Return a comment about the new role's password, and the statement that makes it, tolerant of one that is there."""
        raise NotImplementedError

    def drop(self, name: str, host: str) -> str:
        """Return the statement that drops a role, after a comment where it has conditions."""
        raise NotImplementedError

    def enter(self, place: str | None) -> str | None:
        """Return what a role must be given on the place of the tables, as `RIGHT ON PLACE`; None: nothing."""
        return None

    def columns(self, right: str, names: Sequence[str]) -> str:
        """Return a right on some columns."""
        return f"{right} ({', '.join(self._preparer.quote(name) for name in names)})"

    def is_denied(self, error: exc.DBAPIError) -> bool:
        """Return whether the server refused a statement, or the database, for want of a right."""
        raise NotImplementedError

    def impatient(self, connection: Connection) -> AbstractContextManager[None]:
        """Let statements wait for a second at most where somebody has locked a table: in a backup, or altering it."""
        raise NotImplementedError

    def closed_schema(self, connection: Connection, table: str) -> str | None:
        """Return the schema on the search path that has a table of this name but may not be used by this role."""
        return None


class PostgreSQLRoles(Roles):
    """Roles of the server, rights in schemas and on tables."""

    archive_rights = ("SELECT", "INSERT", "UPDATE")
    why_replace = "UPDATE replaces a row of the same job id"
    schemas_are_databases = False

    def account(self, name: str, host: str) -> str:
        if name == "public":
            raise ValueError("'public' is everybody on PostgreSQL, not a role. Give the name of a role.")
        return self._preparer.quote_identifier(name)

    def create(self, name: str, host: str) -> tuple[str, str]:
        role, tag = self.account(name, host), "$create$"
        while tag in role:
            tag = f"{tag[:-1]}_$"
        # CREATE ROLE has no IF NOT EXISTS.
        return (
            f"It has no password yet. In psql: \\password {role}",
            f"DO {tag}\nBEGIN\n    CREATE ROLE {role} LOGIN;\n{_IF_THERE}END\n{tag}",
        )

    def drop(self, name: str, host: str) -> str:
        return f"-- Refused while the role owns something, or has rights elsewhere.\nDROP ROLE IF EXISTS {self.account(name, host)}"

    def enter(self, place: str | None) -> str | None:
        return None if place is None else f"USAGE ON SCHEMA {self._preparer.quote(place)}"

    def is_denied(self, error: exc.DBAPIError) -> bool:
        return sqlstate(error.orig) == "42501"

    @contextmanager
    def impatient(self, connection: Connection) -> Iterator[None]:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
        yield

    def closed_schema(self, connection: Connection, table: str) -> str | None:
        query = sa.text(
            "SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relname = :name AND c.relkind IN ('r', 'p') AND NOT has_schema_privilege(n.oid, 'USAGE') "
            "AND quote_ident(n.nspname) = ANY (regexp_split_to_array("
            "replace(current_setting('search_path'), '\"$user\"', quote_ident(current_user)), ',\\s*')) LIMIT 1"
        )
        return connection.execute(query, {"name": table}).scalar()


class MySQLRoles(Roles):
    """Accounts with a host, `name`@`host`; with an empty host a role, which accounts can be given."""

    archive_rights = ("SELECT", "INSERT", "DELETE")
    why_replace = "DELETE replaces a row of the same job id"
    schemas_are_databases = True

    def account(self, name: str, host: str) -> str:
        quoted = self._preparer.quote_identifier(name)
        return f"{quoted}@{self._preparer.quote_identifier(host)}" if host else quoted

    def create(self, name: str, host: str) -> tuple[str, str]:
        account = self.account(name, host)
        if not host:
            return f"An account gets it by GRANT {account} TO ..., and SET DEFAULT ROLE.", f"CREATE ROLE IF NOT EXISTS {account}"
        # Without the lock anybody could log in as it until it has a password.
        return (
            f"It is locked until it has a password: ALTER USER {account} IDENTIFIED BY 'a password' ACCOUNT UNLOCK;",
            f"CREATE USER IF NOT EXISTS {account} ACCOUNT LOCK",
        )

    def drop(self, name: str, host: str) -> str:
        return f"DROP {'USER' if host else 'ROLE'} IF EXISTS {self.account(name, host)}"

    def is_denied(self, error: exc.DBAPIError) -> bool:
        # Of a database, a table, a column.
        return code(error.orig) in {1044, 1142, 1143}

    @contextmanager
    def impatient(self, connection: Connection) -> Iterator[None]:
        # Not innodb_lock_wait_timeout, which is about rows; this one is a year, or a day, by default.
        before = connection.exec_driver_sql("SELECT @@SESSION.lock_wait_timeout").scalar_one()
        connection.exec_driver_sql("SET SESSION lock_wait_timeout = 1")
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {int(before)}")


class MariaDBRoles(MySQLRoles):
    """As MySQL, but for what RETURNING asks for."""

    note = (
        "; where the database makes the ids, or eager_defaults is set, their engine needs\n"
        "-- create_engine(url, use_insertmanyvalues=False): otherwise SQLAlchemy flushes by INSERT ... RETURNING, for which\n"
        "-- MariaDB wants SELECT on all columns that are written"
    )


_BY_DIALECT: Final[dict[str, type[Roles]]] = {
    "postgresql": PostgreSQLRoles,
    "mysql": MySQLRoles,
    "mariadb": MariaDBRoles,
}
DIALECTS: Final = tuple(_BY_DIALECT)


def roles_of(dialect: str) -> Roles | None:
    """Return how this dialect speaks of roles, None if it has none."""
    kind = _BY_DIALECT.get(dialect)
    return None if kind is None else kind(dialect)
