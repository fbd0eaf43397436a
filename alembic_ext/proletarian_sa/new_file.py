"""A new revision of a project: whole and found by Alembic, or nothing of it is left behind."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from importlib.util import cache_from_source, decode_source
from pathlib import Path
from typing import TYPE_CHECKING, Final

from alembic.script import ScriptDirectory
from alembic.util import CommandError

from alembic_ext.proletarian_sa.body import MYSQL, versions_written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from alembic.config import Config
    from alembic.script import Script

    from alembic_ext.proletarian_sa.body import Names

_NEEDED: Final = {
    "op": "from alembic import op",
    "sa": "import sqlalchemy as sa",
    "revision": "revision = ${repr(up_revision)}",
}


def source(path: Path) -> str:
    """Return the text of a revision, in the encoding that it declares; nothing where there is no source."""
    if path.suffix != ".py":
        return ""
    try:
        return decode_source(path.read_bytes())
    except (SyntaxError, UnicodeDecodeError):  # in a comment, Python forgives
        return path.read_text(encoding="utf-8", errors="replace")


@contextmanager
def whole_or_nothing(directory: ScriptDirectory, revision: str) -> Iterator[AbstractSet[Path]]:
    """Yield the files that are there, and if what is done then fails, take back what it has left of the revision.

    Args:
        directory: The project's.
        revision: The id of the revision that is about to be written.
    """
    places = [Path(place) for place in directory._version_locations]
    before = {path: path.read_bytes() for place in places for path in place.rglob("*.py")}
    folders = {folder for place in places for folder in (place, *place.rglob("*")) if folder.is_dir()}
    try:
        yield before.keys()
    except BaseException:
        for place in places:
            _take_back(place, before, folders, revision.encode())
        raise


def _take_back(place: Path, before: dict[Path, bytes], folders: set[Path], revision: bytes) -> None:
    for path in place.rglob("*.py"):
        content = path.read_bytes()
        if content == before.get(path) or (content and revision not in content):
            continue  # not ours; what a full disk has left of ours is empty
        if path in before:
            path.write_bytes(before[path])
        else:
            path.unlink()
        Path(cache_from_source(path)).unlink(missing_ok=True)
    for folder in sorted({place, *place.rglob("*")} - folders, reverse=True):  # what is deepest first
        with suppress(OSError):  # not empty, or no folder
            folder.rmdir()


@contextmanager
def explained() -> Iterator[None]:
    """Say where to look if the project's own template or settings are in the way."""
    try:
        yield
    except (CommandError, OSError):
        raise
    except SyntaxError as error:
        raise ValueError(
            f"The project's script.py.mako makes a revision that is not Python: {error}. As `alembic init` writes them, "
            "${upgrades} and ${downgrades} are indented by four spaces, each in a line of its own; ${message} is in a docstring."
        ) from error
    except Exception as error:
        raise ValueError(
            f"The revision cannot be written, or not imported then: {type(error).__name__}: {error}. Look at the project's "
            "script.py.mako and file_template: `alembic revision` must work, too."
        ) from error


def check_written(script: Script, names: Names, functions: AbstractSet[str], config: Config) -> None:
    """Raise unless the project's template has put everything into the file, and Alembic finds it."""
    missing = functions - versions_written(source(Path(script.path)), names).keys()
    if missing:
        raise ValueError(_why_missing(sorted(missing), config))
    for name, line in {**_NEEDED, "mysql": "${imports}"}.items():
        if not hasattr(script.module, name):
            what = "has no ${imports}" if line == "${imports}" else f"does not say `{line}`"
            where = f", for `{MYSQL}`: put it below its `import sqlalchemy as sa`" if name == "mysql" else ": put it at its top"
            raise ValueError(f"The project's script.py.mako {what}{where}.")
    with suppress(CommandError):
        ScriptDirectory.from_config(config).get_revision(script.revision)
        return
    raise ValueError(
        f"Alembic does not find {script.path}. Does file_template name a folder? Then set recursive_version_locations = true."
    )


def _why_missing(functions: list[str], config: Config) -> str:
    databases = databases_of(config)
    if databases is not None:
        return f"The project has several databases. Say which get the tables, --database NAME, again for more: {databases}."
    if functions == ["upgrade"]:
        return "The project's script.py.mako has no ${upgrades} in its upgrade(): see `alembic init` for how it looks."
    return (
        f"The project's script.py.mako makes no function {', '.join(functions)}. Has the project one database? Then leave out "
        "--database. Has it several? Then name them as its script.py.mako does."
    )


def databases_of(config: Config) -> str | None:
    """Return the names of the project's databases as it has them, None if it has one."""
    here = config.file_config.has_section(config.config_ini_section)
    return config.get_main_option("databases") if here else None
