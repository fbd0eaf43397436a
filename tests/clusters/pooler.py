"""PgBouncer in transaction mode before one PostgreSQL server."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from tests.clusters import standby
from tests.clusters.node import Node, free_ports, nodes_in, own_folder, server_user
from tests.servers.errors import ServerMissingError
from tests.servers.programs import ask_program, find_program

MOST_CONNECTIONS = 8
"""How many connections the pooler makes to the server: fewer than the workers ask it for."""


@contextmanager
def pooled() -> Iterator[tuple[Node, Node]]:
    """Run the server, and the pooler before it."""
    with standby.alone() as server, pooler_before(sa.make_url(server.url)) as pooler:
        yield server, pooler


@contextmanager
def pooler_before(url: sa.URL, connections: int = MOST_CONNECTIONS) -> Iterator[Node]:
    """Run a pooler before a server, to which it makes no more than these connections for each database."""
    with nodes_in(lambda folder: [write(folder, url, connections)], start) as (pooler,):
        yield pooler


def write(folder: Path, server: sa.URL, connections: int) -> Node:
    """Write the pooler's configuration."""
    program = find_program("pgbouncer")
    if program is None:
        raise ServerMissingError("no PgBouncer; on Debian: apt-get install pgbouncer")
    (port,) = free_ports(1)
    own = own_folder(folder, "pooler")
    users, configuration = own / "users.txt", own / "pgbouncer.ini"
    users.write_text(f'"{server.username}" "{server.password or ""}"\n')
    configuration.write_text(
        "[databases]\n"
        f"* = host=127.0.0.1 port={server.port}\n"
        "[pgbouncer]\n"
        "listen_addr = 127.0.0.1\n"
        f"listen_port = {port}\n"
        "unix_socket_dir =\n"
        "auth_type = trust\n"
        f"auth_file = {users}\n"
        f"pidfile = {own / 'pid'}\n"
        "pool_mode = transaction\n"
        f"default_pool_size = {connections}\n"
        "max_client_conn = 300\n" + ("max_prepared_statements = 200\n" if keeps_prepared_statements() else "")
    )
    for file in (users, configuration):
        os.chmod(file, 0o644)  # noqa: PTH101 - readable by the pooler's user, whatever the umask
    url = server.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    return Node("pgbouncer", own, url, [str(program), str(configuration)], own / "pid", user=server_user())


def keeps_prepared_statements() -> bool:
    """Tell whether this PgBouncer can carry prepared statements from one of the server's sessions to another."""
    found = re.search(r"PgBouncer (\d+)\.(\d+)", ask_program("pgbouncer", "--version"))
    return found is not None and (int(found[1]), int(found[2])) >= (1, 21)


def start(nodes: list[Node]) -> None:
    """Start the pooler."""
    for node in nodes:
        node.start()
        node.wait()
