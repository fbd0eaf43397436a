"""Fresh Alembic projects, as `alembic init` makes them of each of its templates, and our command in them."""

from __future__ import annotations

import io
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import alembic
import pytest
import sqlalchemy as sa
from alembic.config import Config
from click.testing import CliRunner, Result

from proletarian_sa import check_tables
from proletarian_sa.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = sa.make_url("sqlite:///app.db")
HAS_TOML = hasattr(Config, "toml_file_name")
MAKES_FOLDERS = HAS_TOML
"""Alembic makes the folders in which a revision is to stand: since the same release, 1.16."""
SINGLE = ("generic", "async", "pyproject", "pyproject_async")
"""The templates for one database."""


@dataclass(frozen=True)
class Project:
    """A project of one of Alembic's templates, in a folder of its own."""

    folder: Path
    template: str

    @property
    def ini(self) -> Path:
        """The settings."""
        return self.folder / "alembic.ini"

    @property
    def env(self) -> Path:
        """The environment script."""
        return self.folder / "migrations" / "env.py"

    @property
    def mako(self) -> Path:
        """The template of revisions."""
        return self.folder / "migrations" / "script.py.mako"

    def config(self, **options: Any) -> Config:
        """Return the configuration, as Alembic's own command finds it."""
        toml = {"toml_file": self.folder / "pyproject.toml"} if HAS_TOML else {}
        return Config(str(self.ini), **toml, **options)

    def alembic(self, command: str, *arguments: Any, attributes: dict[str, Any] | None = None, **options: Any) -> str:
        """Run one of Alembic's own commands, and return what it prints."""
        printed = io.StringIO()
        config = self.config(stdout=printed, output_buffer=printed, attributes=attributes)
        getattr(alembic.command, command)(config, *arguments, **options)
        return printed.getvalue()

    def write(self, *options: str) -> Path:
        """Run our command, and return the path that it says."""
        result = revise(*options)
        assert 0 == result.exit_code, result.output
        match = re.search(r"^Wrote (.*)\. Review it, then run: ", result.output, re.MULTILINE)
        assert match, result.output
        return Path(match[1])

    def refused(self, *options: str) -> str:
        """Expect our command to refuse, without a traceback, and to leave all files and folders as they are."""
        before = self.files()
        result = revise(*options)
        assert isinstance(result.exception, SystemExit), result.exception
        assert before == self.files()
        return result.output

    def files(self) -> dict[str, bytes | None]:
        """Return all files with their contents, and all folders, but for what Python keeps of files that are there."""
        kept = (path for path in self.folder.rglob("*") if path.name != "__pycache__" and not self._is_of_source(path))
        return {str(path.relative_to(self.folder)): path.read_bytes() if path.is_file() else None for path in kept}

    @staticmethod
    def _is_of_source(path: Path) -> bool:
        return path.suffix == ".pyc" and (path.parent.parent / f"{path.name.split('.')[0]}.py").exists()

    def revisions(self) -> list[str]:
        """Return the names of all revision files."""
        return sorted(path.name for path in self.folder.rglob("versions*/**/*.py"))

    def set(self, name: str, value: str) -> None:
        """Set an option in the file that the template has it in."""
        if self.template.startswith("pyproject"):
            file, line = self.folder / "pyproject.toml", f"{name} = {value if value in ('true', 'false') else repr(value)}"
            section = "[tool.alembic]"
        else:
            file, line, section = self.ini, f"{name} = {value}", "[alembic]"
        text = re.sub(rf"^{re.escape(name)} = .*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        file.write_text(text.replace(f"{section}\n", f"{section}\n{line}\n", 1), encoding="utf-8")

    def replace(self, file: Path, old: str, new: str) -> None:
        """Change a text that must be there in a file of the project."""
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    def register(self, tables: str = "default_tables") -> None:
        """Put into env.py what our command advises, for a project without models of its own."""
        lines = (
            "import sqlalchemy",
            "from alembic_ext.proletarian_sa import register",
            "from proletarian_sa import DatabaseIds, JobTables, default_tables",
            f"target_metadata = register(sqlalchemy.MetaData(), tables={tables})",
        )
        self.replace(self.env, "\ntarget_metadata = None\n", "\n" + "\n".join(lines) + "\n")

    def revision(self, name: str, *, down: str | None = None, label: str | None = None, folder: str = "versions") -> None:
        """Write a revision of the application's own."""
        path = self.folder / "migrations" / folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        head = f"revision = {name!r}\ndown_revision = {down!r}\nbranch_labels = {label!r}\n"
        path.write_text(f"{head}\ndef upgrade(): pass\n\ndef downgrade(): pass\n", encoding="utf-8")

    def installs(self) -> None:
        """Let Alembic run the revisions of a project on FILE, and expect the tables."""
        self.alembic("upgrade", "heads")
        check_tables(sa.create_engine(f"sqlite:///{Path('app.db').absolute()}", poolclass=sa.NullPool))


def revise(*options: str) -> Result:
    """Run our command in the current folder."""
    return CliRunner().invoke(main, ["revision", *options])


def init(folder: Path, template: str = "generic", *urls: sa.URL) -> Project:
    """Make a fresh project on databases."""
    if template.startswith("pyproject") and not HAS_TOML:
        pytest.skip("no pyproject templates")
    folder.mkdir(parents=True, exist_ok=True)
    project = Project(folder, template)
    alembic.command.init(project.config(stdout=io.StringIO()), str(folder / "migrations"), template=template)
    ini = project.ini.read_text(encoding="utf-8")
    for url in urls:
        text = url.render_as_string(hide_password=False).replace("%", "%%")
        ini = re.sub(
            r"^sqlalchemy.url = driver:.*$", lambda _match, text=text: f"sqlalchemy.url = {text}", ini, count=1, flags=re.MULTILINE
        )
    ini = re.sub(r"^(version_path_separator = \w+) .*$", r"\1", ini, flags=re.MULTILINE)  # in Alembic 1.13 a comment that is none
    project.ini.write_text(ini, encoding="utf-8")
    project.replace(project.env, "fileConfig(config.config_file_name)", "pass  # logging is pytest's")
    return project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Make a fresh project of the generic template on a file, and go there."""
    project = init(tmp_path / "app", "generic", FILE)
    monkeypatch.chdir(project.folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # what Python keeps must go, too
    return project


@pytest.fixture
def app(tmp_path: Path, database: Any, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Make a fresh project of the generic template on the database, and go there."""
    project = init(tmp_path / "app", "generic", database.url)
    monkeypatch.chdir(project.folder)
    return project


@contextmanager
def executed() -> Iterator[list[str]]:
    """Yield the list of the statements that change a schema, as any engine of this process executes them."""
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.split(maxsplit=1)[0].upper() in {"CREATE", "ALTER", "DROP"}:
            statements.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def url_for(template: str, database: Any) -> sa.URL:
    """Return the URL of a database for the driver that a template needs."""
    url: sa.URL = database.async_url if template.endswith("async") else database.url
    return url
