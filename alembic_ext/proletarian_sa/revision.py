"""Write a revision into the user's own Alembic project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from alembic.script import ScriptDirectory
from alembic.util import rev_id

from alembic_ext.proletarian_sa.body import DEFAULT_SCHEMA, IMPORT, ORIGINAL, Names, body, versions_written
from proletarian_sa.versions import latest

if TYPE_CHECKING:
    from alembic.config import Config

INSTALL: Final = "install the tables of proletarian-sa"


def write_revision(
    config: Config,
    *,
    message: str | None = None,
    head: str = "head",
    version_path: str | None = None,
    schema: str | None = DEFAULT_SCHEMA,
    job_table: str = "job",
    archived_job_table: str = "archived_job",
    job_ids: str = "uuid",
    databases: tuple[str, ...] = (),
    adopt: bool = False,
) -> Path:
    """Write a revision that installs or upgrades the tables, chained to the project's head, by the project's own `script.py.mako`.

    It leads to the last version of the tables: from none, or from the version to which the revisions lead that this has written
    into the project before.

    Args:
        config: The project's, as `alembic.config.Config("alembic.ini")`.
        message: The revision's message. Default: what it does.
        head: What it is chained to, where there are several heads.
        version_path: Where it is written, if the project has several folders of versions.
        schema: As for `JobTables`: the default is used on PostgreSQL only; another name on every database but SQLite.
        job_table: As for `JobTables`.
        archived_job_table: As for `JobTables`.
        job_ids: `uuid`, or `database` for tables with `JobTables(job_ids=DatabaseIds())`.
        databases: With the multidb template: names of the databases that get the tables.
        adopt: The tables are there, made by the scripts of Proletarian, the Clojure library: take them over, with their jobs.

    Returns:
        The path of the new file.

    Raises:
        ValueError: There are no such `job_ids`, no such names of tables, or no such databases in the project; or a revision
            that does it is there.
        CommandError: Alembic's own: no such project, several heads, no such head.

    **Transaction:** nothing: reads and writes files.
    """
    names = Names(schema, job_table, archived_job_table, job_ids)
    if adopt and job_ids != "uuid":
        raise ValueError("The tables of Proletarian have UUIDs: leave job_ids out, or adopt.")
    directory = ScriptDirectory.from_config(config)
    functions = [f"upgrade_{name}" for name in databases] or ["upgrade"]
    starts = _starts(directory, names, functions, adopt=adopt)
    bodies = {name: (body(names, start, latest()), body(names, latest(), start)) for name, start in starts.items()}
    arguments: dict[str, Any] = {"imports": IMPORT}
    for function, (up, down) in bodies.items():
        prefix = function.removeprefix("upgrade").lstrip("_")
        prefix = f"{prefix}_" if prefix else ""
        arguments |= {f"{prefix}upgrades": _indented(up), f"{prefix}downgrades": _indented(down)}
    first_up, first_down = next(iter(bodies.values()))
    arguments = {"upgrades": _indented(first_up), "downgrades": _indented(first_down), **arguments}
    if message is None:
        message = _message(next(iter(starts.values())))
    script = directory.generate_revision(
        rev_id(), message, head=head, version_path=version_path, refresh=True, config=config, **arguments
    )
    if script is None:
        raise RuntimeError("Alembic wrote no revision.")
    path = Path(script.path)
    try:
        _check(path, names, bodies, config)
    except ValueError:
        path.unlink()
        raise
    return path


def _starts(directory: ScriptDirectory, names: Names, functions: list[str], *, adopt: bool) -> dict[str, int]:
    """Return from which version each function is to start.

    Raises:
        ValueError: There is nothing to do for any.
    """
    written: dict[str, tuple[int, str]] = {}
    for revision in directory.walk_revisions():
        found = versions_written(Path(revision.path).read_text(encoding="utf-8"), names)
        for function, version in found.items():
            written[function] = max(written.get(function, (0, "")), (version, Path(revision.path).name))
    starts = {function: written[function][0] if function in written else 0 for function in functions}
    done = {function: written[function][1] for function, start in starts.items() if start >= (1 if adopt else latest())}
    if done:
        what = "The tables are taken over or installed" if adopt else f"The tables have version {latest()}, the last,"
        where = ", ".join(sorted(set(done.values())))
        raise ValueError(
            f"{what} by {where}: there is nothing to write. Run: alembic upgrade head. For tables of other names give --schema, "
            "--job-table and --archived-job-table."
        )
    return {function: ORIGINAL if adopt else start for function, start in starts.items()}


def _message(start: int) -> str:
    if start == 0:
        return INSTALL
    return (
        "take over the tables of Proletarian"
        if start == ORIGINAL
        else f"upgrade the tables of proletarian-sa to version {latest()}"
    )


def _check(path: Path, names: Names, bodies: dict[str, Any], config: Config) -> None:
    """Raise unless the project's template has put everything into the file."""
    text = path.read_text(encoding="utf-8")
    written = versions_written(text, names)
    if bodies.keys() - written.keys():
        databases = config.get_main_option("databases")
        if databases is None:
            raise ValueError(
                "The project's script.py.mako has no ${upgrades} in its upgrade(): see `alembic init` for how it looks."
            )
        raise ValueError(
            f"The project has several databases. Say which get the tables, --database NAME, again for more: {databases}."
        )
    if IMPORT not in text:
        raise ValueError("The project's script.py.mako has no ${imports}: put it below its `import sqlalchemy as sa`.")


def _indented(text: str) -> str:
    """Return the text as the body of a function: the template indents its first line only."""
    lines = text.split("\n")  # not splitlines(): a name may hold other ends of lines
    return "\n".join([lines[0], *(f"    {line}" if line else "" for line in lines[1:])])
