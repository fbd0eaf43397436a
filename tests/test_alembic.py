"""The revision: written by one command, run by plain `alembic upgrade head`, the same tables as the models."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import alembic
import pytest
import sqlalchemy as sa
from alembic.config import Config
from click.testing import CliRunner

from alembic_ext.proletarian_sa import write_revision as write_our_revision
from proletarian_sa import DatabaseIds, Job, JobIds, JobTables, check_tables, create_all, drop_all, enqueue, process_next_job
from proletarian_sa.cli import main
from tests.catalogue import catalogue

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

ENV_URL = "config.set_main_option('sqlalchemy.url', __import__('os').environ['APP_DATABASE_URL'].replace('%', '%%'))\n"


@pytest.fixture
def project(tmp_path: Path, database: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a fresh Alembic project of an application on the database."""
    monkeypatch.setenv("APP_DATABASE_URL", database.url_text)
    monkeypatch.chdir(tmp_path)
    alembic.command.init(Config("alembic.ini"), "migrations")
    env = tmp_path / "migrations" / "env.py"
    # Logging is left to pytest.
    text = env.read_text().replace("config = context.config\n", f"config = context.config\n{ENV_URL}")
    env.write_text(
        text.replace("fileConfig(config.config_file_name)", "config.get_main_option('sqlalchemy.url')")
    )  # logging is pytest's
    return tmp_path


def run_alembic(command: str, *arguments: Any, **options: Any) -> str:
    """Run an Alembic command, and return what it prints."""
    printed = io.StringIO()
    config = Config("alembic.ini", stdout=printed, output_buffer=printed)
    getattr(alembic.command, command)(config, *arguments, **options)
    return printed.getvalue()


def write_revision(*options: str) -> Path:
    """Run our command in the project."""
    result = CliRunner().invoke(main, ["revision", *options])
    assert result.exit_code == 0, result.output
    (path,) = Path("migrations/versions").glob("*.py")
    return path


@pytest.mark.parametrize(("options", "job_ids"), [((), None), (("--job-ids", "database"), DatabaseIds())], ids=["uuid", "database"])
def test_upgrade_makes_the_models_tables(
    project: Path, engine: Engine, database: Any, options: tuple[str, ...], job_ids: JobIds | None
) -> None:
    """What the revision creates is what the models say, column by column and index by index, whoever makes the ids."""
    tables = JobTables(job_ids=job_ids)
    write_revision(*options)
    run_alembic("upgrade", "head")
    by_revision = catalogue(engine, tables)
    drop_all(engine, tables=tables)
    create_all(engine, tables=tables)

    assert catalogue(engine, tables) == by_revision


def test_ids_of_the_database_are_numbered_in_the_tables_of_a_revision(project: Path, engine: Engine) -> None:
    """With `--job-ids database` the database numbers the jobs, and never gives a number again."""
    write_revision("--job-ids", "database")
    run_alembic("upgrade", "head")
    tables = JobTables(job_ids=DatabaseIds())
    ids = []
    for _ in range(2):
        with engine.begin() as connection:
            ids.append(enqueue(connection, "greet", tables=tables))
        process_next_job(engine, lambda job_type, payload: None, tables=tables)
    with engine.connect() as connection:
        done = list(connection.scalars(sa.select(tables.archived_job.c.job_id).order_by("job_id")))

    assert ids == done
    assert ids[0] < ids[1]


def test_other_makers_of_ids_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command takes `uuid` and `database`, the function likewise; a strategy of one's own has a revision of one's own."""
    monkeypatch.chdir(tmp_path)
    config = Config("alembic.ini")
    alembic.command.init(config, "migrations")
    result = CliRunner().invoke(main, ["revision", "--job-ids", "ulid"])

    assert 2 == result.exit_code
    assert "'ulid' is not one of 'uuid', 'database'" in result.output
    with pytest.raises(ValueError, match="job_ids must be one of uuid, database, not 'ulid'"):
        write_our_revision(config, job_ids="ulid")


def test_installed_tables_serve_jobs(project: Path, engine: Engine) -> None:
    """After `alembic upgrade head`, typed as a user does, a job can be enqueued and run, and nothing is missing."""
    write_revision()
    command = [sys.executable, "-m", "alembic", "upgrade", "head"]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    check_tables(engine)
    with engine.begin() as connection:
        enqueue(connection, "greet", {"to": "Ada"})
    seen: list[Any] = []
    process_next_job(engine, lambda job_type, payload: seen.append((job_type, payload)))

    assert [("greet", {"to": "Ada"})] == seen


def test_downgrade_drops_only_ours_and_can_be_repeated(project: Path, engine: Engine) -> None:
    """Up, down to base and up again, twice, with jobs in the tables and another table beside them."""
    write_revision()
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE other_table (id INTEGER)"))
    for _ in range(2):
        run_alembic("upgrade", "head")
        with engine.begin() as connection:
            enqueue(connection, "greet")
        run_alembic("downgrade", "base")
        left = sa.inspect(engine).get_table_names()

        assert {"other_table", "alembic_version"} == set(left)


def test_interrupted_upgrade_is_run_again(project: Path, engine: Engine, database: Any) -> None:
    """Where DDL is committed statement by statement, a second run makes what is missing and leaves what is there."""
    write_revision()
    create_all(engine)
    tables = Job.job_tables
    index = next(index for index in tables.job.indexes if index.name == "job_queue_process_at")
    with engine.begin() as connection:
        index.drop(connection)
        tables.archived_job.drop(connection)
    run_alembic("upgrade", "head")
    names = {name for table in catalogue(engine, tables).values() for name, *_ in table["indexes"]}

    assert {"job_queue_process_at", "job_unique_key", "archived_job_finished_at"} == names


def test_revision_is_chained_to_the_projects_head(project: Path, engine: Engine) -> None:
    """The revision follows the project's own, and `upgrade head` runs both."""
    run_alembic("revision", "first")
    (first,) = Path("migrations/versions").glob("*.py")
    result = CliRunner().invoke(main, ["revision", "-m", "queue tables"])
    run_alembic("upgrade", "head")

    assert result.exit_code == 0, result.output
    assert "queue_tables.py" in result.output
    assert first.name.split("_")[0] in run_alembic("history")
    check_tables(engine)


def test_names_of_ones_own_are_literals(project: Path, engine: Engine) -> None:
    """Schema and table names given to the command stand in the revision, and `JobTables` with the same names finds them."""
    text = write_revision("--schema", "queue_schema", "--job-table", "q_job", "--archived-job-table", "q_done").read_text()
    tables = JobTables(schema="queue_schema", job_table="q_job", archived_job_table="q_done")
    try:
        run_alembic("upgrade", "head")
        check_tables(engine, tables=tables)
    finally:
        run_alembic("downgrade", "base")
        if engine.dialect.name in ("mysql", "mariadb"):  # a schema there is a database beside the test's own
            with engine.begin() as connection:
                connection.execute(sa.schema.DropSchema("queue_schema"))

    assert '"q_job"' in text
    assert '"queue_schema"' in text


def test_offline_script_has_everything(project: Path, database: Any) -> None:
    """`alembic upgrade head --sql` needs no connection for our part and prints every table and index."""
    write_revision()
    script = run_alembic("upgrade", "head", sql=True)

    for name in ("job", "archived_job", "job_queue_process_at", "job_unique_key", "archived_job_finished_at"):
        assert name in script


def test_outside_a_project_the_message_says_where_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an alembic.ini the command says what to type."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["revision"])

    assert 2 == result.exit_code
    assert "alembic init migrations" in result.output


def test_a_file_that_is_no_alembic_ini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that cannot be read is a short error that names it, without a traceback."""
    monkeypatch.chdir(tmp_path)
    Path("other.ini").write_text("no section")
    result = CliRunner().invoke(main, ["revision", "-c", "other.ini"])

    assert 1 == result.exit_code
    assert result.output.startswith("Error: other.ini is no alembic.ini: File contains no section headers.")


def test_with_several_databases_one_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the multidb template a revision that would install nothing is refused, and not left behind."""
    monkeypatch.chdir(tmp_path)
    alembic.command.init(Config("alembic.ini"), "migrations", template="multidb")
    for databases in ([], ["nosuch"], ["engine1", "nosuch"]):
        failed = CliRunner().invoke(main, ["revision", *(f"--database={name}" for name in databases)])
        assert 1 == failed.exit_code
        assert "Say which get the tables, --database NAME, again for more: engine1, engine2." in failed.output
    assert [] == list(Path("migrations/versions").glob("*.py"))

    written = CliRunner().invoke(main, ["revision", "--database", "engine1", "--database", "engine2"])
    assert 0 == written.exit_code, written.output
    (path,) = Path("migrations/versions").glob("*.py")
    assert 4 == path.read_text().count("op.create_table(")


def test_several_heads_are_alembics_own_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several heads the command fails with Alembic's message, and `--head` chooses."""
    monkeypatch.chdir(tmp_path)
    config = Config("alembic.ini")
    alembic.command.init(config, "migrations")
    first = alembic.command.revision(config, "one")
    alembic.command.revision(config, "two", head="base", splice=True)
    failed = CliRunner().invoke(main, ["revision"])
    chosen = CliRunner().invoke(main, ["revision", "--head", first.revision])

    assert 1 == failed.exit_code
    assert "heads" in failed.output
    assert chosen.exit_code == 0, chosen.output
