"""Revisions for tables of one's own: the names given to the command are those that the models have."""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from proletarian_sa import JobTables, check_tables, create_all, drop_all
from proletarian_sa.cli import main
from tests.observing import add
from tests.queue_contents import archived, run_due
from tests.test_alembic import catalogue, project, run_alembic, write_revision  # noqa: F401 - a fixture among them
from tests.test_table_names import LONG, schema_of_ones_own
from tests.test_tables import tables_there

pytestmark = pytest.mark.long

NAMES = ["select", f"{LONG}12345", "Очередь.a", "50% $job\"'\\", "one\u2028line"]


@pytest.mark.parametrize("name", NAMES)
def test_names_in_a_revision(project: Path, engine: sa.Engine, database: Any, name: str):  # noqa: F811 - the fixture
    """With any names the revision makes what the models say, index by index, can be run twice, and takes all of it away."""
    schema = schema_of_ones_own(database, engine, name)
    archive = f"{name}_d"
    tables = JobTables(schema=schema, job_table=name, archived_job_table=archive)
    write_revision("--schema", schema or "", "--job-table", name, "--archived-job-table", archive)
    run_alembic("upgrade", "head")
    check_tables(engine, tables=tables)
    by_revision = catalogue(engine, tables)
    add(engine, tables=tables)
    assert 1 == len(run_due(engine, tables=tables))
    assert 1 == len(archived(engine, tables))
    run_alembic("stamp", "base")
    run_alembic("upgrade", "head")
    assert 1 == len(archived(engine, tables))
    run_alembic("downgrade", "base")
    left = tables_there(engine, schema) - {"alembic_version"}
    create_all(engine, tables=tables)

    assert set() == left
    assert catalogue(engine, tables) == by_revision
    drop_all(engine, tables=tables)


@pytest.mark.parametrize("option", ["--schema", "--job-table", "--archived-job-table"])
def test_a_name_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str):
    """The command refuses a name that a database would cut off, as `JobTables` does, and writes nothing."""
    monkeypatch.chdir(tmp_path)
    Path("alembic.ini").write_text("[alembic]\nscript_location = migrations\n", encoding="utf-8")
    result = CliRunner().invoke(main, ["revision", option, "x" * 64])

    assert 1 == result.exit_code
    assert "has 64 bytes in UTF-8; databases keep names of up to 63. Give a shorter one." in result.output
    assert ["alembic.ini"] == [path.name for path in tmp_path.iterdir()]
