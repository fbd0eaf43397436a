"""How to run MariaDB: the distribution's programs, or the long-term release's image."""

import signal
from pathlib import Path

from tests.servers import container, mysql
from tests.servers.errors import ServerMissingError
from tests.servers.programs import find_program, is_root
from tests.servers.recipe import Recipe

OPTIONS = [
    "--character-set-server=utf8mb4",
    "--innodb-buffer-pool-size=128M",
    "--innodb-doublewrite=OFF",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-log-file-size=16M",
    "--innodb-print-all-deadlocks=ON",
    "--max-connections=300",
    "--skip-name-resolve",
]


def recipe(folder: Path, port: int) -> Recipe:
    """Choose the machine's MariaDB, else a container."""
    server, installer = find_program("mariadbd"), find_program("mariadb-install-db")
    if server and installer:
        return run(server, installer, folder, port)
    if engine := container.find_engine():
        return contained(engine, port)
    raise ServerMissingError("no MariaDB: run tests/setup, install mariadb-server, or start a container engine")


def run(server: Path, installer: Path, folder: Path, port: int) -> Recipe:
    """Run the machine's programs; `--no-defaults` keeps the machine's own settings out and must stand first."""
    data = ["--no-defaults", *mysql.private_folders(folder), *(["--user=root"] if is_root() else [])]
    return Recipe(
        url=mysql.url("mariadb", port),
        prepare=[str(installer), *data, "--auth-root-authentication-method=normal", "--skip-test-db"],
        command=[str(server), *data, *mysql.private_options(folder, port), *OPTIONS],
    )


def contained(engine: str, port: int) -> Recipe:
    """Run the image of the long-term release, as its root user since the image restricts others to one database."""
    return Recipe(
        url=mysql.url("mariadb", port, user="root"),
        command=[*container.run(engine, port, 3306, MARIADB_ROOT_PASSWORD=mysql.PASSWORD), "mariadb:lts", *OPTIONS],
        stop_signal=signal.SIGTERM,
        patience=container.PATIENCE,
    )
