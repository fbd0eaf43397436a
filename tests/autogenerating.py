"""An Alembic project of which env.py registers the tables, and what autogenerate writes into it."""

from __future__ import annotations

import ast
import io
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import alembic
import pytest
from alembic.config import Config
from click.testing import CliRunner

from proletarian_sa import JobTables, default_tables
from proletarian_sa.cli import main
from proletarian_sa.installed import installed_version

if TYPE_CHECKING:
    import sqlalchemy as sa

MODELS = """
import sqlalchemy as sa
from alembic_ext.proletarian_sa import register
from sqlalchemy.orm import DeclarativeBase, mapped_column
from proletarian_sa import ArchivedJobMixin, DatabaseIds, JobMixin, JobTables

class Base(DeclarativeBase):
    metadata = sa.MetaData()

class Customer(Base):
    __tablename__ = "customer"
    id = mapped_column(sa.Integer, primary_key=True)
    name = mapped_column(sa.String(50), nullable=False)
    __table_args__ = (sa.Index("customer_name", "name"),)

options = {}
target_metadata = Base.metadata
"""
"""An application that leaves the queue's tables in their own MetaData."""

REGISTERED = "target_metadata = register(Base.metadata)"
SCHEMAS = """
import os

def looks_into(name, kind, parents):  # a server's other databases are schemas to MySQL and MariaDB
    is_server = os.environ["APP_DATABASE_URL"].startswith(("mysql", "mariadb"))
    return kind != "schema" or name is None or not is_server or name in os.environ.get("APP_SCHEMAS", "").split()

options |= {"include_schemas": True, "include_name": looks_into}
"""
SETTINGS = {
    "plain": "",
    "schemas": SCHEMAS,
    "types": "options |= {'compare_type': True, 'compare_server_default': True}",
    "all": SCHEMAS + "options |= {'compare_type': True, 'compare_server_default': True, 'render_as_batch': True}",
}
"""What a project may say in its `context.configure`."""

Operations = tuple[list[str], list[str]]


class Project:
    """A fresh project of `alembic init` on one database, in the current folder."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.versions = Path("migrations/versions")
        self._env = Path("migrations/env.py")
        self.run("init", "migrations")
        text = self._env.read_text(encoding="utf-8")
        url = "config.set_main_option('sqlalchemy.url', __import__('os').environ['APP_DATABASE_URL'].replace('%', '%%'))\n"
        text = text.replace("config = context.config\n", f"config = context.config\n{url}")
        text = text.replace("fileConfig(config.config_file_name)", "pass")  # logging is pytest's
        self._template = text.replace("target_metadata=target_metadata", "target_metadata=target_metadata, **options")
        self.configure(MODELS)

    def configure(self, *models: str) -> None:
        """Write the application's models and the options of `context.configure` into env.py."""
        text = "\n".join(textwrap.dedent(part) for part in models)
        self._models = text
        self._env.write_text(self._template.replace("target_metadata = None\n", text), encoding="utf-8")

    def metadata(self) -> sa.MetaData:
        """Return the application's MetaData, made anew."""
        made: dict[str, Any] = {"__name__": "models"}
        exec(self._models, made)  # noqa: S102 - the test's own
        return made["target_metadata"]  # type: ignore[no-any-return]

    def run(self, command: str, *arguments: Any, **options: Any) -> Any:
        """Run an Alembic command, and return what it returns, or else what it prints."""
        printed = io.StringIO()
        config = Config("alembic.ini", stdout=printed, output_buffer=printed)
        returned = getattr(alembic.command, command)(config, *arguments, **options)
        return printed.getvalue() if returned is None else returned

    def autogenerate(self) -> Path:
        """Write a revision, and return its file."""
        return Path(self.run("revision", "auto", autogenerate=True).path)

    def upgraded(self) -> Path:
        """Write a revision, run it, and return its file."""
        path = self.autogenerate()
        # On a server that has more databases than this one, a project may see those.
        assert "op.drop_table" not in "".join(operations(path)[0]), path.read_text(encoding="utf-8")
        self.run("upgrade", "head")
        return path

    def proposed(self) -> Operations:
        """Return what autogenerate would write."""
        return self._taken_back(self.autogenerate())

    def commanded(self, *options: str) -> Operations:
        """Return what our command would write."""
        before = set(self.versions.glob("*.py"))
        result = CliRunner().invoke(main, ["revision", *options])
        assert 0 == result.exit_code, result.output
        (path,) = set(self.versions.glob("*.py")) - before
        return self._taken_back(path)

    def check(self) -> str:
        """Return what `alembic check` says, whether it fails or not."""
        try:
            return str(self.run("check"))
        except alembic.util.exc.AutogenerateDiffsDetected as error:
            return str(error)

    def is_quiet(self, times: int = 1) -> bool:
        """Return whether there is nothing to propose, neither at once nor after a further revision, which is run."""
        for _ in range(times):
            path = self.upgraded()
            text = path.read_text(encoding="utf-8")
            assert ([], []) == operations(path), text
            assert "dialects" not in text  # no import without use
            assert "No new upgrade operations detected.\n" == self.check()
        return True

    def _taken_back(self, path: Path) -> Operations:
        found = operations(path)
        path.unlink()
        return found


def operations(path: Path) -> Operations:
    """Return the statements of a revision's two functions, without comments and whatever their format."""
    text = path.read_text(encoding="utf-8")
    functions = {item.name: item.body for item in ast.parse(text).body if isinstance(item, ast.FunctionDef)}
    upgrade, downgrade = (
        [ast.unparse(item) for item in functions[name] if not isinstance(item, ast.Pass) and not _is_docstring(item)]
        for name in ("upgrade", "downgrade")
    )
    return upgrade, downgrade


def _is_docstring(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)


@pytest.fixture
def app(tmp_path: Path, database: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Make a fresh Alembic project of an application on the database, which registers the tables."""
    monkeypatch.setenv("APP_DATABASE_URL", database.url_text)
    monkeypatch.chdir(tmp_path)
    return Project(engine)


def of_the_app(app: Project, *models: str) -> None:
    """Install what the application has without the queue."""
    app.configure(MODELS, *models)
    app.upgraded()


def version_of(engine: sa.Engine, tables: JobTables = default_tables) -> int:
    """Return the version of the tables in the database."""
    with engine.connect() as connection:
        return installed_version(connection, tables)
