"""Projects of Alembic that lead the tables from version to version, by the revisions that the command writes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from proletarian_sa import JobTables, create_all, default_tables, drop_all
from proletarian_sa.cli import main
from proletarian_sa.dialects import schema_names
from tests.catalogue import catalogue
from tests.second_version import second_tables
from tests.test_alembic import run_alembic

AUTOCOMMIT = ("poolclass=pool.NullPool", 'poolclass=pool.NullPool, isolation_level="AUTOCOMMIT"')
PER_MIGRATION = ("connection=connection, target", "connection=connection, transaction_per_migration=True, target")
"""What to change in env.py for other transactions than one."""

_CHANGE = re.compile(r"\s*(CREATE|ALTER|DROP)\b", re.IGNORECASE)


class InterruptionError(Exception):
    """Stands for whatever ends a migration: a signal, a lost connection."""


def write(*options: str) -> Path:
    """Let the command write a revision into the project, and return the file."""
    result = CliRunner().invoke(main, ["revision", *options])
    assert 0 == result.exit_code, result.output
    return Path(result.output.partition("Wrote ")[2].partition(". Review it")[0])


def configure(path: Path, old: str, new: str) -> None:
    """Change a file of the project as its owner would."""
    text = path.read_text()
    assert old in text, text
    path.write_text(text.replace(old, new))


def in_env(old: str, new: str) -> None:
    """Change the project's env.py."""
    configure(Path("migrations/env.py"), old, new)


@dataclass
class Project:
    """A project on a database, with a revision for each of two versions of the tables, or one that installs the second."""

    engine: sa.Engine
    files: dict[int, Path]
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = JobTables(**self.options)
        self.second = second_tables(**self.options)

    def target(self, version: int) -> str:
        """Return the revision that leads to a version."""
        return "base" if version == 0 else self.files[version].name.partition("_")[0]

    def move(self, start: int, end: int) -> None:
        """Lead the tables to another version."""
        run_alembic("upgrade" if start < end else "downgrade", self.target(end))

    def current(self) -> int:
        """Return which version of the tables Alembic has noted."""
        with self.engine.connect() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return 0
            noted = list(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars())
        assert len(noted) < 2, noted
        return next((version for version in self.files if [self.target(version)] == noted), 0)

    def catalogue(self) -> dict[str, Any] | None:
        """Return what the database says of the tables; None: neither is there."""
        tables = self.first
        with self.engine.connect() as connection:
            schema = schema_names.effective_schema(connection, tables.job.schema)
        there = set(sa.inspect(self.engine).get_table_names(schema=schema))
        if not there & {tables.job.name, tables.archived_job.name}:
            return None
        return catalogue(self.engine, tables)

    def expected(self) -> dict[int, Any]:
        """Return what `create_all` makes of each version's models; the database is left without tables."""
        found: dict[int, Any] = {0: None}
        for version, tables in {1: self.first, 2: self.second}.items():
            drop_all(self.engine, tables=self.first)
            create_all(self.engine, tables=tables)
            found[version] = catalogue(self.engine, tables)
        drop_all(self.engine, tables=self.first)
        return found


@pytest.fixture
def by_steps(project: Path, engine: sa.Engine, request: pytest.FixtureRequest) -> Project:
    """Return a project that has installed the first version, and has upgraded to the second since; nothing is run."""
    first = write()
    request.getfixturevalue("second_version")
    return Project(engine, {1: first, 2: write()})


@pytest.fixture
def at_once(project: Path, engine: sa.Engine, second_version: None) -> Project:
    """Return a project that installs the second version; nothing is run."""
    return Project(engine, {2: write()})


@contextmanager
def changes(fail_after: int = 0) -> Iterator[list[str]]:
    """Collect the statements that change tables; what follows the given one, counted from 1, is a failure."""
    said: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if _CHANGE.match(statement):
            said.append(statement)
            if len(said) == fail_after:
                raise InterruptionError

    sa.event.listen(sa.Engine, "after_cursor_execute", note)
    try:
        yield said
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", note)


def keep_jobs(engine: sa.Engine, tables: JobTables = default_tables) -> list[Any]:
    """Put one job into the queue and one into the archive, and return both rows."""
    now = sa.func.current_timestamp()
    facts = {"queue": "kept", "job_type": "t", "payload": "1", "attempts": 0, "enqueued_at": now, "process_at": now}
    with engine.begin() as connection:
        for table, number, more in ((tables.job, 1, {}), (tables.archived_job, 2, {"status": "success", "finished_at": now})):
            job_id = tables.job_ids.new() or number
            connection.execute(table.insert().values({"job_id": job_id, **facts, **more}))
    return kept(engine, tables)


def kept(engine: sa.Engine, tables: JobTables = default_tables) -> list[Any]:
    """Return all rows of both tables, by the columns of the first version."""
    with engine.connect() as connection:
        return [row for table in (tables.job, tables.archived_job) for row in connection.execute(sa.select(table))]
