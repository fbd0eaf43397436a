"""Write a revision into the user's own Alembic project."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from alembic.script import ScriptDirectory
from alembic.util import CommandError, rev_id

from alembic_ext.proletarian_sa.body import DEFAULT_SCHEMA, IMPORTS, ORIGINAL, Names, body, versions_written
from alembic_ext.proletarian_sa.new_file import check_written, explained, source, whole_or_nothing
from proletarian_sa.versions import latest

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import Script

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
    start: int | None = None,
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
        start: The version that the tables have then, 0 for none, if the revisions do not say: because they were squashed.

    Returns:
        The path of the new file.

    Raises:
        ValueError: There are no such `job_ids`, no such names of tables, or no such databases in the project; or a revision
            that does it is there; or several heads, and none is given; or the project's settings or template are in the way.
        CommandError: Alembic's own: no such project, no such head.
        OSError: A file cannot be read or written. Whatever is raised, nothing is left behind.

    **Transaction:** nothing: reads and writes files.
    """
    names = Names(schema, job_table, archived_job_table, job_ids)
    if adopt and job_ids != "uuid":
        raise ValueError("The tables of Proletarian have UUIDs: leave job_ids out, or adopt.")
    if start is not None and (adopt or start < 0):
        raise ValueError("A version, 0 for none, is one of our tables: to adopt those of Proletarian give none.")
    directory = ScriptDirectory.from_config(config)
    directory.messaging_opts = {"quiet": True}  # it says "done" before the file is looked at
    functions = [f"upgrade_{name}" for name in databases] or ["upgrade"]
    starts = _starts(_revisions(directory), names, functions, adopt=adopt) if start is None else dict.fromkeys(functions, start)
    head = head or "head"
    _check_head(directory, head)
    bodies = {name: (body(names, start, latest()), body(names, latest(), start)) for name, start in starts.items()}
    arguments: dict[str, Any] = {"imports": "\n".join(IMPORTS), "config": config}
    first_up, first_down = next(iter(bodies.values()))
    arguments |= {"upgrades": _indented(first_up), "downgrades": _indented(first_down)}
    for function, (up, down) in bodies.items():
        prefix = function.removeprefix("upgrade").lstrip("_")
        prefix = f"{prefix}_" if prefix else ""
        arguments |= {f"{prefix}upgrades": _indented(up), f"{prefix}downgrades": _indented(down)}
    text = _in_docstring(message or _message(next(iter(starts.values()))))
    revision = rev_id()
    with whole_or_nothing(directory, revision) as before:
        with explained():
            script = directory.generate_revision(revision, text, head=head, version_path=version_path, refresh=True, **arguments)
        if script is None:
            raise ValueError("Alembic takes the name that file_template gives for no revision: it must end in .py.")
        path = Path(script.path)
        if path in before:
            raise ValueError(f"file_template gives the new revision the name of {path}, which is there. Give another -m MESSAGE.")
        check_written(script, names, bodies.keys(), config)
    return path


def _revisions(directory: ScriptDirectory) -> list[Script]:
    """Import all revisions of the project, as Alembic does.

    Raises:
        ValueError: One cannot be.
    """
    try:
        return list(directory.walk_revisions())
    except CommandError:
        raise
    except Exception as error:
        places = tuple(str(place) for place in directory._version_locations)
        files = [getattr(error, "filename", None), *(frame.filename for frame in traceback.extract_tb(error.__traceback__))]
        where = next((f" {file}" for file in files if file and file.startswith(places)), "s")
        raise ValueError(
            f"The project's revision{where} cannot be imported: {type(error).__name__}: {error}. "
            "First this must work: alembic history"
        ) from error


def _check_head(directory: ScriptDirectory, head: str) -> None:
    """Raise with the heads that there are, unless it is clear what to chain to."""
    heads = directory.get_heads()
    if head == "head" and len(heads) > 1:
        raise ValueError(f"The project has several heads. Say which gets the tables, --head REVISION: {_listed(directory, heads)}.")
    try:
        chosen = directory.get_revisions(head)
    except CommandError as error:
        raise ValueError(f"--head {head}: {error}. The project's heads: {_listed(directory, heads) or 'none'}.") from error
    if head != "base" and any(revision is not None and not revision.is_head for revision in chosen):
        raise ValueError(f"--head {head} is no head: other revisions follow. The project's heads: {_listed(directory, heads)}.")


def _listed(directory: ScriptDirectory, heads: list[str]) -> str:
    return ", ".join(f"{head} ({Path(directory.get_revision(head).path).name})" for head in heads)


def _starts(revisions: list[Script], names: Names, functions: list[str], *, adopt: bool) -> dict[str, int]:
    """Return from which version each function is to start.

    Raises:
        ValueError: There is nothing to do for one.
    """
    written: dict[str, tuple[int, str]] = {}
    for revision in revisions:
        found = versions_written(source(Path(revision.path)), names)
        for function, version in found.items():
            written[function] = max(written.get(function, (0, "")), (version, Path(revision.path).name))
    starts = {function: written[function][0] if function in written else 0 for function in functions}
    done = {function: written[function][1] for function, start in starts.items() if start >= (1 if adopt else latest())}
    if done:
        what = "The tables are taken over or installed" if adopt else f"The tables have version {latest()}, the last,"
        where = ", ".join(_spelled(file, function) for function, file in done.items())
        raise ValueError(
            f"{what} by {where}: there is nothing to write. Run: alembic upgrade head. For tables of other names give --schema, "
            "--job-table and --archived-job-table."
        )
    return {function: ORIGINAL if adopt else start for function, start in starts.items()}


def _spelled(file: str, function: str) -> str:
    database = function.removeprefix("upgrade").lstrip("_")
    return f"{file} (--database {database})" if database else file


def _in_docstring(message: str) -> str:
    """Return the message as it must stand between three double quotes, which is where a template puts it."""
    if any("\ud800" <= character <= "\udfff" for character in message):
        raise ValueError(f"The message {message!r} is not text: a byte of it is of another encoding.")
    text = message.replace("\\", "\\\\")
    return text.replace('"', '\\"') if '"""' in text or text.endswith('"') else text


def _message(start: int) -> str:
    if start == 0:
        return INSTALL
    return (
        "take over the tables of Proletarian"
        if start == ORIGINAL
        else f"upgrade the tables of proletarian-sa to version {latest()}"
    )


def _indented(text: str) -> str:
    """Return the text as the body of a function: the template indents its first line only."""
    lines = text.split("\n")  # not splitlines(): a name may hold other ends of lines
    return "\n".join([lines[0], *(f"    {line}" if line else "" for line in lines[1:])])
