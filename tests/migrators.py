"""Processes that run Alembic commands, beside each other and beside the test."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import Command
from tests.upgrading import Project, changes, configure

_STAND = 'print("standing", flush=True); input()'


class Migrator(Command):
    """A process that runs Alembic commands, and stands still where a revision says so."""

    program = (sys.executable, "-m", "tests.programs.migrator")

    def begin(self, database: Any, command: str, target: str, query: dict[str, str] | None = None) -> None:
        """Let it run a command on the project in the current folder; `query` is added to the URL of the database."""
        url = database.url.update_query_dict(query or {}).render_as_string(hide_password=False)
        self.say(json.dumps([str(Path.cwd()), url, command, target]))

    def end(self) -> str:
        """Return the error with which the command ended; an empty text is a success."""
        return str(json.loads(self.wait_for("ended ").removeprefix("ended ")))

    def stand(self) -> None:
        """Return when it stands still."""
        self.wait_for("standing")

    def go_on(self) -> None:
        """Let it go on, without standing still again where the same operation is run for the other table."""
        self.say("\n")


@pytest.fixture(scope="module")
def migrators() -> Iterator[tuple[Migrator, Migrator]]:
    """Return two such processes, for all tests of a module."""
    with Migrator() as one, Migrator() as other:
        for migrator in (one, other):
            migrator.wait_for("ready")
        yield one, other


def stand_before(file: Path, operation: str) -> None:
    """Let a revision stand still before an operation, in every process that runs it."""
    (line,) = [line for line in file.read_text().splitlines() if operation in line]
    indent = line[: len(line) - len(line.lstrip())]
    configure(file, f"{line}\n", f"{indent}{_STAND}\n{line}\n")


def stand_at_end(file: Path) -> None:
    """Let a revision stand still at the end of its upgrade."""
    before = "\n\ndef downgrade()"
    configure(file, before, f"    {_STAND}\n{before}")


def stand_no_more(file: Path) -> None:
    """Undo `stand_before`."""
    configure(file, _STAND, "pass")


def check_rerun(project: Project, version: int, expected: Any) -> None:
    """Run `alembic upgrade head` once more, and assert that there is nothing to do, and that all is as it must be."""
    with changes() as said:
        project.move(0, version)
    assert [] == said
    assert expected == project.catalogue()
    assert version == project.current()
