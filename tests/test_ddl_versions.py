"""`proletarian-sa ddl --from N --to M`: the native client makes of it what `alembic upgrade` and `alembic downgrade` make."""

import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

from proletarian_sa import DatabaseIds
from proletarian_sa.cli import main
from proletarian_sa.version import __version__
from tests.native_client import feed
from tests.second_version import second_version  # noqa: F401 - a fixture
from tests.test_alembic import project  # noqa: F401 - a fixture
from tests.test_table_names import LONG, schema_of_ones_own
from tests.test_tables import tables_there
from tests.upgrading import Project, keep_jobs, kept, write

pytestmark = pytest.mark.long

DIALECTS = ["postgresql", "mysql", "mariadb", "sqlite"]
HOSTILE = ["\"`';DROP x;--$$", "50% %s:n${schema}\\ж\u2028# x", f"{LONG}12345678"]


def ddl(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["ddl", *arguments])


def between(database: Any, start: int, end: int, *arguments: str) -> str:
    """Return what the command prints for a database."""
    result = ddl("--dialect", database.url.get_backend_name(), "--from", str(start), "--to", str(end), *arguments)
    assert 0 == result.exit_code, result.output
    return result.stdout


@pytest.mark.parametrize("job_ids", ["uuid", "database"])
def test_each_way_between_versions(database, engine, second_version, job_ids):  # noqa: F811 - the fixture
    """Step by step and at once, up and down: the tables are those of the version's models, and jobs stay."""
    options = {"job_ids": DatabaseIds() if job_ids == "database" else None}
    tables = Project(engine, {}, options)
    expected = tables.expected()
    rows: list[Any] = []
    for start, end in [(0, 1), (1, 2), (2, 1), (1, 0), (0, 2), (2, 1), (1, 2), (2, 0)]:
        if start == 0:
            rows = []
        elif not rows:
            rows = keep_jobs(engine, tables.first)
        feed(database, between(database, start, end, "--job-ids", job_ids))
        assert expected[end] == tables.catalogue(), (start, end)
        assert end == 0 or rows == [] or rows == kept(engine, tables.first)


def test_alembic_makes_the_same(project, database, engine, second_version):  # noqa: F811 - the fixtures
    """Tables of the native client and tables of a revision are the same, and each leads on from the other's."""
    steps = Project(engine, {2: write()})
    steps.move(0, 2)
    by_alembic = steps.catalogue()
    feed(database, between(database, 2, 1))
    first = steps.catalogue()
    feed(database, between(database, 1, 2))
    assert by_alembic == steps.catalogue()
    steps.move(2, 0)
    feed(database, between(database, 0, 1))

    assert first == steps.catalogue()


@pytest.mark.parametrize("suffix", HOSTILE, ids=["quotes", "percent", "long"])
def test_hostile_names(project, database, engine, second_version, suffix):  # noqa: F811 - the fixtures
    """Any names go through both ways, by Alembic and by the native client, up and down, and leave nothing behind."""
    name = suffix if suffix.startswith(LONG) else f"j{suffix}"
    schema = schema_of_ones_own(database, engine, name)
    archive = f"{name[:-1]}_" if len(name.encode()) > 61 else f"{name}_d"
    options = ("--schema", schema or "", "--job-table", name, "--archived-job-table", archive)
    tables = Project(engine, {2: write(*options)}, {"schema": schema, "job_table": name, "archived_job_table": archive})
    expected = tables.expected()
    tables.move(0, 2)
    assert expected[2] == tables.catalogue()
    tables.move(2, 0)
    assert {"alembic_version"} >= tables_there(engine, schema)
    for start, end in [(0, 2), (2, 1), (1, 2), (2, 0)]:
        feed(database, between(database, start, end, *options))
        assert expected[end] == tables.catalogue(), (start, end)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("start", "end"), [(0, 2), (1, 2), (2, 1), (2, 0)])
def test_the_text_is_for_reading(second_version, dialect, start, end):  # noqa: F811 - the fixture
    """The first line says from which version to which, and by which client; what is lost is said, and only then."""
    text = ddl("--dialect", dialect, "--from", str(start), "--to", str(end)).stdout
    head, *statements = text.split("\n\n")
    first, *warnings = head.splitlines()
    lost = {(2, 1): ["-- What later versions have added is lost."], (2, 0): ["-- All jobs are lost."]}

    assert first.startswith(f"-- Changes the tables of proletarian-sa {__version__} on ")
    assert f" from version {start} to version {end}. To be run by: " in first
    assert lost.get((start, end), []) == warnings
    assert all(statement.rstrip("\n").endswith(";") for statement in statements), text
    assert (start != 0 and dialect != "sqlite") == ("lock_timeout', '5s'" in text or "lock_wait_timeout = 5" in text)
    assert (dialect == "postgresql") == ("COMMIT;" in text)


def test_the_last_version_is_the_default(second_version):  # noqa: F811 - the fixture
    """Without --to the text leads to the version that this release needs."""
    assert ddl("--dialect", "sqlite", "--from", "1").stdout == ddl("--dialect", "sqlite", "--from", "1", "--to", "2").stdout


REFUSED = {
    "--to needs --from: which version the tables have, as proletarian-sa check says.": ["--to", "1"],
    "Give either --from and --to, or --uninstall.": ["--from", "1", "--uninstall"],
    "There is no version 7 of the tables: 0 is none, 1 the last.": ["--from", "0", "--to", "7"],
    "There is no version 3 of the tables: 0 is none, 1 the last.": ["--from", "3"],
    "Invalid value for '--from': -1 is not in the range x>=0.": ["--from", "-1"],
    "Invalid value for '--to': -1 is not in the range x>=0.": ["--from", "1", "--to", "-1"],
    "There is nothing between version 1 and version 1 of the tables.": ["--from", "1"],
    "There is nothing between version 0 and version 0 of the tables.": ["--from", "0", "--to", "0"],
    "There is no DDL for 'oracle'. Give --dialect postgresql, mysql, mariadb or sqlite.": ["--from", "0", "--dialect", "oracle"],
    "job_table and archived_job_table are both 'archived_job'.": ["--from", "0", "--job-table", "archived_job"],
    "job_table must have 1 to 255 characters; '' has 0.": ["--from", "0", "--job-table", ""],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_printed(message):
    """A version that there is not, options that exclude each other: code 2, what to type, and nothing printed."""
    result = ddl("--dialect", "mysql", *REFUSED[message])

    assert (2, "") == (result.exit_code, result.stdout)
    assert message in result.stderr


@pytest.mark.parametrize("command", [["ddl", "--dialect", "sqlite", "--from", "0"], ["revision"]], ids=["ddl", "revision"])
def test_without_alembic(monkeypatch, command):
    """What needs Alembic says so, with what to install; the rest of the command line works without."""
    for name in list(sys.modules):
        if name.startswith(("alembic.", "alembic_ext.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "alembic", None)
    failed = CliRunner().invoke(main, command)

    assert (1, "") == (failed.exit_code, failed.stdout)
    assert failed.stderr.startswith("Error: ")
    assert failed.stderr.endswith(". Install Alembic: pip install 'proletarian-sa[alembic]'\n")
    assert "CREATE TABLE" in ddl("--dialect", "sqlite").stdout
