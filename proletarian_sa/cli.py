"""The command `proletarian-sa`: a worker from an app factory."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from sqlalchemy import exc, make_url

from proletarian_sa.aio.worker import AsyncQueueWorker
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

    from proletarian_sa.running import RunningJob

TURN: Final = 0.0005  # seconds
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
@click.option("--threads", type=click.IntRange(1), help="How many handlers run at the same time, by a QueueWorker.")
@click.option("--concurrency", type=click.IntRange(1), help="How many handlers run at the same time, by an AsyncQueueWorker.")
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
    help="Used only if the application has not set up logging.",
)
def worker(target: str, log_level: str, **options: Any) -> None:
    """Run the worker that MODULE:NAME is, or returns.

    NAME is a QueueWorker or an AsyncQueueWorker, or a function without arguments that returns one: the app factory, which may be
    `async def` for an AsyncQueueWorker. The first SIGTERM or SIGINT lets running jobs finish, the second ends the process at once.

    Exit codes: 0 after a clean stop, 1 after a fatal error, 2 for a wrong command line, 3 when running jobs were cut off, 128 + n
    after a second signal n.
    """
    signals = _Signals()
    take_short_turns()
    runner = asyncio.Runner()  # makes a loop when it has something to run
    queue_worker = _load(target, runner)
    given = _given(queue_worker, **options)
    if not logging.getLogger().handlers:
        logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    try:
        if given:
            queue_worker = queue_worker.with_options(**given)
        if isinstance(queue_worker, QueueWorker):
            running = _run(queue_worker, signals)
        else:
            running = runner.run(_run_async(queue_worker, signals))
            if not running:  # else it would wait for them
                runner.close()
    except (ProletarianError, ValueError, exc.SQLAlchemyError) as error:
        reason = getattr(error, "orig", None) or error
        _fail("\n".join([f"{type(reason).__name__}: {reason}", *getattr(error, "__notes__", ())]))
    for job in running:
        click.echo(f"cut off: {job!r}; it runs again after its lease", err=True)
    code = EXIT_FAILED if queue_worker.error is not None else EXIT_JOBS_CUT_OFF if running else 0
    if running and isinstance(queue_worker, AsyncQueueWorker):
        _end_now(code)
    sys.exit(code)


def take_short_turns() -> None:
    """Let the threads of this process change more often than Python does by itself: those that claim and record wait for handlers.

    They need the interpreter dozens of times for one large result, and handlers that only compute keep it for a whole turn.
    """
    sys.setswitchinterval(min(sys.getswitchinterval(), TURN))


def _given(
    queue_worker: QueueWorker | AsyncQueueWorker,
    *,
    queues: tuple[str, ...],
    threads: int | None,
    concurrency: int | None,
    wait_for_tables: bool,
) -> dict[str, Any]:
    """Return the worker's options that stand in the command line; refuse one that it does not have."""
    is_async = isinstance(queue_worker, AsyncQueueWorker)
    if is_async and threads is not None:
        raise click.UsageError(f"--threads is for a QueueWorker; this is an AsyncQueueWorker: --concurrency {threads}")
    if not is_async and concurrency is not None:
        raise click.UsageError(f"--concurrency is for an AsyncQueueWorker; this is a QueueWorker: --threads {concurrency}")
    options = {
        "queue": queues[0] if len(queues) == 1 else queues or None,
        "worker_threads": threads,
        "concurrency": concurrency,
        "wait_for_tables": wait_for_tables or None,
    }
    return {name: value for name, value in options.items() if value is not None}


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


def _run(queue_worker: QueueWorker, signals: _Signals) -> list[RunningJob]:
    try:
        signals.starting = True
        if signals.count:
            return []
        queue_worker.start()
        signals.starting = False
    except KeyboardInterrupt:
        queue_worker.stop()
        return []
    while queue_worker.is_running and queue_worker.error is None and not signals.count:
        queue_worker.join(_LOOK)
    return queue_worker.stop()


async def _run_async(queue_worker: AsyncQueueWorker, signals: _Signals) -> list[RunningJob]:
    if signals.count:
        return []
    starting = asyncio.create_task(queue_worker.start())
    while not starting.done() and not signals.count:
        await asyncio.wait([starting], timeout=_LOOK)
    starting.cancel()  # if a signal came: the database may not answer
    try:
        await starting
        while queue_worker.is_running and queue_worker.error is None and not signals.count:
            await queue_worker.join(_LOOK)
    except asyncio.CancelledError:
        if not signals.count:
            raise
    return await queue_worker.stop()


def _end_now(code: int) -> NoReturn:
    """End the process while threads are inside greenlets: the interpreter's own end may crash with them."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _load(target: str, runner: asyncio.Runner) -> QueueWorker | AsyncQueueWorker:
    """Import the worker, or call the factory; its processes, if it has any, do the same."""
    try:
        found: QueueWorker | AsyncQueueWorker = load(
            target, (QueueWorker, AsyncQueueWorker), "a QueueWorker or an AsyncQueueWorker", runner.run
        )
    except WrongTargetError as error:
        raise click.UsageError(str(error)) from error
    return found.with_options(factory=target) if isinstance(found, QueueWorker) and found.executor == "process" else found


def _fail(message: str) -> NoReturn:
    click.echo(f"proletarian-sa worker: {message}", err=True)
    sys.exit(EXIT_FAILED)
