"""The command `proletarian-sa revision`: a revision in the user's own Alembic project."""

from __future__ import annotations

import configparser
import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from proletarian_sa.ddl import JOB_IDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from alembic.config import Config

    _Command = Callable[..., Any]

_INI: Final = "alembic.ini"
_TOML: Final = "pyproject.toml"
_TABLES: Final = {"schema": "proletarian", "job_table": "job", "archived_job_table": "archived_job", "job_ids": "uuid"}


def table_options(command: _Command) -> _Command:
    """Add the options that say which tables."""
    for option in (
        click.option(
            "--job-ids",
            type=click.Choice(list(JOB_IDS)),
            default="uuid",
            show_default=True,
            help="Who makes them: the application, or the database (DatabaseIds).",
        ),
        click.option("--archived-job-table", default="archived_job", show_default=True, help="As in JobTables."),
        click.option("--job-table", default="job", show_default=True, help="As in JobTables."),
        click.option(
            "--schema",
            default="proletarian",
            show_default=True,
            help="As in JobTables: the default is used on PostgreSQL only; '' for none.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def needing_alembic() -> Iterator[None]:
    """Explain that a command needs Alembic."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(f"{error}. Install Alembic: pip install 'proletarian-sa[alembic]'") from error


@click.command()
@click.option("-c", "--config", "given", envvar="ALEMBIC_CONFIG", help=f"The project's {_INI} or {_TOML}, if it is not here.")
@click.option("-n", "--name", "section", default="alembic", show_default=True, help=f"The section of {_INI}.")
@click.option("-m", "--message", help="Default: what the revision does.")
@click.option("--head", default="head", show_default=True, help="What to chain to, where there are several heads.")
@click.option("--version-path", help="The folder to write into, where there are several.")
@click.option(
    "--database", "databases", multiple=True, help="With the multidb template: a database that gets the tables; again for more."
)
@click.option("--adopt", is_flag=True, help="Take over the tables of Proletarian, the Clojure library, with their jobs.")
@click.option(
    "--from",
    "start",
    type=click.IntRange(0),
    metavar="N",
    help="The version that the tables have then, if your revisions were squashed; 0: none.",
)
@table_options
@click.pass_context
def revision(context: click.Context, /, given: str | None, section: str, **options: Any) -> None:
    """Write an Alembic revision that installs or upgrades the tables into your own project.

    Review it, then run: alembic upgrade head
    """
    with needing_alembic():
        from alembic.script import ScriptDirectory  # noqa: PLC0415 - an optional dependency
        from alembic.util import CommandError  # noqa: PLC0415 - likewise

        from alembic_ext.proletarian_sa import write_revision  # noqa: PLC0415 - likewise
    options["schema"] = options["schema"] or None
    try:
        config = _config(given, section)
        path = write_revision(config, **options)
        directory = ScriptDirectory.from_config(config)
    except configparser.InterpolationError as error:
        raise click.ClickException(f"{given or _INI}: {error}. A percent sign is written %% there.") from error
    except configparser.Error as error:
        raise click.ClickException(f"{given or _INI} is no alembic.ini: {error}") from error
    except (CommandError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"Nothing is written: {error}") from error
    words = ["alembic"]
    if context.get_parameter_source("given") is click.core.ParameterSource.COMMANDLINE:
        words += ["-c", str(given)]
    words += ["-n", section] if section != "alembic" else []
    words += ["upgrade", "head" if len(directory.get_heads()) == 1 else "heads"]
    click.echo(f"Wrote {path}. Review it, then run: {shlex.join(words)}")
    _advise(Path(directory.env_py_location), **options)


def _config(given: str | None, section: str) -> Config:
    """Find the project as Alembic's own command does, which takes two files and passes over those that are not there."""
    from alembic import __version__  # noqa: PLC0415 - an optional dependency
    from alembic.config import Config  # noqa: PLC0415 - likewise

    is_toml = given is not None and Path(given).name == _TOML
    ini, toml = (_INI, given) if is_toml else (given or _INI, _TOML)
    config = Config(ini, ini_section=section)
    reads_toml = hasattr(config, "toml_file_name")
    if reads_toml:
        config.toml_file_name = toml
    elif is_toml:
        raise click.UsageError(f"Alembic {__version__} does not read {_TOML}: give -c {_INI}, or upgrade it to 1.16.")
    if given is not None and not Path(given).is_file():
        raise click.UsageError(
            f"There is no file {given}. By -c PATH, or ALEMBIC_CONFIG, say where the project's {_INI} or {_TOML} is."
        )
    try:
        described = config.toml_alembic_config if reads_toml else {}
    except ValueError as error:
        raise click.ClickException(f"{toml} is no TOML: {error}") from error
    if not Path(ini).is_file() and not described:
        raise click.UsageError(
            f"There is no {ini} here. Go to your Alembic project, or give -c PATH; a new one: alembic init migrations"
        )
    try:
        settings = config.file_config
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{ini} is no text in the encoding of this system: {error}") from error
    if not (described.get("script_location") or settings.get(section, "script_location", fallback=None)):
        raise click.UsageError(
            f"{ini} has no script_location in a section [{section}]. Another section: -n NAME. A project that is described in "
            f"{_TOML}: -c PATH/{_TOML}"
        )
    return config


def _advise(environment: Path, *, databases: tuple[str, ...], **names: Any) -> None:
    """Say what env.py lacks."""
    if not environment.is_file() or b"alembic_ext.proletarian_sa" in environment.read_bytes():
        return
    tables = "" if _TABLES.items() <= names.items() else ", tables=tables"
    metadatas = [f"target_metadata[{name!r}]" for name in databases] or ["target_metadata"]
    lines = [f"register({metadata}{tables})" for metadata in metadatas]
    click.echo(
        f"So that alembic revision --autogenerate does not drop the tables, add to {environment}, below target_metadata:\n"
        "    from alembic_ext.proletarian_sa import register\n    " + "\n    ".join(lines)
    )
    if tables:
        click.echo("where tables is the application's JobTables.")
