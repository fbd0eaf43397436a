"""A Galera cluster of three nodes of MariaDB, each of which takes writes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clusters.node import Node, free_ports, nodes_in, own_folder, run_as, server_user
from tests.servers import mariadb, mysql
from tests.servers.errors import ServerMissingError
from tests.servers.programs import find_program

SIZE = 3
LIBRARIES = ["/usr/lib/galera", "/usr/lib64/galera-4", "/usr/lib64/galera", "/usr/lib/galera-4"]
SYNCED = "SELECT variable_value = 'Synced' FROM information_schema.global_status WHERE variable_name = 'wsrep_local_state_comment'"
OPTIONS = [
    "--wsrep-on=ON",
    "--wsrep-cluster-name=proletarian",
    "--wsrep-node-address=127.0.0.1",
    "--wsrep-sst-method=rsync",
    "--binlog-format=ROW",
    "--innodb-autoinc-lock-mode=2",
    "--default-storage-engine=InnoDB",
    # after SIGKILL a node has all that it has committed, and asks the others only for what came later
    "--innodb-flush-log-at-trx-commit=2",
]


@contextmanager
def galera() -> Iterator[list[Node]]:
    """Run the cluster."""
    with nodes_in(write, start) as nodes:
        yield nodes


def write(cluster: Path) -> list[Node]:
    """Prepare the nodes; the first one has data, the others fetch it from there."""
    library = provider()
    server, installer = (find_program(name) for name in ("mariadbd", "mariadb-install-db"))
    if server is None or installer is None or find_program("rsync") is None:
        raise ServerMissingError("a node needs mariadbd and rsync; on Debian: apt-get install mariadb-server galera-4 rsync lsof")
    ports = free_ports(4 * SIZE)
    group = [f"127.0.0.1:{port}" for port in ports[SIZE : 2 * SIZE]]
    nodes = []
    for number in range(SIZE):
        folder = own_folder(cluster, f"galera{number + 1}")
        client, listen, state, increment = ports[number::SIZE]
        provider_options = (
            f"gmcast.listen_addr=tcp://127.0.0.1:{listen};ist.recv_addr=127.0.0.1:{increment};gcache.size=64M;"
            "evs.keepalive_period=PT0.5S;evs.suspect_timeout=PT2S;evs.inactive_timeout=PT5S"
        )
        base = [str(server), "--no-defaults", *mysql.private_folders(folder)]
        command = [
            *base,
            *(option for option in mysql.private_options(folder, client) if not option.startswith("--init-file")),
            *mariadb.OPTIONS,
            *OPTIONS,
            f"--wsrep-provider={library}",
            f"--wsrep-provider-options={provider_options}",
            f"--wsrep-cluster-address=gcomm://{','.join(group)}",
            f"--wsrep-sst-receive-address=127.0.0.1:{state}",
            f"--wsrep-node-name={folder.name}",
        ]
        nodes.append(
            Node(folder.name, folder, mysql.url("mariadb", client), command, folder / "pid", question=SYNCED, user=server_user())
        )
    data = [*mysql.private_folders(nodes[0].folder), "--auth-root-authentication-method=normal", "--skip-test-db"]
    run_as(server_user(), [installer, "--no-defaults", *data])
    for node in nodes[1:]:
        own_folder(node.folder, "data")
    return nodes


def start(nodes: list[Node]) -> None:
    """Start the first node as a cluster of one, and let the others join, one by one."""
    first, *others = nodes
    first.start("--wsrep-new-cluster", f"--init-file={first.folder / 'start.sql'}")
    first.wait()
    for node in others:
        node.start()
        node.wait()


def rejoin(node: Node) -> None:
    """Start a node that was killed: it recovers, says how far it came, and fetches the rest from the others."""
    told = run_as(node.user, [*node.command, "--wsrep-recover"])
    position = re.search(r"Recovered position:\s*(\S+)", told)
    node.start(*([f"--wsrep-start-position={position[1]}"] if position else []))


def provider() -> Path:
    """Return Galera's library."""
    found = [path for place in LIBRARIES for path in Path(place).glob("libgalera_smm.so")]
    if not found:
        raise ServerMissingError("no Galera library; on Debian: apt-get install galera-4 mariadb-server rsync lsof")
    return found[0]
