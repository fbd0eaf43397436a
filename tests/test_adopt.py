"""`proletarian-sa revision --adopt`: the tables that the original's scripts made become ours, and go back."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.util import CommandError
from click.testing import CliRunner

from proletarian_sa import (
    JobTables,
    PlainJSON,
    QueueWorker,
    TablesForeign,
    check_tables,
    create_all,
    default_tables,
    drop_all,
    enqueue,
)
from proletarian_sa.cli import main
from tests.catalogue import catalogue, storage
from tests.checking import check
from tests.native_client import feed
from tests.original import Original
from tests.original_tables import MYSQL, contents, drop, fill, in_utc, make, shape, tables
from tests.queue_contents import archived, queued, run_due
from tests.test_alembic import project, run_alembic, write_revision  # noqa: F401 - a fixture among them

pytestmark = pytest.mark.long

ADVICE = "proletarian-sa revision --adopt"


@pytest.fixture
def original(project: Path, database: Any, engine: sa.Engine) -> sa.Engine:  # noqa: F811 - the fixture
    """Return an engine on tables of the original with jobs in them, and a project that is to take them over."""
    database.require("row_locks")  # the original cannot do without
    make(engine)
    fill(engine)
    write_revision("--adopt")
    return engine


def without_order(engine: sa.Engine, ours: JobTables = default_tables) -> dict[str, Any]:
    """Return the catalogue, whatever the order of columns."""
    return {name: {**table, "columns": sorted(table["columns"])} for name, table in catalogue(engine, ours).items()}


def left_by_the_original(engine: sa.Engine) -> dict[str, Any]:
    """Return the names of the original's columns, and its indexes."""
    indexes = {"job": {"job_queue_process_at": ["queue", "process_at"]}, "archived_job": {}}
    return {kind: ({column.name for column in table.c}, indexes[kind]) for kind, table in tables(engine).items()}


def elsewhere(database: Any, monkeypatch: pytest.MonkeyPatch, **also: str) -> None:
    """Let the project's sessions have another time zone."""
    mysql = database.url.get_backend_name() in MYSQL
    zone = {"init_command": "SET time_zone = '+05:30'"} if mysql else {"options": "-c TimeZone=Asia/Kolkata"}
    url = database.url.update_query_dict(zone | also)
    monkeypatch.setenv("APP_DATABASE_URL", url.render_as_string(hide_password=False))


def test_jobs_survive(original: sa.Engine, database: Any, monkeypatch: pytest.MonkeyPatch):
    """All jobs are there as before, ids, texts and moments, whatever the time zone of the session; again after the way back."""
    elsewhere(database, monkeypatch)
    before = contents(original)
    assert [4, 2] == [len(rows) for rows in before.values()]
    for command, target in (("upgrade", "head"), ("downgrade", "base"), ("upgrade", "head")):
        run_alembic(command, target)
        assert before == contents(original)


def test_tables_fit_exactly(original: sa.Engine, database: Any):
    """They are what `create_all` makes, but for the order of the columns; nothing asks for more."""
    run_alembic("upgrade", "head")
    adopted = without_order(original)
    result = check(database.url)
    check_tables(original)
    create_all(original)
    assert (0, 1) == (result.exit_code, result.output.count("\n")), result.output
    assert adopted == without_order(original)
    drop_all(original)
    create_all(original)

    assert adopted == without_order(original)


def test_our_worker_runs_their_jobs(original: sa.Engine):
    """Jobs that were due are run with the payload's text as the serializer reads it; attempts are counted on."""
    run_alembic("upgrade", "head")
    ours = JobTables(serializer=PlainJSON())
    ran = run_due(original, tables=ours)

    assert [({"to": "Ada"}, 1), ({"to": "Grace"}, 4)] == [(job.payload, job.attempts) for job in ran]
    assert [1, 5, 1, 4] == [row.attempts for row in archived(original, ours)]
    assert 2 == len(queued(original, ours))


def test_the_original_works_on_both(original: sa.Engine):
    """Before, after and after the way back a program of the original enqueues, takes, retries and archives."""
    program = Original(original)
    for command, target in ((None, ""), ("upgrade", "head"), ("downgrade", "base"), ("upgrade", "head")):
        if command:
            run_alembic(command, target)
        program.enqueue("greet", "[1]", "its-own")
        program.retry("its-own")
        assert "greet" == program.run("its-own")
        assert program.run("its-own") is None

    assert 2 + 4 == len(archived(original))


def test_the_way_back_leaves_what_the_original_has(original: sa.Engine):
    """After the downgrade there are its columns and index only, stored as before; what is said about its tables is said again."""
    run_alembic("upgrade", "head")
    with original.begin() as connection:
        enqueue(connection, "greet", [1])
    run_alembic("downgrade", "base")

    assert left_by_the_original(original) == {kind: (set(columns), indexes) for kind, (columns, indexes) in shape(original).items()}
    assert 5 == len(contents(original)["job"])
    with original.connect() as connection:
        assert [] == storage(connection, "job", tables(original)["job"].schema)
    with pytest.raises(TablesForeign, match=ADVICE):
        check_tables(original)


def test_offline_script_does_the_same(original: sa.Engine, database: Any):
    """What `--sql` prints, run by the database's own client, makes of the tables what the online run makes, and back."""
    before = contents(original)
    feed(database, run_alembic("upgrade", "head", sql=True))
    offline, rows = catalogue(original, default_tables), contents(original)
    feed(database, run_alembic("downgrade", "head:base", sql=True))
    back = shape(original)
    drop(original)
    make(original)
    run_alembic("upgrade", "head")

    assert offline == catalogue(original, default_tables)
    assert before == rows
    run_alembic("downgrade", "base")
    assert back == shape(original)


@pytest.mark.parametrize("name", ["50% $job\"'\\", "Очередь.a"])
def test_names_of_ones_own(project: Path, database: Any, engine: sa.Engine, name: str):  # noqa: F811 - the fixture
    """With another schema and any names, the index called as in the scripts, the same tables are taken over, and go back."""
    database.require("row_locks")
    names = {"job": name, "archive": f"{name}_d", "schema": database.create_schema()}
    make(engine, **names)
    fill(engine, **names)
    before = contents(engine, **names)
    options = ["--schema", names["schema"], "--job-table", name, "--archived-job-table", f"{name}_d"]
    ours = JobTables(schema=names["schema"], job_table=name, archived_job_table=f"{name}_d")
    with pytest.raises(TablesForeign) as refused:
        check_tables(engine, tables=ours)
    assert f"{shlex.join(['proletarian-sa', 'revision', *options])} --adopt, then alembic upgrade head" in str(refused.value)
    write_revision("--adopt", *options)
    for command, target in (("upgrade", "head"), ("downgrade", "base"), ("upgrade", "head")):
        run_alembic(command, target)
        assert before == contents(engine, **names)
    adopted = without_order(engine, ours)
    result = check(database.url, *options)

    assert 0 == result.exit_code, result.output
    drop_all(engine, tables=ours)
    create_all(engine, tables=ours)
    assert adopted == without_order(engine, ours)


def test_registered_tables_are_silent_once_taken_over(original: sa.Engine, project: Path):  # noqa: F811 - the fixture
    """Autogenerate refuses the original's tables by name; once taken over, `alembic check` finds nothing to do."""
    env = project / "migrations" / "env.py"
    registered = (
        "from alembic_ext.proletarian_sa import register\nfrom sqlalchemy import MetaData\ntarget_metadata = register(MetaData())"
    )
    env.write_text(env.read_text().replace("target_metadata = None", registered))
    (revision,) = (project / "migrations" / "versions").glob("*.py")
    text = revision.read_text()
    revision.unlink()
    with pytest.raises(CommandError, match=ADVICE):
        run_alembic("revision", "generated", autogenerate=True)
    assert [] == list((project / "migrations" / "versions").glob("*.py"))

    revision.write_text(text)
    run_alembic("upgrade", "head")
    assert "No new upgrade operations detected." in run_alembic("check")


def test_whoever_meets_them_names_the_command(original: sa.Engine, database: Any):
    """`check`, a worker's start and `create_all` say whose tables these are and what to type; `check` says nothing else."""
    result = check(database.url)
    place = "proletarian." if original.dialect.name == "postgresql" else ""
    whose = "the table was made by the scripts of Proletarian, the Clojure library."

    assert (1, [f"{place}job: {whose}", f"{place}archived_job: {whose}", f"    {ADVICE}"]) == (
        result.exit_code,
        result.output.splitlines(),
    )
    with pytest.raises(TablesForeign, match=ADVICE):
        create_all(original)
    with pytest.raises(TablesForeign, match=ADVICE):
        QueueWorker(original, lambda *_: None).start()


def test_taken_over_once(original: sa.Engine):
    """The command refuses to write a second such revision, before and after it was run; so does the one that would install."""
    for _ in range(2):
        result = CliRunner().invoke(main, ["revision", "--adopt"])
        assert 1 == result.exit_code
        assert "there is nothing to write. Run: alembic upgrade head" in result.output
        run_alembic("upgrade", "head")
    assert 1 == CliRunner().invoke(main, ["revision"]).exit_code


def test_tables_that_are_ours_stay(original: sa.Engine):
    """Where the tables are ours already, the revision changes nothing."""
    drop(original)
    create_all(original)
    with original.begin() as connection:
        enqueue(connection, "greet", [1])
    before, rows = catalogue(original, default_tables), queued(original)
    run_alembic("upgrade", "head")

    assert before == catalogue(original, default_tables)
    assert rows == queued(original)


@pytest.mark.parametrize("table", ["job", "archived_job"])
@pytest.mark.parametrize("what", ["missing", "foreign"])
def test_tables_of_others_are_refused(original: sa.Engine, table: str, what: str):
    """A table that is not there, or is somebody else's, is named before anything is changed."""
    place = tables(original)[table].fullname
    with original.begin() as connection:
        connection.exec_driver_sql(
            f"DROP TABLE {place}" if what == "missing" else f"ALTER TABLE {place} RENAME COLUMN job_type TO kind"
        )
    before = shape(original)
    with pytest.raises(CommandError) as refused:
        run_alembic("upgrade", "head")

    assert f"{table} is no table of Proletarian, the Clojure library: there is no column " in str(refused.value)
    assert "job_type" in str(refused.value)
    assert str(refused.value).endswith("Nothing was changed. For new tables delete this revision, then: proletarian-sa revision")
    assert before == shape(original)


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("there", [False, True], ids=["no tables", "such tables"])
@pytest.mark.parametrize("offline", [False, True], ids=["online", "offline"])
def test_a_database_where_the_original_never_ran(project: Path, engine: sa.Engine, there: bool, offline: bool):  # noqa: F811 - the fixture
    """On SQLite the revision is refused, as printed SQL too, before anything is changed."""
    if there:
        make(engine)
    before = shape(engine)
    write_revision("--adopt")
    with pytest.raises(CommandError, match="In this sqlite database job is no table of Proletarian") as refused:
        run_alembic("upgrade", "head", sql=offline)

    assert "delete this revision, then: proletarian-sa revision" in str(refused.value)
    assert before == shape(engine)


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_such_tables_where_the_original_never_ran(engine: sa.Engine):
    """On SQLite nobody is told to take over tables that merely have the same columns."""
    make(engine)
    with pytest.raises(TablesForeign, match="is not a table of proletarian-sa: it has no column") as refused:
        check_tables(engine)

    assert "--adopt" not in str(refused.value)


def test_ids_of_the_database_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The original's ids are UUIDs: `--adopt` with other ids is refused, and nothing written."""
    monkeypatch.chdir(tmp_path)
    Path("alembic.ini").write_text("[alembic]\nscript_location = migrations\n")
    result = CliRunner().invoke(main, ["revision", "--adopt", "--job-ids", "database"])

    assert 1 == result.exit_code
    assert "The tables of Proletarian have UUIDs: leave job_ids out, or adopt." in result.output


@pytest.mark.parametrize("column", ["queue", "job_type", "status"])
def test_what_does_not_fit_stops_it(original: sa.Engine, database: Any, monkeypatch: pytest.MonkeyPatch, column: str):
    """A text that is too long is the database's own error, even in a session that would cut it off; nothing is lost."""
    if original.dialect.name in MYSQL:
        elsewhere(database, monkeypatch, init_command="SET sql_mode = ''")
    table = tables(original)["archived_job" if column == "status" else "job"]
    with in_utc(original) as connection:
        connection.execute(table.update().where(table.c.payload.in_(["null", "[2]"])).values({column: "x" * 256}))
    before = contents(original)
    with pytest.raises(sa.exc.DBAPIError, match=r"(?i)too long|truncated"):
        run_alembic("upgrade", "head")
    assert before == contents(original)

    with in_utc(original) as connection:  # shortened by hand, it goes on
        connection.execute(table.update().where(table.c.payload.in_(["null", "[2]"])).values({column: "short"}))
    run_alembic("upgrade", "head")
    check_tables(original)


def test_text_of_another_character_set(project: Path, database: Any, engine: sa.Engine):  # noqa: F811 - the fixture
    """Where the server's character set is another, text becomes utf8mb4; bytes that are no text stop it, and stay."""
    database.require("row_locks", "character_sets")
    make(engine, charset="latin1")
    job = tables(engine)["job"]
    add_row = (
        "INSERT INTO job (job_id, queue, job_type, payload, attempts, enqueued_at, process_at) "
        "VALUES (repeat('a', 16), %s, 't', '[]', 0, utc_timestamp(), utc_timestamp())"
    )
    with engine.begin() as connection:
        connection.exec_driver_sql(add_row, ("größe",))
    write_revision("--adopt")
    run_alembic("upgrade", "head")
    assert ["größe"] == [row.queue for row in queued(engine)]

    run_alembic("downgrade", "base")
    drop(engine)
    make(engine, charset="binary")
    with engine.begin() as connection:
        connection.exec_driver_sql(add_row, (b"gr\xf6\xdfe",))
    with pytest.raises(sa.exc.DBAPIError, match="Incorrect string value"):
        run_alembic("upgrade", "head")
    with engine.connect() as connection:
        assert [b"gr\xf6\xdfe"] == list(connection.scalars(sa.select(sa.type_coerce(job.c.queue, sa.LargeBinary()))))
