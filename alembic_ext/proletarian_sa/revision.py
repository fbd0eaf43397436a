"""Write a revision into the user's own Alembic project."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from alembic.script import ScriptDirectory
from alembic.util import rev_id

from alembic_ext.proletarian_sa.history import LATEST, VERSIONS
from proletarian_sa.names import check_identifiers, index_name

if TYPE_CHECKING:
    from alembic.config import Config

DEFAULT_SCHEMA = "proletarian"


def write_revision(
    config: Config,
    *,
    message: str = "install the tables of proletarian-sa",
    head: str = "head",
    schema: str | None = DEFAULT_SCHEMA,
    job_table: str = "job",
    archived_job_table: str = "archived_job",
    job_ids: str = "uuid",
    databases: tuple[str, ...] = (),
) -> Path:
    """Write a revision that installs the tables, chained to the project's head, by the project's own `script.py.mako`.

    Args:
        config: The project's, as `alembic.config.Config("alembic.ini")`.
        message: The revision's message.
        head: What it is chained to, where there are several heads.
        schema: As for `JobTables`: the default is used on PostgreSQL only; another name on every database but SQLite.
        job_table: As for `JobTables`.
        archived_job_table: As for `JobTables`.
        job_ids: `uuid`, or `database` for tables with `JobTables(job_ids=DatabaseIds())`.
        databases: With the multidb template: names of the databases that get the tables.

    Returns:
        The path of the new file.

    Raises:
        ValueError: There are no such `job_ids`, no such names of tables, or no such databases in the project.
        CommandError: Alembic's own: no such project, several heads, no such head.

    **Transaction:** nothing: reads and writes files.
    """
    version = VERSIONS[LATEST]
    check_identifiers(schema=schema, job_table=job_table, archived_job_table=archived_job_table)
    names = _literals(schema, job_table, archived_job_table) | _id_literals(version, job_ids)
    upgrade, downgrade = (_body(text, names) for text in (version.UPGRADE, version.DOWNGRADE))
    arguments: dict[str, Any] = {"upgrades": upgrade, "downgrades": downgrade, "imports": version.IMPORTS}
    for database in databases:
        arguments |= {f"{database}_upgrades": upgrade, f"{database}_downgrades": downgrade}
    directory = ScriptDirectory.from_config(config)
    script = directory.generate_revision(rev_id(), message, head=head, refresh=True, config=config, **arguments)
    if script is None:
        raise RuntimeError("Alembic wrote no revision.")
    path = Path(script.path)
    if path.read_text(encoding="utf-8").count(upgrade.partition("\n")[0]) < max(1, len(databases)):
        path.unlink()
        known = config.get_main_option("databases") or "those that script.py.mako knows"
        raise ValueError(f"The project has several databases. Say which get the tables, --database NAME, again for more: {known}.")
    return path


def _literals(schema: str | None, job_table: str, archived_job_table: str) -> dict[str, str]:
    """Return the names as Python literals; a schema says on which databases it holds."""
    literal = partial(json.dumps, ensure_ascii=False)  # double quotes, as formatters like them; valid Python for any name
    if schema == DEFAULT_SCHEMA:
        where = f"{literal(schema)} if postgresql else None"
    elif schema is None:
        where = "None"
    else:
        where = f'None if op.get_context().dialect.name == "sqlite" else {literal(schema)}'
    return {
        "schema": where,
        "job": literal(job_table),
        "archived_job": literal(archived_job_table),
        "queue_index": literal(index_name(job_table, "queue_process_at")),
        "key_index": literal(index_name(job_table, "unique_key")),
        "finished_index": literal(index_name(archived_job_table, "finished_at")),
    }


def _id_literals(version: Any, job_ids: str) -> dict[str, str]:
    """Return the column of the ids as Python literals."""
    if job_ids not in version.JOB_IDS:
        raise ValueError(f"job_ids must be one of {', '.join(version.JOB_IDS)}, not {job_ids!r}.")
    literals: dict[str, str] = version.JOB_IDS[job_ids]
    return literals


def _body(text: str, names: dict[str, str]) -> str:
    """Return the text as the body of a function: the template indents its first line only."""
    lines = Template(text).substitute(names).rstrip().split("\n")  # not splitlines(): a name may hold other ends of lines
    return "\n".join([lines[0], *(f"    {line}" if line else "" for line in lines[1:])])
