"""A node of a Galera cluster, whose row locks hold on that node only: held claims are refused, leased ones work."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from proletarian_sa import DatabaseNotSupported, QueueWorker, RetryStrategy, create_all, events, process_next_job
from tests.observing import Recorder, add
from tests.queue_contents import left
from tests.servers import mariadb
from tests.servers.launch import free_port, launch
from tests.servers.programs import find_program
from tests.servers.recipe import Recipe

PLACES = ["/usr/lib/galera", "/usr/lib64/galera-4", "/usr/lib64/galera", "/usr/lib/galera-4"]


def provider() -> Path:
    """Return Galera's library, or skip."""
    found = [path for place in PLACES for path in Path(place).glob("libgalera_smm.so")]
    if not found or not find_program("mariadbd") or not find_program("mariadb-install-db"):
        pytest.skip("no Galera library beside MariaDB's programs")
    return found[0]


def recipe(folder: Path, port: int) -> Recipe:
    """Run a cluster of one node, which listens for others on the loopback only."""
    made = mariadb.recipe(folder, port)
    options = f"gmcast.listen_addr=tcp://127.0.0.1:{free_port()};ist.recv_addr=127.0.0.1:{free_port()};gcache.size=16M"
    made.command.extend(
        [
            "--wsrep-on=ON",
            f"--wsrep-provider={provider()}",
            "--wsrep-cluster-address=gcomm://",
            "--wsrep-cluster-name=proletarian",
            "--wsrep-node-address=127.0.0.1",
            f"--wsrep-provider-options={options}",
            "--wsrep-sst-method=skip",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--default-storage-engine=InnoDB",
        ]
    )
    return made


@pytest.fixture
def node() -> Iterator[sa.Engine]:
    """Return an engine on a database of a node of its own."""
    provider()
    server = launch("galera", recipe)
    try:
        engine = sa.create_engine(server.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql("CREATE DATABASE queue")
        engine.dispose()
        engine = sa.create_engine(sa.make_url(server.url).set(database="queue"))
        create_all(engine)
        yield engine
        engine.dispose()
    finally:
        server.stop()


def test_a_node_of_a_galera_cluster(node: sa.Engine):
    """Held claims are refused by the node's own words, and leased ones do jobs, retries and failures."""
    with node.connect() as connection:
        assert ("ON", "1") == (
            connection.exec_driver_sql("SHOW VARIABLES LIKE 'wsrep_on'").one()[1],
            connection.exec_driver_sql("SHOW STATUS LIKE 'wsrep_cluster_size'").one()[1],
        )
    with pytest.raises(DatabaseNotSupported, match=r"node of a Galera cluster \(wsrep_on=ON\).* Use claim='leased'"):
        QueueWorker(node, lambda _job: None, handler_mode="advanced", claim="held").start()
    for _ in range(2):
        add(node)
    seen = Recorder()
    retry = RetryStrategy(retries=1)

    def handler(job):
        job.session.execute(sa.text("SELECT 1"))
        if job.attempts == 1:
            raise ValueError

    while process_next_job(node, handler, handler_mode="advanced", retry=retry, on_event=seen):
        continue

    assert ([], [("success", 2)] * 2) == left(node)
    assert 2 == len(seen.of(events.JobRetried))
