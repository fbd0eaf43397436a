"""A group of three MySQL servers, of which one takes writes, or each does."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pymysql
import sqlalchemy as sa

from tests.clusters.node import Node, free_ports, nodes_in, own_folder, run_as
from tests.servers import mysql
from tests.servers.errors import ServerFailedError, ServerMissingError
from tests.servers.programs import find_program, is_root

SIZE = 3
ONLINE = "SELECT member_state = 'ONLINE' FROM performance_schema.replication_group_members WHERE member_id = @@GLOBAL.server_uuid"
PRIMARY = "SELECT member_port FROM performance_schema.replication_group_members WHERE member_role = 'PRIMARY'"
OPTIONS = [
    "--bind-address=127.0.0.1",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--plugin-load-add=group_replication.so",
    "--report-host=127.0.0.1",
    "--secure-file-priv=NULL",
    "--socket=s",  # within the data folder; a full path could be too long for a socket
    "--loose-group-replication-recovery-get-public-key=ON",
    "--loose-group-replication-member-expel-timeout=0",
    "--loose-group-replication-unreachable-majority-timeout=20",
    # after SIGKILL a node has all that it has committed, and asks the others only for what came later
    "--innodb-flush-log-at-trx-commit=2",
    "--sync-binlog=0",
]


@contextmanager
def group(*, several_primaries: bool) -> Iterator[list[Node]]:
    """Run the group."""
    with nodes_in(partial(write, several_primaries=several_primaries), start) as nodes:
        yield nodes


def write(cluster: Path, *, several_primaries: bool) -> list[Node]:
    """Prepare the nodes, each with empty data of its own and a user that the group is not told of."""
    program = server_program()
    ports = free_ports(2 * SIZE)
    name = str(uuid.uuid4())
    seeds = ",".join(f"127.0.0.1:{port}" for port in ports[SIZE:])
    nodes = []
    for number in range(SIZE):
        folder = own_folder(cluster, f"group{number + 1}")
        client, local = ports[number::SIZE]
        base = [*program, *mysql.private_folders(folder), *(["--user=root"] if is_root() else [])]
        command = [
            *base,
            f"--port={client}",
            f"--report-port={client}",
            f"--pid-file={folder / 'pid'}",
            f"--server-id={number + 1}",
            *(option for option in mysql.OPTIONS if option != "--disable-log-bin" and "flush-log" not in option),
            *OPTIONS,
            f"--loose-group-replication-group-name={name}",
            f"--loose-group-replication-group-seeds={seeds}",
            f"--loose-group-replication-local-address=127.0.0.1:{local}",
            f"--loose-group-replication-single-primary-mode={'OFF' if several_primaries else 'ON'}",
            f"--loose-group-replication-enforce-update-everywhere-checks={'ON' if several_primaries else 'OFF'}",
        ]
        start_file = folder / "start.sql"
        start_file.write_text(
            "SET SQL_LOG_BIN = 0;\n"
            f"CREATE USER 'app'@'%' IDENTIFIED BY '{mysql.PASSWORD}';\n"
            "GRANT ALL ON *.* TO 'app'@'%' WITH GRANT OPTION;\n"
        )
        run_as(None, [*base, "--initialize-insecure", "--innodb-doublewrite=OFF"])
        nodes.append(Node(folder.name, folder, mysql.url("mysql", client), command, folder / "pid", question=ONLINE))
    return nodes


def start(nodes: list[Node]) -> None:
    """Let the first node found the group, and the others join."""
    for node in nodes:
        node.start("--loose-group-replication-start-on-boot=OFF", f"--init-file={node.folder / 'start.sql'}")
    for number, node in enumerate(nodes):
        wait_for_answer(node)
        node.ask(
            f"CHANGE REPLICATION SOURCE TO SOURCE_USER = 'app', SOURCE_PASSWORD = '{mysql.PASSWORD}' "
            "FOR CHANNEL 'group_replication_recovery'"
        )
        if number == 0:
            node.ask("SET GLOBAL group_replication_bootstrap_group = ON")
        node.ask("START GROUP_REPLICATION")
        node.wait()
        if number == 0:
            node.ask("SET GLOBAL group_replication_bootstrap_group = OFF")


def rejoin(node: Node) -> None:
    """Start a node that was killed: it joins by itself, and fetches what it lacks from the others."""
    node.start("--loose-group-replication-start-on-boot=ON")


def primary(nodes: list[Node]) -> Node:
    """Return the node that takes writes, where one does, as any node knows."""
    for node in nodes:
        if node.serves():
            port = node.ask(PRIMARY)
            return next(node for node in nodes if sa.make_url(node.url).port == port)
    raise ServerFailedError("no node is in the group")


def writable_engine(nodes: list[Node], database: str, **options: object) -> sa.Engine:
    """Create an engine whose connections go to the node that takes writes, whichever that is, as an application may do."""
    urls = [sa.make_url(node.url) for node in nodes]

    def connect() -> pymysql.Connection:
        error: Exception = pymysql.OperationalError(2003, "no node of the group takes writes")
        for url in urls:
            try:
                connection = pymysql.connect(
                    host=url.host, port=url.port, user=url.username, password=url.password, database=database, charset="utf8mb4"
                )
            except pymysql.OperationalError as refused:
                error = refused
                continue
            with connection.cursor() as cursor:
                cursor.execute("SELECT @@GLOBAL.super_read_only")
                if cursor.fetchone() == (0,):
                    return connection
            connection.close()
        raise error

    return sa.create_engine("mysql+pymysql://", creator=connect, **options)


def wait_for_answer(node: Node) -> None:
    """Wait until a node that is in no group yet answers."""
    question, node.question = node.question, "SELECT 1"
    try:
        node.wait()
    finally:
        node.question = question


def server_program() -> list[str]:
    """Return the command of a MySQL server that has the plugin."""
    server = find_program("mysqld")
    if server and mysql.is_mysql(server):
        return [str(server), "--no-defaults"]
    tree = mysql.unpacked_tree()
    if (tree / "usr/lib/mysql/plugin/group_replication.so").exists():
        return mysql.unpacked_program(tree)
    raise ServerMissingError("no MySQL with group replication: run make setup, or install mysql-server")
