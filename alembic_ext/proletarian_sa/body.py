"""The body of a revision's functions, from the texts of the history: what is reviewed is what runs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from string import Template
from textwrap import indent
from typing import TYPE_CHECKING, Final

from alembic_ext.proletarian_sa.history import HISTORY, v01
from proletarian_sa.names import check_identifiers, index_name
from proletarian_sa.versions import VERSIONS, latest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_SCHEMA: Final = "proletarian"
ORIGINAL: Final = -1
"""In place of a version's number: the tables of Proletarian, the Clojure library."""

MYSQL: Final = "from sqlalchemy.dialects import mysql"
IMPORTS: Final = ("from alembic.util import CommandError", MYSQL)
"""What a body may need beside `op` and `sa`."""

# `postgresql` is what autogenerate imports for types, in the same function.
_HEAD = """\
# proletarian-sa: $marker from $start to $end
is_postgresql = op.get_context().dialect.name == "postgresql"
schema = $schema
"""

_IMPATIENT = """\
# Whoever enqueues a job would have to wait behind this: without a lock within 5 seconds it gives up.
if is_postgresql:
    before = "set_config('proletarian_sa.before', current_setting('lock_timeout'), false)"
    op.execute(f"SELECT {before}, set_config('lock_timeout', '5s', false)")
elif op.get_context().dialect.name in ("mysql", "mariadb"):
    op.execute("SET @before = @@lock_wait_timeout, lock_wait_timeout = 5")
try:
$body
except sa.exc.DBAPIError as error:
    codes = [getattr(error.orig, name, None) for name in ("sqlstate", "pgcode", "errno")] + list(error.orig.args[:1])
    if not any(code in ("55P03", "40P01", 1205, 1213, "database is locked") for code in codes):
        raise
    raise CommandError(
        "The tables of proletarian-sa are in use, by a long transaction or a held job, so this migration gave up. "
        "Let that end, then run the same command again."
    ) from error
if is_postgresql:
    op.execute("SELECT set_config('lock_timeout', current_setting('proletarian_sa.before'), false)")
elif op.get_context().dialect.name in ("mysql", "mariadb"):
    op.execute("SET lock_wait_timeout = @before")
"""

_ALONE = """
# Another run at the same moment may have done this: Alembic would note it a second time, beside what has followed since.
context = op.get_context()
if context.script is not None and not context.as_sql:
    noted = sa.table(context.version_table, sa.column("version_num"), schema=context.version_table_schema)
    here = noted.c.version_num == revision
    op.execute(sa.update(noted).where(here).values(version_num=revision))  # changes nothing: locks the place, or SQLite's file
    if revision in [known.revision for known in context.script.iterate_revisions(context.get_current_heads(), "base")]:
        raise CommandError("Another run of Alembic has installed the tables of proletarian-sa. Run the same command again.")
"""

_ANY_MARKER = re.compile(
    r"^def (?P<function>\w+)\("
    r"|^ *# proletarian-sa: (?P<marker>\[.*\]) from (?:version \d+|the original's) to version (?P<end>\d+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Names:
    """Which tables, as literals of a revision.

    Attributes:
        schema: As for `JobTables`: the default is used on PostgreSQL only; another name on every database but SQLite.
        job_table: As for `JobTables`.
        archived_job_table: As for `JobTables`.
        job_ids: `uuid`, `database`, or the Python literals of the column of the ids.
        extras: Lines for the two `op.create_table`, by what the table is: columns and constraints of the application's own.
    """

    schema: str | None = DEFAULT_SCHEMA
    job_table: str = "job"
    archived_job_table: str = "archived_job"
    job_ids: str | Mapping[str, str] = "uuid"
    extras: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_identifiers(schema=self.schema, job_table=self.job_table, archived_job_table=self.archived_job_table)
        if isinstance(self.job_ids, str) and self.job_ids not in v01.JOB_IDS:
            raise ValueError(f"job_ids must be one of {', '.join(v01.JOB_IDS)}, not {self.job_ids!r}.")

    @property
    def marker(self) -> str:
        """By which a revision that has been written is recognised."""
        return json.dumps([self.schema, self.job_table, self.archived_job_table], ensure_ascii=False)

    def literals(self) -> dict[str, str]:
        """Return the names as Python literals; a schema says on which databases it holds.

        Those of indexes are final: a naming convention of the project's would make others of them.
        """
        tables = {"job": self.job_table, "archived_job": self.archived_job_table}
        if self.schema == DEFAULT_SCHEMA:
            schema = f"{_literal(self.schema)} if is_postgresql else None"
        elif self.schema is None:
            schema = "None"
        else:
            schema = f'None if op.get_context().dialect.name == "sqlite" else {_literal(self.schema)}'
        return {
            "marker": self.marker,
            "schema": schema,
            "job": _literal(self.job_table),
            "archived_job": _literal(self.archived_job_table),
            **{name: f"op.f({_literal(index_name(tables[kind], suffix))})" for kind, suffix, name in _indexes()},
            "job_extras": self.extras.get("job", ""),
            "archived_job_extras": self.extras.get("archived_job", ""),
            **(v01.JOB_IDS[self.job_ids] if isinstance(self.job_ids, str) else self.job_ids),
        }


def body(names: Names, start: int, end: int) -> str:
    """Return the operations that lead from one version to another, up or down, as the body of a function.

    Args:
        names: Which tables.
        start: A version's number, 0 for no tables, or `ORIGINAL`.
        end: Likewise.

    Raises:
        ValueError: There is no such version, or it is the same.
    """
    for number in (start, end):
        if number not in {ORIGINAL, 0, *HISTORY}:
            raise ValueError(f"There is no version {number} of the tables: 0 is none, {latest()} the last.")
    if start == end:
        raise ValueError(f"There is nothing between version {start} and version {end} of the tables.")
    text = "\n".join(_steps(start, end))
    if start != 0:  # nobody can use tables that are not there yet
        text = Template(_IMPATIENT).safe_substitute(body=indent(text.rstrip(), "    "))
    if start <= 0:  # probably by a project's first revision, of which Alembic does not notice that it has been run
        text += _ALONE
    literals = {**names.literals(), "start": _spelled(start), "end": _spelled(end)}
    return Template(_HEAD + text).substitute(literals).rstrip("\n")


def _steps(start: int, end: int) -> Iterator[str]:
    low, high = sorted((start, end))
    between = [HISTORY[number] for number in sorted(HISTORY) if low < number <= high]
    if start < end:
        for version in between:
            yield version.ADOPT if version is v01 and start == ORIGINAL else version.UPGRADE
    elif end == 0:
        yield v01.DOWNGRADE  # with the tables goes what later versions have added
    else:
        for version in reversed(between):
            yield version.ABANDON if version is v01 and end == ORIGINAL else version.DOWNGRADE


def versions_written(text: str, names: Names) -> dict[str, int]:
    """Return to which version the functions of a revision's text lead these tables upwards."""
    found: dict[str, int] = {}
    function = ""
    for match in _ANY_MARKER.finditer(text):
        if match["function"]:
            function = match["function"]
        elif match["marker"] == names.marker and function.startswith("upgrade"):
            found[function] = int(match["end"])
    return found


def _indexes() -> Iterator[tuple[str, str, str]]:
    """Return of each index which table it is on, how its name ends, and what the texts call it."""
    for version in VERSIONS.values():
        for kind, suffixes in version.indexes.items():
            for suffix in suffixes:
                yield kind, suffix, f"{suffix}_index"


def _spelled(version: int) -> str:
    return "the original's" if version == ORIGINAL else f"version {version}"


def _literal(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)  # double quotes, as formatters like them; valid Python for any name
