"""Upgrades between versions of the tables: what a revision makes is what the models say, and nothing is lost."""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from alembic_ext.proletarian_sa.history import HISTORY
from proletarian_sa import DatabaseIds, create_all
from proletarian_sa.cli import main
from proletarian_sa.names import index_name
from proletarian_sa.versions import VERSIONS
from tests.catalogue import catalogue
from tests.second_version import second_tables, second_version  # noqa: F401 - a fixture among them
from tests.test_alembic import project, run_alembic  # noqa: F401 - a fixture among them
from tests.upgrading import Project, at_once, by_steps, changes, keep_jobs, kept, write  # noqa: F401 - fixtures among them

pytestmark = pytest.mark.long

IDS = {"uuid": None, "database": DatabaseIds()}


@pytest.mark.parametrize("job_ids", IDS)
def test_each_way_to_a_version_makes_the_same_tables(project, engine, request, job_ids):  # noqa: F811 - the fixture
    """Upgraded, installed directly, and downgraded: each time the tables of that version's models, whoever makes the ids."""
    first = write("--job-ids", job_ids)
    request.getfixturevalue("second_version")
    steps = Project(engine, {1: first, 2: write("--job-ids", job_ids)}, {"job_ids": IDS[job_ids]})
    expected = steps.expected()
    for start, end in [(0, 1), (1, 2), (2, 1), (1, 2), (2, 0)]:
        steps.move(start, end)
        assert expected[end] == steps.catalogue(), (start, end)
        assert end == steps.current()

    for file in steps.files.values():
        file.unlink()
    direct = Project(engine, {2: write("--job-ids", job_ids)}, {"job_ids": IDS[job_ids]})
    for start, end in [(0, 2), (2, 0), (0, 2)]:
        direct.move(start, end)
        assert expected[end] == direct.catalogue(), (start, end)


def test_upgrades_keep_all_jobs(by_steps, engine):  # noqa: F811 - the fixture
    """Up and down again each job stays as it is, queued or archived."""
    by_steps.move(0, 1)
    rows = keep_jobs(engine)
    by_steps.move(1, 2)
    assert rows == kept(engine)
    by_steps.move(2, 1)

    assert 2 == len(rows)
    assert rows == kept(engine)


def test_an_upgrade_that_has_been_run_changes_nothing(by_steps):  # noqa: F811 - the fixture
    """`alembic upgrade head` after `alembic upgrade head` executes no statement that changes tables."""
    by_steps.move(0, 2)
    with changes() as said:
        by_steps.move(0, 2)

    assert [] == said


def test_numbers_of_history_and_structure_agree(second_version):  # noqa: F811 - the fixture
    """Each version has its operations and its names, and they are numbered without a gap."""
    assert list(range(1, len(VERSIONS) + 1)) == sorted(VERSIONS) == sorted(HISTORY)


def test_names_of_a_version_are_what_its_operations_add(by_steps, engine):  # noqa: F811 - the fixture
    """By the names that it has added a version is recognised: they are those of the live tables, neither more nor fewer."""
    before: dict[str, set[str]] = {"job": set(), "archived_job": set()}
    indexes_before: dict[str, set[str]] = {"job": set(), "archived_job": set()}
    for number, version in VERSIONS.items():
        by_steps.move(number - 1, number)
        found = by_steps.catalogue()
        for kind, table in found.items():
            columns = {column[0] for column in table["columns"]}
            indexes = {index[0] for index in table["indexes"]}
            assert version.columns.get(kind, set()) == columns - before[kind]
            suffixes = version.indexes.get(kind, set())
            assert {index_name(kind, suffix) for suffix in suffixes} == indexes - indexes_before[kind]
            before[kind], indexes_before[kind] = columns, indexes


def test_an_upgrade_is_written_after_what_is_there(by_steps):  # noqa: F811 - the fixture
    """The second revision holds the difference only, says so, and follows the first."""
    text = by_steps.files[2].read_text()

    assert by_steps.files[2].name.endswith("_upgrade_the_tables_of_proletarian_sa_to_.py")
    assert '"""upgrade the tables of proletarian-sa to version 2\n' in text
    assert re.search(rf"^down_revision.* = '{by_steps.target(1)}'$", text, re.MULTILINE)
    assert '# proletarian-sa: ["proletarian", "job", "archived_job"] from version 1 to version 2\n' in text
    assert '# proletarian-sa: ["proletarian", "job", "archived_job"] from version 2 to version 1\n' in text
    assert "create_table" not in text
    assert "drop_table" not in text
    assert [by_steps.target(2)] == [line.split()[0] for line in run_alembic("heads").splitlines()]


def test_there_is_nothing_to_write_twice(by_steps):  # noqa: F811 - the fixture
    """When the revisions lead to the last version, the command writes nothing, and names the revision that does."""
    result = CliRunner().invoke(main, ["revision"])

    assert 1 == result.exit_code
    assert (
        f"The tables have version 2, the last, by {by_steps.files[2].name}: there is nothing to write. Run: alembic upgrade head. "
        "For tables of other names give --schema, --job-table and --archived-job-table."
    ) in result.output
    assert 2 == len(list(Path("migrations/versions").glob("*.py")))


def test_what_is_written_is_found_again_when_reformatted(by_steps):  # noqa: F811 - the fixture
    """A revision is recognised by its marker: after a formatter, after other operations beside it, after another message."""
    for file in by_steps.files.values():
        text = file.read_text().replace("def upgrade() -> None:", "def upgrade():\n    op.execute('SELECT 1')")
        file.write_text(text.replace("    ", "  "))
    by_steps.move(0, 2)

    assert 1 == CliRunner().invoke(main, ["revision"]).exit_code


def test_two_sets_of_tables_are_kept_apart(project, engine, request):  # noqa: F811 - the fixture
    """Each set of tables of a project has revisions of its own: one may be installed anew while the other is upgraded."""
    names = ("--job-table", "mail", "--archived-job-table", "mail_done")
    write()
    request.getfixturevalue("second_version")
    other = write(*names)
    upgrade = write()
    run_alembic("upgrade", "head")
    found = {name: catalogue(engine, tables) for name, tables in _both().items()}
    run_alembic("downgrade", "base")
    for tables in _both().values():
        create_all(engine, tables=tables)

    assert 1 == CliRunner().invoke(main, ["revision", *names]).exit_code
    assert "from version 0 to version 2" in other.read_text()
    assert "from version 1 to version 2" in upgrade.read_text()
    assert {name: catalogue(engine, tables) for name, tables in _both().items()} == found


def _both() -> dict[str, Any]:
    return {"default": second_tables(), "mail": second_tables(job_table="mail", archived_job_table="mail_done")}
