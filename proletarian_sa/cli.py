"""The command `proletarian-sa`: a worker from an app factory."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from sqlalchemy import exc, make_url

from proletarian_sa.check import report
from proletarian_sa.cli_revision import needing_alembic, revision, table_options
from proletarian_sa.ddl import ddl as print_ddl
from proletarian_sa.dialects.schema_names import SCHEMAS_ARE_DATABASES
from proletarian_sa.errors import ProletarianError
from proletarian_sa.factory import WrongTargetError, load
from proletarian_sa.grants import grants as print_grants
from proletarian_sa.signals import EXIT_SIGNAL, NAMES
from proletarian_sa.version import __version__
from proletarian_sa.versions import latest
from proletarian_sa.worker import QueueWorker

if TYPE_CHECKING:
    from types import FrameType

    from sqlalchemy.engine import URL

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
@click.option("--wait-for-tables", is_flag=True, help="Wait for tables that are missing or of an older version, to be migrated.")
@click.option("--threads", type=click.IntRange(1), help="How many handlers run at the same time.")
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
    help="Used only if the application has not set up logging.",
)
def worker(target: str, queues: tuple[str, ...], threads: int | None, log_level: str, *, wait_for_tables: bool) -> None:
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
    options = {
        "queue": queues[0] if len(queues) == 1 else queues or None,
        "worker_threads": threads,
        "wait_for_tables": wait_for_tables or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    try:
        if given:
            queue_worker = queue_worker.with_options(**given)
        sys.exit(_run(queue_worker, signals))
    except (ProletarianError, ValueError, exc.SQLAlchemyError) as error:
        reason = getattr(error, "orig", None) or error
        _fail("\n".join([f"{type(reason).__name__}: {reason}", *getattr(error, "__notes__", ())]))


main.add_command(revision)


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
@table_options
@click.option("--uninstall", is_flag=True, help="Drop the two tables instead, with all jobs. The schema stays.")
@click.option(
    "--from",
    "start",
    type=click.IntRange(0),
    metavar="N",
    help="The version that the tables have, as proletarian-sa check says; 0: none.",
)
@click.option("--to", "end", type=click.IntRange(0), metavar="M", help="The version that they are to have. Default: the last.")
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
            with needing_alembic():
                from alembic_ext.proletarian_sa.body import Names  # noqa: PLC0415 - an optional dependency
                from alembic_ext.proletarian_sa.offline import statements  # noqa: PLC0415 - likewise
            text = statements(dialect, Names(**names), start, latest() if end is None else end)
        click.echo(text, nl=False)
    except (ProletarianError, ValueError) as error:
        raise click.UsageError(str(error)) from error


@main.command()
@click.option("--url", required=True, help="The SQLAlchemy URL of the database.")
@table_options
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
    """Counts the signals that ask to stop; ends the process at the second.

    Attributes:
        starting: The first one is a Ctrl-C: a database that does not answer would not let a worker start, nor stop.
    """

    def __init__(self) -> None:
        self.count = 0
        self.starting = False
        for name in NAMES:
            number = getattr(signal, name, None)
            if number is not None:
                # Set explicitly: as process 1 of a container the default action would be to ignore it.
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            os._exit(EXIT_SIGNAL + number)
        if self.starting:
            raise KeyboardInterrupt


def _run(queue_worker: QueueWorker, signals: _Signals) -> int:
    try:
        signals.starting = True
        if signals.count:
            return 0
        queue_worker.start()
        signals.starting = False
    except KeyboardInterrupt:
        queue_worker.stop()
        return 0
    while queue_worker.is_running and queue_worker.error is None and not signals.count:
        queue_worker.join(_LOOK)
    running = queue_worker.stop()
    for job in running:
        click.echo(f"cut off: {job!r}; it runs again after its lease", err=True)
    if queue_worker.error is not None:
        return EXIT_FAILED
    return EXIT_JOBS_CUT_OFF if running else 0


def _load(target: str) -> QueueWorker:
    """Import the worker, or call the factory; its processes, if it has any, do the same."""
    try:
        queue_worker: QueueWorker = load(target, QueueWorker, "a QueueWorker")
    except WrongTargetError as error:
        raise click.UsageError(str(error)) from error
    return queue_worker.with_options(factory=target) if queue_worker.executor == "process" else queue_worker


def _fail(message: str) -> NoReturn:
    click.echo(f"proletarian-sa worker: {message}", err=True)
    sys.exit(EXIT_FAILED)
