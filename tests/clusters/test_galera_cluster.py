"""A Galera cluster of three nodes of MariaDB."""

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from proletarian_sa import DatabaseNotSupported, QueueWorker
from tests.clusters import heads
from tests.clusters.galera import galera, rejoin
from tests.clusters.load import Load, engine_on, kill_in_mid_claim, new_database
from tests.clusters.node import Node

UP_TO_DATE = {"connect_args": {"init_command": "SET SESSION wsrep_sync_wait = 1"}}
"""A read waits for what other nodes have committed before."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Run the cluster."""
    with galera() as nodes:
        yield nodes


@pytest.fixture
def engines(nodes: list[Node]) -> Iterator[list[sa.Engine]]:
    """Make a database, and an engine on it through each node."""
    name = new_database(nodes[0])
    engines = [engine_on(node, name, **UP_TO_DATE) for node in nodes]
    yield engines
    for engine in engines:
        engine.dispose()


def test_held_claims_are_refused(engines: list[sa.Engine]) -> None:
    """A node's row locks hold on that node only, so a held claim is refused on each."""
    for engine in engines:
        with pytest.raises(DatabaseNotSupported, match=r"node of a Galera cluster \(wsrep_on=ON\).* Use claim='leased'"):
            QueueWorker(engine, lambda _job: None, handler_mode="advanced", claim="held").start()


def test_claims_at_the_head_of_a_queue(engines: list[sa.Engine], say: Callable[[str], None]) -> None:
    """Nodes that all claim the oldest jobs undo each other's claims, and rarely do when claims have spread for it."""
    before, after = heads.before_and_after(engines)

    say(f"galera, claims at the head of one queue: {before}; spread: {after}")
    assert after.share < 0.1


def test_a_node_is_killed_in_mid_claim(nodes: list[Node], engines: list[sa.Engine], say: Callable[[str], None]) -> None:
    """Four workers on two nodes and producers on three: no job is lost or archived twice, and the node's workers resume."""
    victim = nodes[1]
    load = Load({node.name: engine for node, engine in zip(nodes[:2], engines, strict=False)}, engines)
    with load:
        load.wait_for_success(count=50)
        killed = kill_in_mid_claim(engines[1], victim, load.in_hand[victim.name])
        rejoin(victim)
        victim.wait()
        back = load.wait_for_success(victim.name, since=killed)
        load.finish(engines)

    pause = load.longest_pause(nodes[0].name, killed, back)
    happened = f"killed {victim.name} in mid-claim, its workers recovered in {back - killed:.1f} s, others paused for {pause:.1f} s"
    say(load.line(engines[0], "galera", happened))
    load.check(engines[0])
