"""The examples with an Alembic project, and docs/alembic.md: their commands and what they print, and their revisions."""

import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory
from click.testing import CliRunner

from proletarian_sa import TablesMissing, check_tables
from proletarian_sa.cli import main
from tests.command import ROOT, Command
from tests.servers.database import Database
from tests.test_alembic import project, run_alembic  # noqa: F401 - a fixture among them
from tests.test_examples import FOLDER, PROJECT, Readme, Shell, plain, shell  # noqa: F401 - fixtures among them

pytestmark = pytest.mark.long

BASE = """\
from sqlalchemy.orm import DeclarativeBase
class Base(DeclarativeBase): pass
"""
VARYING = re.compile(r"'[0-9a-f]{12}'|^Revision ID: .*$|^Create Date: .*$", re.MULTILINE)


PROGRAM = """
import alembic.config, shop, sqlalchemy, proletarian_sa
alembic.config.main(["upgrade", "head"])
shop.main()
proletarian_sa.process_next_job(sqlalchemy.create_engine(shop.DATABASE_URL), shop.jobs)
alembic.config.main(["check"])
alembic.config.main(["downgrade", "base"])
"""
"""The README's commands in one process: a process for each takes long."""


class Typed(Command):
    """A command as it stands in a README."""

    def __init__(self, command: str, folder: Path, **environment: str) -> None:
        program, *arguments = shlex.split(command)
        self.program = (str(Path(sys.executable).parent / program),)
        super().__init__(*arguments, cwd=folder, **environment)


def copied(shell: Shell) -> Path:  # noqa: F811 - as the fixture is called
    """Copy the project, so that nothing is made in the repository."""
    return Path(shutil.copytree(FOLDER / PROJECT, shell.folder / PROJECT))


def test_commands(shell: Shell) -> None:  # noqa: F811 - the fixture
    """Each command of the README, typed in the project's folder, does what it says and prints what it shows."""
    readme = Readme(PROJECT)
    enter, upgrade, order, worker, check = readme.commands
    made, used = readme.printed
    folder = copied(shell)
    upgrade_printed = shell.printed(Typed(upgrade, folder))
    use_printed = shell.printed(Typed(order, folder))
    with Typed(worker, folder) as process:
        process.wait_for("a receipt for tea")
        process.process.send_signal(signal.SIGINT)
        assert 0 == process.code(), process.output
        use_printed += plain(process.output)[:2]
    use_printed += shell.printed(Typed(check, folder))[-1:]

    assert f"cd examples/{PROJECT}" == enter
    assert plain(made) == upgrade_printed
    assert plain(used) == use_printed
    assert (folder / f"{PROJECT}.db").exists()


def test_on_every_database(database: Database, engine: sa.Engine, shell: Shell) -> None:  # noqa: F811 - the fixture
    """The project makes its tables, uses them and finds them as they must be on every database; its downgrade drops them."""
    readme = Readme(PROJECT)
    made, (ordered, _started, received, checked) = map(plain, readme.printed)
    process = Typed(f"python -c {shlex.quote(PROGRAM)}", copied(shell), DATABASE_URL=database.url_text)
    printed = shell.printed(process)

    assert made == printed[: len(made)]
    assert [ordered, received, checked] == [line for line in printed if line in {ordered, received, checked}]
    assert "`alembic downgrade base` drops them" in "\n".join(readme.lines)
    assert ["alembic_version"] == sa.inspect(engine).get_table_names()
    with pytest.raises(TablesMissing):
        check_tables(engine)


@pytest.mark.parametrize("name", [PROJECT, "demo"])
def test_revision_is_what_the_command_writes(name: str, tmp_path: Path) -> None:
    """The last revision of the project is, but for its id and date, what `proletarian-sa revision` writes today."""
    copied = Path(shutil.copytree(FOLDER / name, tmp_path / name))
    ini = str(copied / "alembic.ini")
    head = ScriptDirectory.from_config(Config(ini)).get_revision("head")
    assert head is not None
    committed = Path(head.path).read_text()
    Path(head.path).unlink()
    result = CliRunner().invoke(main, ["revision", "-c", ini])
    assert 0 == result.exit_code, result.output
    (written,) = (copied / "migrations" / "versions").glob(f"*{Path(head.path).name.partition('_')[2]}")

    cure = f"Write {head.path} anew, with its id: proletarian-sa revision -c examples/{name}/alembic.ini"
    assert VARYING.sub("…", committed) == VARYING.sub("…", written.read_text()), cure


def test_page_is_followed(project: Path, database: Database, engine: sa.Engine) -> None:  # noqa: F811 - the fixture
    """Who types the first commands of docs/alembic.md into a project, and the lines into env.py, has tables that fit and stay."""
    page = (ROOT / "docs" / "alembic.md").read_text()
    _install, *commands = re.search(r"(?:^ {4}.+\n)+", page, re.MULTILINE)[0].splitlines()
    lines = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    env = project / "migrations" / "env.py"
    env.write_text(env.read_text().replace("target_metadata = None\n", BASE + lines))
    for command in commands:
        program, *words = shlex.split(command)
        if program == "alembic":
            run_alembic(*words)
            continue
        url = [database.url_text if "://" in word else word for word in words]
        result = CliRunner().invoke(main, url)
        assert 0 == result.exit_code, result.output
        assert "env.py" not in result.output  # to which there is nothing to add
    check_tables(engine)

    assert ["revision", "upgrade", "check"] == [shlex.split(command)[1] for command in commands]
    assert "from proletarian-sa" not in run_alembic("check")
