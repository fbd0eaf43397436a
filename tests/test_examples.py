"""The examples: each README's commands do what it says, and print what it shows."""

import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.command import ROOT, Command
from tests.servers.database import Database

pytestmark = pytest.mark.long

FOLDER = ROOT / "examples"
PROJECT = "alembic_project"  # see test_example_alembic
FASTAPI = "fastapi_async"  # see test_example_fastapi
NAMES = [
    PROJECT,
    FASTAPI,
    "a_echo",
    "b_failures",
    "c_interruption",
    "held_or_leased",
    "many_queues",
    "outbox_transaction",
    "own_tables",
]
MOST_LINES = 30
MORE = "…"
VARYING = {
    r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(,\d{3})?": "<time>",
    r"after \d+\.\d s": "after <time>",
    r"Context impl \w+": "Context impl <database>",
    r"(non-)?transactional DDL": "<kind of> DDL",
}


class Readme:
    """What a README promises: the commands, and what they print."""

    def __init__(self, name: str) -> None:
        self.lines = (FOLDER / name / "README.md").read_text().splitlines()
        blocks = re.split(r"\n(?! {4})", "\n".join(self.lines))
        indented = [re.findall(r"^ {4}(.+)", block, re.MULTILINE) for block in blocks]
        self.commands, *self.printed = [block for block in indented if block]

    @property
    def modules(self) -> list[str]:
        """Return what the commands run, and refuse any other kind of command."""
        words = [shlex.split(command) for command in self.commands]
        assert [["python", "-m"]] * len(words) == [line[-3:-1] for line in words]
        return [line[-1] for line in words]


class Shell:
    """A terminal in an empty folder, from which the examples can be run."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = environment

    def start(self, module: str, *arguments: str) -> "Python":
        """Start a command."""
        return Python(module, *arguments, cwd=self.folder, PYTHONPATH=str(ROOT), **self.environment)

    def run(self, module: str) -> list[str]:
        """Return what a command prints that ends by itself."""
        return self.printed(self.start(module))

    def printed(self, started: Command) -> list[str]:
        """Return what a command prints that ends by itself, with success."""
        with started as command:
            assert 0 == command.code(), command.output
            return plain(command.output)


class Python(Command):
    """A module that is run as a program."""

    program = (sys.executable, "-m")

    def stop(self, number: int = signal.SIGINT) -> list[str]:
        """Stop it, and return all that it has printed."""
        self.process.send_signal(number)
        assert 0 == self.code(), self.output
        return plain(self.output)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Open a terminal without settings: examples make a SQLite file where they are."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    return Shell(tmp_path)


@pytest.fixture
def database_shell(database: Database, shell: Shell) -> Shell:
    """Open a terminal with the test's database; without one for SQLite, which needs none."""
    return Shell(shell.folder, **({"DATABASE_URL": database.url_text} if database.server else {}))


def plain(lines: list[str]) -> list[str]:
    """Return lines without what is different each time."""
    for pattern, word in VARYING.items():
        lines = [re.sub(pattern, word, line) for line in lines]
    return lines


def test_a_echo(shell: Shell) -> None:
    """The worker echoes what another process enqueues, and stops at Ctrl-C."""
    readme = Readme("a_echo")
    worker, enqueue = readme.modules
    with shell.start(worker, "0.5") as process:
        process.wait_for("looking for jobs")
        enqueued = shell.run(enqueue)
        for _ in range(3):
            process.wait_for("echo: ")
        printed = process.stop()
    shown = [line.replace("5 s", "0.5 s") for line in plain(readme.printed[0])]

    assert plain(readme.printed[1]) == enqueued
    assert sorted(shown) == sorted(printed)
    assert [shown[0], shown[-1]] == [printed[0], printed[-1]]


def test_b_failures(shell: Shell) -> None:
    """Half of the runs fail, at the same places each time; the summary counts what was run, and the table has what failed."""
    readme = Readme("b_failures")
    worker, enqueue = readme.modules
    shown = readme.printed[0]
    with shell.start(worker) as process:
        process.wait_for("taking orders")
        shell.run(enqueue)
        over = set(range(1, 11))
        while over:
            number, attempt, result = re.match(r"order (\d+), attempt (\d): (\w+)", process.wait_for("order ")).groups()
            over -= {int(number)} if result == "done" or attempt == "3" else set()
        printed = process.stop(signal.SIGTERM)

    assert MORE in shown
    assert set(shown) - {MORE} <= set(printed)
    assert [shown[0], *shown[-2:]] == [printed[0], *printed[-2:]]
    assert 1 + 20 + 2 == len(printed)


def test_c_interruption(shell: Shell) -> None:
    """The job that waits is interrupted and begins anew after a restart; the one that computes delays the stop until it is done."""
    readme = Readme("c_interruption")
    worker, enqueue = readme.modules
    shell.run(enqueue)
    with shell.start(worker) as process:
        begun = {process.wait_for(": ") for _ in range(2)}
        first = process.stop()
    with shell.start(worker) as process:
        process.wait_for("waiting: attempt 1")
        second = process.stop(signal.SIGTERM)
    shown = readme.printed[0]

    assert set(shown[1:3]) == begun
    assert [shown[0], *shown[3:]] == [first[0], *first[3:]]
    assert readme.printed[1] == second


@pytest.mark.parametrize("name", ["outbox_transaction", "own_tables"])
def test_one_command(name: str, database_shell: Shell) -> None:
    """The command prints what the README shows."""
    readme = Readme(name)
    (module,) = readme.modules

    assert readme.printed == [database_shell.run(module)]


@pytest.mark.parametrize("name", ["outbox_transaction", "own_tables"])
def test_again(name: str, shell: Shell) -> None:
    """The command prints the same the second time, when its tables are there: in the file that the README names."""
    readme = Readme(name)
    (module,) = readme.modules

    assert shell.run(module) == shell.run(module)
    assert [f"{name}.db"] == [path.name for path in shell.folder.iterdir()]


def test_many_queues(database_shell: Shell) -> None:
    """Each worker gets its jobs in the order that the README shows."""
    readme = Readme("many_queues")
    (module,) = readme.modules
    printed = database_shell.run(module)

    assert readme.printed == [sorted(printed, key=lambda line: line.startswith("back"))]


def test_held_or_leased(database: Database, database_shell: Shell) -> None:
    """A held job is locked until its worker is killed, a leased one runs again as crashed; SQLite refuses the first."""
    readme = Readme("held_or_leased")
    (module,) = readme.modules
    on_server, refused = (plain(block) for block in readme.printed)
    leased = on_server[on_server.index("claim='leased'") :]

    assert (on_server if database.row_locks else refused + leased) == database_shell.run(module)


@pytest.mark.parametrize("name", NAMES)
def test_readme(name: str) -> None:
    """A README has at most thirty lines, and names the file that its example makes where it is run."""
    lines = Readme(name).lines

    assert len(lines) <= MOST_LINES
    assert any(f"{name}.db" in line for line in lines)


def test_every_example_is_run() -> None:
    """There is no example that these tests do not know, beside the demo, which has tests of its own."""
    assert {*NAMES, "demo"} == {path.parent.name for path in FOLDER.glob("*/README.md")}
