"""The sessions of a MySQL or MariaDB server, whatever they run."""

from contextlib import closing
from typing import NamedTuple

import pymysql  # type: ignore[import-untyped]
import sqlalchemy as sa


class Session(NamedTuple):
    """One of them: its number, the user and where that is, the database it has chosen, and what it is at."""

    number: int
    user: str
    host: str
    database: str | None
    state: str | None


def sessions(url: sa.URL) -> list[Session]:
    """Return the sessions of this server, but the one that looks.

    What they run is not decoded: it need not be text, or is cut off in the middle of a character. For the same reason MySQL refuses
    at times to select from `information_schema.processlist`, of whatever session.
    """
    port = url.port or 3306
    options = {"host": url.host, "port": port, "user": url.username, "password": url.password or "", "use_unicode": False}
    with closing(pymysql.connect(**options)) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW PROCESSLIST")
        rows = [row for row in cursor.fetchall() if row[0] != connection.thread_id()]
    return [Session(row[0], row[1].decode(), row[2].decode(), text(row[3]), text(row[6])) for row in rows]


def text(value: bytes | None) -> str | None:
    """Return what the server says."""
    return None if value is None else value.decode()
