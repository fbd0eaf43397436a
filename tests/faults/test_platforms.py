"""A platform without fork and without most signals, simulated in processes from which they are taken away."""

import signal
import sys
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.command import Command
from tests.observing import add
from tests.queue_contents import archived
from tests.servers.database import Database

pytestmark = pytest.mark.long


class Program(Command):
    """The application on that platform."""

    program = (sys.executable, "-m", "tests.programs.bare_platform")


@pytest.fixture(params=["sqlite"])
def database_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run on the database that is always there."""
    return request.param


CODES = {"command": 0, "option": 5, "plain": 6, "elsewhere": 7, "loop": 8}


@pytest.mark.parametrize(("way", "code"), CODES.items())
def test_it_imports_starts_runs_jobs_and_stops(database: Database, queue_engine: sa.Engine, way: str, code: int) -> None:
    """Windows, a platform without these signals or fork: imports, starts, runs jobs, and stops on Ctrl-C, whatever the way."""
    ids = [add(queue_engine, "say", number) for number in range(3)]
    with Program(way, APP_URL=database.url_text) as program:
        for number in range(3):
            program.wait_for(f"ran {number} False False")
        program.process.send_signal(signal.SIGINT)

        assert code == program.code(), program.output
    assert sorted(ids) == sorted(row.job_id for row in archived(queue_engine) if row.status == "success")
    assert [] == [line for line in program.output if "rror" in line]


@pytest.mark.parametrize("way", ["command", "option"])
def test_ctrl_break(database: Database, queue_engine: sa.Engine, way: str) -> None:
    """Windows: Ctrl-Break stops the command, and a worker that has the option, like Ctrl-C."""
    job_id = add(queue_engine, "say", 0)
    with Program(way, APP_URL=database.url_text) as program:
        program.wait_for("ran 0 False False")
        program.process.send_signal(signal.SIGUSR2)

        assert CODES[way] == program.code(), program.output
    assert [job_id] == [row.job_id for row in archived(queue_engine)]
