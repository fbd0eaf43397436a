"""Ask `proletarian-sa check` about tables, of which some are made wrong."""

from typing import Any

import sqlalchemy as sa
from click.testing import CliRunner, Result

from proletarian_sa import DatabaseIds, JobTables, default_tables, enqueue
from proletarian_sa.cli import main
from tests.native_client import feed

MYSQL = ("mysql", "mariadb")
EVERYWHERE = ("postgresql", *MYSQL, "sqlite")
NUMBERED = JobTables(job_ids=DatabaseIds())


def check(url: Any, *arguments: str) -> Result:
    """Run the command."""
    text = url.render_as_string(hide_password=False) if isinstance(url, sa.URL) else url
    return CliRunner().invoke(main, ["check", "--url", text, *arguments])


def differences(database: Any, *arguments: str) -> dict[str, str]:
    """Return what the command says of tables that do not fit: the lines, and what stands below each."""
    result = check(database.url, *arguments)
    assert (1, "", SystemExit) == (result.exit_code, result.stderr, type(result.exception)), result.output
    found: dict[str, str] = {}
    last = ""
    for line in result.stdout.splitlines():
        if line.startswith("    ") and last:
            found[last] += line.strip()
        else:
            last = line
            found[last] = ""
    return found


def make(database: Any, old: str, new: str, *arguments: str) -> None:
    """Make the tables from the text of `proletarian-sa ddl`, in which something is changed."""
    dialect = database.url.get_backend_name()
    text = CliRunner().invoke(main, ["ddl", "--dialect", dialect, *arguments]).stdout
    assert old in text
    feed(database, text.replace(old, new))


def place(database: Any) -> str:
    """Return the job table's name with its schema."""
    return "proletarian.job" if database.url.get_backend_name() == "postgresql" else "job"


def add(engine: Any, tables: JobTables = default_tables) -> Any:
    """Enqueue a job by its columns of old."""
    with engine.begin() as connection:
        return enqueue(connection, "tick", tables=tables)
