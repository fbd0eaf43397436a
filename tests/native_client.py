"""Run SQL text unchanged, as an administrator does: in the database's own client."""

import sqlite3
import subprocess

from tests.roles import run
from tests.servers.database import Database
from tests.servers.programs import find_program


def native_client(database: Database) -> list[str] | None:
    """Return the command of the client that stops at the first error, None if it is not installed."""
    url, kind = database.url, database.url.get_backend_name()
    program = find_program({"postgresql": "psql", "sqlite": "sqlite3"}.get(kind, "mysql"))
    if program is None and kind in ("mysql", "mariadb"):
        program = find_program("mariadb")
    if program is None:
        return None
    if kind == "sqlite":
        return [str(program), "-bail", str(url.database)]
    if kind == "postgresql":
        target = url.set(drivername="postgresql").render_as_string(hide_password=False)
        return [str(program), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", target]
    options = [f"--host={url.host}", f"--port={url.port}", f"--user={url.username}", f"--password={url.password}"]
    return [str(program), "--no-defaults", "--protocol=tcp", "--default-character-set=utf8mb4", *options, str(url.database)]


def feed(database: Database, text: str) -> None:
    """Run a text of several statements in the native client, or where there is none through the driver."""
    client = native_client(database)
    if client is not None:
        done = subprocess.run(client, input=text, text=True, encoding="utf-8", check=False, capture_output=True)
        assert 0 == done.returncode, done.stderr
    elif database.server:
        run(database, text)
    else:
        connection = sqlite3.connect(str(database.url.database))
        connection.executescript(text)
        connection.close()
