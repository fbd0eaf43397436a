"""A PostgreSQL server and a streaming standby that has each commit before it is confirmed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from tests.clusters.node import Node, free_ports, nodes_in, own_folder, run_as, server_user
from tests.servers import postgresql
from tests.servers.errors import ServerMissingError
from tests.servers.programs import anyone_may_enter

OPTIONS = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "hot_standby": "on", "log_lock_waits": "on"}
CONFIRMED = {"synchronous_standby_names": "*", "synchronous_commit": "on"}
STREAMING = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"


@contextmanager
def with_standby() -> Iterator[list[Node]]:
    """Run both: the first takes writes."""
    with nodes_in(write, start) as nodes:
        yield nodes


@contextmanager
def alone() -> Iterator[Node]:
    """Run one server without a standby."""
    with nodes_in(lambda cluster: write(cluster)[:1], start) as (node,):
        yield node


def write(cluster: Path) -> list[Node]:
    """Prepare the first server; the standby's data is copied from it when it runs."""
    programs = find_programs(cluster)
    nodes = []
    for name, port in zip(("primary", "standby"), free_ports(2), strict=True):
        folder = own_folder(cluster, name)
        settings = [f"--{setting}={value}" for setting, value in OPTIONS.items()]
        command = [str(programs / "postgres"), "-D", str(folder / "data"), "-p", str(port), "-h", "127.0.0.1", "-k", "", *settings]
        nodes.append(
            Node(
                name,
                folder,
                f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres",
                command,
                folder / "data" / "postmaster.pid",
                stop_signal=signal.SIGQUIT,  # at once, but its processes and shared memory go with it
                user=server_user(),
            )
        )
    initialize = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
    run_as(server_user(), [programs / "initdb", "--pgdata", nodes[0].folder / "data", *initialize])
    return nodes


def start(nodes: list[Node]) -> None:
    """Start the first; if there are two, copy its data, let the second follow, and the first wait for it at each commit."""
    primary, *standbys = nodes
    primary.start()
    primary.wait()
    for standby in standbys:
        data = standby.folder / "data"
        source = f"host=127.0.0.1 port={sa.make_url(primary.url).port} user=postgres"
        copy = Path(primary.command[0]).with_name("pg_basebackup")
        run_as(
            standby.user, [copy, "--pgdata", data, "--dbname", source, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        )
        standby.start()
        standby.wait()
        for name, value in CONFIRMED.items():
            primary.ask(f"ALTER SYSTEM SET {name} = '{value}'")
        primary.ask("SELECT pg_reload_conf()")
        primary.question = STREAMING
        primary.wait()


def promote(standby: Node) -> None:
    """Let the standby take writes, as an operator does when the primary is gone."""
    standby.ask("SELECT pg_promote()")


def url_of_both(nodes: list[Node], database: str) -> sa.URL:
    """Return the URL that leads to whichever of the servers takes writes."""
    hosts = [f"127.0.0.1:{sa.make_url(node.url).port}" for node in nodes]
    query = {"host": hosts, "target_session_attrs": "read-write", "connect_timeout": "5"}
    return sa.URL.create("postgresql+psycopg", username="postgres", database=database, query=query)


def find_programs(cluster: Path) -> Path:
    """Return the folder of the newest PostgreSQL's programs that can have a standby, where their user may enter it."""
    found = {version: folder for version, folder in postgresql.installations().items() if (folder / "pg_basebackup").exists()}
    if not found:
        raise ServerMissingError("no PostgreSQL with pg_basebackup; on Debian: apt-get install postgresql")
    programs = found[max(found)]
    if server_user() is not None and not anyone_may_enter(programs):
        programs = postgresql.copy_programs(programs, cluster)
    return programs
