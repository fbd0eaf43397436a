"""Tables of an older version than this release needs: everybody says so, with the commands to type, and nobody spins."""

import signal
import sys
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from sqlalchemy.orm import DeclarativeBase, mapped_column

from proletarian_sa import (
    ArchivedJobMixin,
    JobMixin,
    JobTables,
    QueueWorker,
    TablesMissing,
    check_tables,
    create_all,
    default_tables,
    drop_all,
    process_next_job,
)
from proletarian_sa.cli import main
from proletarian_sa.version import __version__
from proletarian_sa.versions import VERSIONS, Version
from tests.checking import check
from tests.observing import Recorder, add
from tests.queue_contents import queued
from tests.second_version import second_tables, second_version  # noqa: F401 - a fixture among them

pytestmark = pytest.mark.long

LACKS = {
    "the second version": [],
    "a column": ["job.note"],
    "a column of the archive": ["archived_job.note"],
    "the index": ["index"],
}


def advice(database: Any, version: int, latest: int = 2) -> str:
    """Return what is to be typed."""
    return (
        f"proletarian-sa {__version__} needs version {latest}. With Alembic: proletarian-sa revision, then alembic upgrade head. "
        f"Without: proletarian-sa ddl --dialect {database.url.get_backend_name()} --from {version} --to {latest}"
    )


def message(database: Any, engine: sa.Engine, version: int = 1, latest: int = 2) -> str:
    """Return what everybody says."""
    return f"The tables job and archived_job in {engine.url!r} have version {version}. {advice(database, version, latest)}"


@pytest.fixture(params=LACKS)
def older(request, engine, second_version):  # noqa: F811 - the fixture
    """Return an engine on tables that lack something, or all, of the second version."""
    lacks = LACKS[request.param]
    tables = second_tables()
    create_all(engine, tables=tables if lacks else default_tables)
    with engine.begin() as connection:
        for lack in lacks:
            if lack == "index":
                (index,) = [index for index in tables.job.indexes if str(index.name).endswith("job_type")]
                index.drop(connection)
            else:
                table = tables.job if lack == "job.note" else tables.archived_job
                place = connection.dialect.identifier_preparer.format_table(table)
                connection.exec_driver_sql(f"ALTER TABLE {place} DROP COLUMN note")
    return engine


@pytest.mark.parametrize("models", ["first", "second"])
def test_everybody_says_so(database, older, models):
    """Checking, creating, starting a worker and one step: each names the version and both commands, and touches no job."""
    tables = second_tables() if models == "second" else default_tables
    job_id = add(older)
    ran: list[Any] = []
    worker = QueueWorker(older, lambda *facts: ran.append(facts), tables=tables, on_event=Recorder())
    for act in (
        lambda: check_tables(older, tables=tables),
        lambda: create_all(older, tables=tables),
        worker.start,
        lambda: process_next_job(older, lambda *facts: ran.append(facts), tables=tables),
    ):
        with pytest.raises(TablesMissing) as failure:
            act()
        assert message(database, older) == str(failure.value)
    (row,) = queued(older)

    assert not worker.is_running
    assert [] == ran
    assert (job_id, 0, None) == (row.job_id, row.attempts, row.claimed_by)


def test_a_step_looks_once(engine, second_version):  # noqa: F811 - the fixture
    """Once the tables have the last version a step does not ask again, and a job is run."""
    tables = second_tables()
    create_all(engine, tables=tables)
    seen: list[str] = []
    asked: list[int] = []
    for _ in range(3):
        add(engine, tables=tables)
    sa.event.listen(engine, "before_cursor_execute", lambda _c, _cursor, statement, *_: seen.append(statement))
    for _ in range(3):
        seen.clear()
        assert process_next_job(engine, lambda *_facts: None, tables=tables)
        asked.append(len(seen))

    assert asked[0] > asked[1] == asked[2]


def test_the_command_ends(database, older, monkeypatch):
    """`proletarian-sa worker` on older tables ends at once with code 1, and with the same message."""
    add(older)
    made = QueueWorker(older, lambda *_facts: None)
    monkeypatch.setattr(sys.modules[__name__], "make_worker", lambda: made, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        result = CliRunner().invoke(main, ["worker", f"{__name__}:make_worker"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

    assert (1, "") == (result.exit_code, result.stdout)
    assert f"proletarian-sa worker: TablesMissing: {message(database, older)}\n" == result.stderr
    assert 1 == len(queued(older))


def test_check_says_so_first(database, older):
    """`proletarian-sa check` says the version and both commands before it names the differences."""
    result = check(database.url)

    assert (1, "") == (result.exit_code, result.stderr)
    assert f"The tables have version 1. {advice(database, 1)}" == result.stdout.splitlines()[0]


def test_check_names_the_version(database, engine, second_version):  # noqa: F811 - the fixture
    """Tables of the last version fit, and which that is, is said."""
    create_all(engine, tables=second_tables())
    result = check(database.url)

    assert (0, f"The tables in {engine.url!r} fit proletarian-sa {__version__}: they have version 2.\n") == (
        result.exit_code,
        result.stdout,
    )


def test_names_of_ones_own_are_in_the_commands(database, engine, second_version):  # noqa: F811 - the fixture
    """What is to be typed has the options that say which tables, quoted for a shell."""
    tables = JobTables(schema=None, job_table="my job", archived_job_table="done")
    create_all(engine, tables=tables)
    names = "--schema '' --job-table 'my job' --archived-job-table done"
    dialect = database.url.get_backend_name()
    if dialect != "postgresql":  # where a schema falls away, none is the same
        names = names.removeprefix("--schema '' ")
    with pytest.raises(TablesMissing) as failure:
        check_tables(engine, tables=tables)

    assert f"With Alembic: proletarian-sa revision {names}, then alembic upgrade head." in str(failure.value)
    assert f"Without: proletarian-sa ddl --dialect {dialect} {names} --from 1 --to 2" in str(failure.value)


def test_older_tables_can_be_dropped(older, engine):
    """`drop_all` takes tables of any version, whichever version the models have."""
    for tables in (default_tables, second_tables()):
        drop_all(engine, tables=tables)
        with pytest.raises(TablesMissing, match="There is no table"):
            check_tables(engine)
        create_all(engine)


def test_the_version_that_is_there_is_named(database, engine, second_version, monkeypatch):  # noqa: F811 - the fixture
    """Models with a column of a third version do not make the second look like the first: the advice leads from where one is."""
    monkeypatch.setitem(VERSIONS, 3, Version({"job": frozenset({"later"})}))
    create_all_of(engine)
    tables = _third()
    with pytest.raises(TablesMissing) as failure:
        check_tables(engine, tables=tables)

    assert message(database, engine, 2, 3) == str(failure.value)


def create_all_of(engine: sa.Engine) -> None:
    """Make tables of the second version."""
    tables = second_tables()
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.schema.CreateSchema("proletarian"))
        tables.job.metadata.create_all(connection)


def _third() -> JobTables:
    class Base(DeclarativeBase):
        pass

    class Job(JobMixin, Base):
        note = mapped_column(sa.String(255))
        later = mapped_column(sa.String(255))

    class ArchivedJob(ArchivedJobMixin, Base):
        note = mapped_column(sa.String(255))

    return JobTables(job=Job, archived_job=ArchivedJob)
