"""Migrations that are interrupted: a rerun finishes, and nothing is broken or lost."""

import sys
from pathlib import Path

import pytest

from tests.command import Command
from tests.migrators import check_rerun, stand_before, stand_no_more
from tests.second_version import second_version  # noqa: F401 - a fixture
from tests.test_alembic import project, run_alembic  # noqa: F401 - a fixture among them
from tests.upgrading import (  # noqa: F401 - fixtures among them
    AUTOCOMMIT,
    PER_MIGRATION,
    InterruptionError,
    Project,
    at_once,
    by_steps,
    changes,
    in_env,
    keep_jobs,
    kept,
)

pytestmark = pytest.mark.long

WAYS = {
    "install": ("by_steps", 0, 1),
    "upgrade": ("by_steps", 1, 2),
    "downgrade": ("by_steps", 2, 1),
    "uninstall": ("by_steps", 1, 0),
    "uninstall the second": ("at_once", 2, 0),
}


def interrupt_everywhere(project: Project, start: int, end: int, *, commits: bool) -> int:  # noqa: F811 - no fixture
    """Interrupt after each statement in turn, and finish; return after how many.

    Args:
        project: Of which nothing is run yet.
        start: From which version.
        end: To which.
        commits: What an interrupted run has done stays.
    """
    expected = project.expected()
    if start:
        project.move(0, start)
    for number in range(1, 30):
        rows = keep_jobs(project.engine) if start else []
        with changes(fail_after=number) as said:
            try:
                project.move(start, end)
            except InterruptionError:
                assert start == project.current()
                assert commits or expected[start] == project.catalogue()
            else:
                return len(said)
        project.move(start, end)
        assert expected[end] == project.catalogue(), said
        assert end == project.current()
        assert end == 0 or rows == kept(project.engine)[: len(rows)]
        project.move(end, start)
    raise AssertionError("does not end")


@pytest.mark.parametrize("way", WAYS)
def test_a_migration_may_end_anywhere(request, database, way):
    """After any statement that changes tables a migration may end: the same command again finishes it, and jobs stay."""
    name, start, end = WAYS[way]
    count = interrupt_everywhere(request.getfixturevalue(name), start, end, commits=not database.transactional_ddl)

    assert count >= (2 if end == 0 else 3)


@pytest.mark.parametrize("way", ["install", "downgrade"])
def test_a_migration_without_a_transaction_may_end_anywhere(request, database, way):
    """Where env.py says autocommit, what an interrupted run has done stays, and a rerun finishes all the same."""
    database.require("transactional_ddl")
    name, start, end = WAYS[way]
    steps = request.getfixturevalue(name)
    in_env(*AUTOCOMMIT)

    assert interrupt_everywhere(steps, start, end, commits=True) >= 3


def test_a_transaction_per_migration(by_steps, database):  # noqa: F811 - the fixture
    """With one transaction per migration the first version stays when the second is interrupted; a rerun adds the rest."""
    database.require("transactional_ddl")
    expected = by_steps.expected()
    in_env(*PER_MIGRATION)
    with pytest.raises(InterruptionError), changes(fail_after=8) as said:
        by_steps.move(0, 2)

    assert "ALTER TABLE" in said[-1]
    assert (1, expected[1]) == (by_steps.current(), by_steps.catalogue())
    by_steps.move(1, 2)
    check_rerun(by_steps, 2, expected[2])


class Alembic(Command):
    """The command `alembic`, in the project."""

    program = (sys.executable, "-m", "alembic")


def test_a_killed_migration(by_steps):  # noqa: F811 - the fixture
    """A process that is killed between two statements leaves what the same command finishes, and jobs stay."""
    expected = by_steps.expected()
    by_steps.move(0, 1)
    rows = keep_jobs(by_steps.engine)
    stand_before(by_steps.files[2], "op.add_column(")
    with Alembic("upgrade", "head", cwd=Path.cwd()) as command:
        command.wait_for("standing")
        command.say("")
        command.wait_for("standing")
        command.process.kill()
        assert command.code() < 0
    stand_no_more(by_steps.files[2])
    assert 1 == by_steps.current()
    by_steps.move(1, 2)

    assert expected[2] == by_steps.catalogue()
    assert 2 == by_steps.current()
    assert rows == kept(by_steps.engine)
