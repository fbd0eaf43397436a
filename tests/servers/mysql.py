"""How to run MySQL: the machine's programs, the tree that `tests/setup` unpacks, or an image."""

import os
import signal
from pathlib import Path

from tests.servers import container
from tests.servers.errors import ServerMissingError
from tests.servers.programs import ask_program, find_program, is_root
from tests.servers.recipe import Recipe

PASSWORD = "app"  # noqa: S105 - for a server that listens on the loopback and is thrown away
OPTIONS = [
    "--disable-log-bin",
    "--innodb-buffer-pool-size=128M",
    "--innodb-doublewrite=OFF",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-print-all-deadlocks=ON",
    "--max-connections=300",
    "--mysqlx=OFF",
    "--performance-schema=ON",
    "--skip-name-resolve",
]


def recipe(folder: Path, port: int) -> Recipe:
    """Choose the machine's MySQL, else the unpacked one, else a container."""
    server = find_program("mysqld")
    if server and is_mysql(server):
        return run([str(server)], folder, port)
    if (unpacked_tree() / "usr/sbin/mysqld").exists():
        return run(unpacked_program(unpacked_tree()), folder, port)
    if engine := container.find_engine():
        return contained(engine, port)
    raise ServerMissingError("no MySQL: run tests/setup, install mysql-server, or start a container engine")


def is_mysql(server: Path) -> bool:
    """Tell MySQL from MariaDB, which installs a `mysqld` too."""
    answer = ask_program(server, "--no-defaults", "--version")
    return bool(answer) and "MariaDB" not in answer


def unpacked_tree() -> Path:
    """Say where `tests/setup` unpacks MySQL."""
    cache = os.environ.get("PROLETARIAN_CACHE") or Path(__file__).resolve().parents[2] / ".cache"
    return Path(cache).absolute() / "mysql"


def unpacked_program(tree: Path) -> list[str]:
    """Run an unpacked server with the C library it came with, which may be newer than the machine's."""
    server = [
        str(tree / "usr/sbin/mysqld"),
        "--no-defaults",
        f"--basedir={tree / 'usr'}",
        f"--lc-messages-dir={tree / 'usr/share/mysql'}",
        f"--plugin-dir={tree / 'usr/lib/mysql/plugin'}",
    ]
    loader = next(tree.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*"), None)
    if loader is None:
        return server
    return [str(loader), "--library-path", f"{loader.parent}:{loader.parent / 'mysql'}", *server]


def run(program: list[str], folder: Path, port: int) -> Recipe:
    """Run a server program; `--no-defaults` keeps the machine's own settings out and must stand first."""
    base = program if "--no-defaults" in program else [*program, "--no-defaults"]
    base = [*base, *private_folders(folder), *(["--user=root"] if is_root() else [])]
    return Recipe(
        url=url("mysql", port),
        prepare=[*base, "--initialize-insecure", "--innodb-doublewrite=OFF"],
        command=[*base, *private_options(folder, port), "--secure-file-priv=NULL", *OPTIONS],
    )


def private_folders(folder: Path) -> list[str]:
    """Keep a server's data and temporary tables to itself: one that starts removes others from a shared folder."""
    return [f"--datadir={folder / 'data'}", f"--tmpdir={folder}"]


def private_options(folder: Path, port: int) -> list[str]:
    """Keep a server to itself: its files in the folder, its port on the loopback, a user to connect as."""
    start = folder / "start.sql"
    start.write_text(f"CREATE USER 'app'@'%' IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON *.* TO 'app'@'%' WITH GRANT OPTION;\n")
    return [
        "--bind-address=127.0.0.1",
        f"--port={port}",
        f"--init-file={start}",
        f"--pid-file={folder / 'pid'}",
        "--socket=s",  # within the data folder; a full path could be too long for a socket
    ]


def contained(engine: str, port: int) -> Recipe:
    """Run the image, as its root user since the image restricts others to one database."""
    return Recipe(
        url=url("mysql", port, user="root"),
        command=[*container.run(engine, port, 3306, MYSQL_ROOT_PASSWORD=PASSWORD), "mysql:9", *OPTIONS],
        stop_signal=signal.SIGTERM,
        patience=container.PATIENCE,
    )


def url(family: str, port: int, user: str = "app") -> str:
    """Spell the SQLAlchemy URL of a server of this family, with no database chosen."""
    return f"{family}+pymysql://{user}:{PASSWORD}@127.0.0.1:{port}/?charset=utf8mb4"
