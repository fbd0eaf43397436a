"""The command `proletarian-sa`: a worker from an app factory."""

from __future__ import annotations

import configparser
import importlib
import inspect
import logging
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from sqlalchemy import exc, make_url

from proletarian_sa.check import report
from proletarian_sa.ddl import JOB_IDS
from proletarian_sa.ddl import ddl as print_ddl
from proletarian_sa.dialects.schema_names import SCHEMAS_ARE_DATABASES
from proletarian_sa.errors import ProletarianError
from proletarian_sa.grants import grants as print_grants
from proletarian_sa.signals import EXIT_SIGNAL, NAMES
from proletarian_sa.version import __version__
from proletarian_sa.versions import latest
from proletarian_sa.worker import QueueWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from sqlalchemy.engine import URL

    _Command = Callable[..., Any]

EXIT_FAILED: Final = 1
EXIT_JOBS_CUT_OFF: Final = 3
_LOOK: Final = 0.1  # seconds between looks at whether a signal came


@click.group()
@click.version_option(__version__, prog_name="proletarian-sa")
def main() -> None:
    """Run durable jobs from the application's own database."""


@main.command()
@click.argument("target", metavar="MODULE:NAME")
@click.option("--queue", "queues", multiple=True, help="Which queue, instead of the worker's own; again for more, in strict order.")
@click.option("--threads", type=click.IntRange(1), help="How many handlers run at the same time.")
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
    help="Used only if the application has not set up logging.",
)
def worker(target: str, queues: tuple[str, ...], threads: int | None, log_level: str) -> None:
    """Run the worker that MODULE:NAME is, or returns.

    NAME is a QueueWorker, or a function without arguments that returns one: the app factory. The first SIGTERM or SIGINT lets
    running jobs finish, the second ends the process at once.

    Exit codes: 0 after a clean stop, 1 after a fatal error, 2 for a wrong command line, 3 when running jobs were cut off, 128 + n
    after a second signal n.
    """
    signals = _Signals()
    queue_worker = _load(target)
    if not logging.getLogger().handlers:
        logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    options = {"queue": queues[0] if len(queues) == 1 else queues or None, "worker_threads": threads}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        if given:
            queue_worker = queue_worker.with_options(**given)
        sys.exit(_run(queue_worker, signals))
    except (ProletarianError, ValueError, exc.SQLAlchemyError) as error:
        reason = getattr(error, "orig", None) or error
        _fail(f"{type(reason).__name__}: {reason}")


def _table_options(command: _Command) -> _Command:
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


@main.command()
@click.option(
    "-c", "--config", "ini", envvar="ALEMBIC_CONFIG", default="alembic.ini", show_default=True, help="The project's alembic.ini."
)
@click.option("-n", "--name", "section", default="alembic", show_default=True, help="The section of alembic.ini.")
@click.option("-m", "--message", help="Default: what the revision does.")
@click.option("--head", default="head", show_default=True, help="What to chain to, where there are several heads.")
@click.option("--version-path", help="The folder to write into, where there are several.")
@click.option(
    "--database", "databases", multiple=True, help="With the multidb template: a database that gets the tables; again for more."
)
@click.option("--adopt", is_flag=True, help="Take over the tables of Proletarian, the Clojure library, with their jobs.")
@_table_options
def revision(ini: str, section: str, **options: Any) -> None:
    """Write an Alembic revision that installs or upgrades the tables into your own project.

    Review it, then run: alembic upgrade head
    """
    with _alembic():
        from alembic.config import Config  # noqa: PLC0415 - an optional dependency
        from alembic.util import CommandError  # noqa: PLC0415 - likewise

        from alembic_ext.proletarian_sa import write_revision  # noqa: PLC0415 - likewise
    config = Config(ini, ini_section=section)
    if hasattr(config, "toml_file_name"):  # from Alembic 1.16 on, the project may be described there
        config.toml_file_name = "pyproject.toml"
    if not Path(ini).exists() and not getattr(config, "toml_alembic_config", None):
        raise click.UsageError(
            f"There is no {ini} here. Go to your Alembic project, or give -c PATH; a new one: alembic init migrations"
        )
    try:
        options["schema"] = options["schema"] or None
        path = write_revision(config, **options)
    except configparser.Error as error:
        raise click.ClickException(f"{ini} is no alembic.ini: {error}") from error
    except (CommandError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Wrote {path}. Review it, then run: alembic upgrade head")
    environment = path.parent.parent / "env.py"
    if environment.exists() and "alembic_ext.proletarian_sa" not in environment.read_text(encoding="utf-8"):
        click.echo(
            f"So that alembic revision --autogenerate does not drop the tables, add to {environment}:\n"
            "    from alembic_ext.proletarian_sa import register\n"
            "    register(target_metadata)"
        )


@contextmanager
def _alembic() -> Iterator[None]:
    """Explain that a command needs Alembic."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(f"{error}. Install Alembic: pip install 'proletarian-sa[alembic]'") from error


@main.command()
@click.option("--dialect", metavar="NAME", help="postgresql, mysql or mariadb.")
@click.option("--url", help="Instead, a SQLAlchemy URL, for its dialect and database. Nothing is connected.")
@click.option("--role", metavar="NAME", help="A role for workers, and for applications that enqueue, read and run jobs.")
@click.option("--enqueue-role", metavar="NAME", help="A role for applications that enqueue and do nothing else.")
@click.option("--create-role", is_flag=True, help="Create the roles, too; with --revoke, drop them.")
@click.option("--revoke", is_flag=True, help="Take the rights away.")
@click.option("--schema", default="proletarian", show_default=True, help="As in JobTables; '' for none.")
@click.option("--job-table", default="job", show_default=True, help="As in JobTables.")
@click.option("--archived-job-table", default="archived_job", show_default=True, help="As in JobTables.")
@click.option("--database", metavar="NAME", help="MySQL and MariaDB: the database that has the tables.")
@click.option("--host", default="%", show_default=True, help="MySQL and MariaDB: from where the accounts connect; '' for roles.")
def grants(dialect: str | None, url: str | None, **options: Any) -> None:
    """Print the SQL that gives roles their rights on the tables. Nothing is executed.

    Read it, then let the owner of the tables or an administrator run it:

        proletarian-sa grants --dialect postgresql --role worker | psql DATABASE
    """
    if (dialect is None) == (url is None):
        raise click.UsageError("Give either --dialect NAME or --url URL.")
    if url is not None:
        try:
            parsed = make_url(url)
        except (exc.ArgumentError, ValueError) as error:  # without its words: they may hold the password
            raise click.UsageError("--url is no SQLAlchemy URL, such as postgresql+psycopg://localhost/app") from error
        dialect = parsed.get_backend_name()
        if dialect in SCHEMAS_ARE_DATABASES and options["database"] is None:
            options["database"] = parsed.database
    options["schema"] = options["schema"] or None
    try:
        click.echo(print_grants(str(dialect), **options), nl=False)
    except (ProletarianError, ValueError) as error:
        raise click.UsageError(str(error)) from error


@main.command()
@click.option("--dialect", required=True, metavar="NAME", help="postgresql, mysql, mariadb or sqlite.")
@_table_options
@click.option("--uninstall", is_flag=True, help="Drop the two tables instead, with all jobs. The schema stays.")
@click.option(
    "--from", "start", type=int, metavar="N", help="The version that the tables have, as proletarian-sa check says; 0: none."
)
@click.option("--to", "end", type=int, metavar="M", help="The version that they are to have. Default: the last.")
def ddl(dialect: str, start: int | None, end: int | None, *, uninstall: bool, **names: Any) -> None:
    """Print the SQL that creates, changes or drops the tables. Nothing is executed.

    Read it, then let the database's own client run it; without --from a second run changes nothing:

        proletarian-sa ddl --dialect postgresql | psql -v ON_ERROR_STOP=1 DATABASE
    """
    names["schema"] = names["schema"] or None
    if start is None and end is not None:
        raise click.UsageError("--to needs --from: which version the tables have, as proletarian-sa check says.")
    if start is not None and uninstall:
        raise click.UsageError("Give either --from and --to, or --uninstall.")
    try:
        if start is None:
            text = print_ddl(dialect, uninstall=uninstall, **names)
        else:
            with _alembic():
                from alembic_ext.proletarian_sa.body import Names  # noqa: PLC0415 - an optional dependency
                from alembic_ext.proletarian_sa.offline import statements  # noqa: PLC0415 - likewise
            text = statements(dialect, Names(**names), start, latest() if end is None else end)
        click.echo(text, nl=False)
    except (ProletarianError, ValueError) as error:
        raise click.UsageError(str(error)) from error


@main.command()
@click.option("--url", required=True, help="The SQLAlchemy URL of the database.")
@_table_options
def check(url: str, **names: Any) -> None:
    """Compare the tables in a database with what this version needs. Nothing is changed.

    Each difference is a line, followed by the SQL or the command that mends it: read it before you run it.

    Exit codes: 0 if the tables fit, 1 if they do not or the database cannot be asked, 2 for a wrong command line.
    """
    names["schema"] = names["schema"] or None
    parsed = None
    try:
        parsed = make_url(url)
        found = report(parsed, **names)
    except (exc.ArgumentError, ValueError, ImportError, ProletarianError, exc.SQLAlchemyError) as error:
        _refuse_check(parsed, error)
    if found:
        click.echo(found)
        sys.exit(EXIT_FAILED)
    click.echo(f"The tables in {parsed!r} fit proletarian-sa {__version__}: they have version {latest()}.")


def _refuse_check(url: URL | None, error: Exception) -> NoReturn:
    """Say why nothing could be compared."""
    if url is None or isinstance(error, exc.ArgumentError):  # without its words: they may hold the password
        raise click.UsageError("--url is no SQLAlchemy URL, such as postgresql+psycopg://localhost/app") from error
    if isinstance(error, ValueError):
        raise click.UsageError(str(error)) from error
    if isinstance(error, ImportError):
        raise click.UsageError(f"{error}. Install the driver: pip install 'proletarian-sa[{url.get_backend_name()}]'") from error
    if isinstance(error, ProletarianError):
        raise click.ClickException(str(error)) from error
    reason = " ".join(str(getattr(error, "orig", None) or error).split())
    raise click.ClickException(
        f"{url!r} cannot be asked. Is the server running, and are host, port, user and database right? {reason}"
    ) from error


class _Signals:
    """Counts the signals that ask to stop; ends the process at the second."""

    def __init__(self) -> None:
        self.count = 0
        for name in NAMES:
            number = getattr(signal, name, None)
            if number is not None:
                # Set explicitly: as process 1 of a container the default action would be to ignore it.
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            os._exit(EXIT_SIGNAL + number)


def _run(queue_worker: QueueWorker, signals: _Signals) -> int:
    if signals.count:
        return 0
    queue_worker.start()
    while queue_worker.is_running and queue_worker.error is None and not signals.count:
        queue_worker.join(_LOOK)
    running = queue_worker.stop()
    for job in running:
        click.echo(f"cut off: {job!r}; it runs again after its lease", err=True)
    if queue_worker.error is not None:
        return EXIT_FAILED
    return EXIT_JOBS_CUT_OFF if running else 0


def _load(target: str) -> QueueWorker:
    """Import the worker, or call the factory."""
    module_name, _, name = target.partition(":")
    if not module_name or not name or module_name.startswith("."):
        raise click.UsageError(f"{target!r} is not of the form MODULE:NAME, for example: proletarian-sa worker myapp:make_worker")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a string is what belongs there
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise click.UsageError(f"There is no module {error.name!r} in {os.getcwd()} or on the path.") from error  # noqa: PTH109 - see above
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"{module_name!r} has no {name!r}. Name a QueueWorker, or a function that returns one.")
        found = getattr(found, part)
    if not isinstance(found, QueueWorker) and callable(found):
        _check_factory(found, target)
        found = found()
    if not isinstance(found, QueueWorker):
        raise click.UsageError(f"{target} must be a QueueWorker, or a function that returns one; this is {found!r}.")
    return found


def _check_factory(factory: Callable[..., Any], target: str) -> None:
    try:
        signature = inspect.signature(factory)
    except ValueError:  # a builtin without a signature
        return
    try:
        signature.bind()
    except TypeError as error:
        raise click.UsageError(f"{target} takes {signature}. Name a QueueWorker, or a function without arguments.") from error


def _fail(message: str) -> NoReturn:
    click.echo(f"proletarian-sa worker: {message}", err=True)
    sys.exit(EXIT_FAILED)
