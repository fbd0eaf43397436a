"""A group of three MySQL servers, of which each takes writes, or one."""

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from proletarian_sa import DatabaseNotSupported, QueueWorker
from tests.clusters import heads
from tests.clusters.group import group, primary, rejoin, writable_engine
from tests.clusters.load import Load, engine_on, kill_in_mid_claim, new_database
from tests.clusters.node import Node

UP_TO_DATE = {"connect_args": {"init_command": "SET SESSION group_replication_consistency = 'BEFORE'"}}
"""A transaction waits for what other nodes have committed before."""


@pytest.fixture(scope="module")
def several() -> Iterator[list[Node]]:
    """Run a group of which each member takes writes."""
    with group(several_primaries=True) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def single() -> Iterator[list[Node]]:
    """Run a group of which one member takes writes."""
    with group(several_primaries=False) as nodes:
        yield nodes


@pytest.fixture
def engines(several: list[Node]) -> Iterator[list[sa.Engine]]:
    """Make a database, and an engine on it through each node."""
    name = new_database(several[0])
    engines = [engine_on(node, name) for node in several]
    yield engines
    for engine in engines:
        engine.dispose()


def test_held_claims_are_refused_with_several_primaries(engines: list[sa.Engine]) -> None:
    """A member's row locks hold on that member only, so a held claim is refused on each."""
    for engine in engines:
        with pytest.raises(DatabaseNotSupported, match=r"group with several primaries .* Use claim='leased'"):
            QueueWorker(engine, lambda _job: None, handler_mode="advanced", claim="held").start()


def test_held_claims_work_with_one_primary(single: list[Node]) -> None:
    """All locks are on the primary, so claims can be held there."""
    engine = writable_engine(single, new_database(primary(single)))
    worker = QueueWorker(engine, lambda _job: None, handler_mode="advanced", claim="held")
    with worker:
        assert worker.is_running
    engine.dispose()


def test_claims_at_the_head_of_a_queue(engines: list[sa.Engine], say: Callable[[str], None]) -> None:
    """Members that all claim the oldest jobs undo each other's claims, and rarely do when claims have spread for it."""
    before, after = heads.before_and_after(engines)

    say(f"group, several primaries, claims at the head of one queue: {before}; spread: {after}")
    assert after.share < 0.1


def test_one_of_several_primaries_is_killed_in_mid_claim(
    several: list[Node], engines: list[sa.Engine], say: Callable[[str], None]
) -> None:
    """Four workers on two nodes and producers on three: no job is lost or archived twice, and the node's workers resume."""
    victim = several[1]
    load = Load({node.name: engine for node, engine in zip(several[:2], engines, strict=False)}, engines)
    with load:
        load.wait_for_success(count=50)
        killed = kill_in_mid_claim(engines[1], victim, load.in_hand[victim.name])
        rejoin(victim)
        victim.wait()
        back = load.wait_for_success(victim.name, since=killed)
        load.finish(engines)

    pause = load.longest_pause(several[0].name, killed, back)
    happened = f"killed {victim.name} in mid-claim, its workers recovered in {back - killed:.1f} s, others paused for {pause:.1f} s"
    checked = engine_on(several[0], engines[0].url.database, **UP_TO_DATE)
    say(load.line(checked, "group, several primaries", happened))
    load.check(checked)
    checked.dispose()


def test_the_only_primary_is_killed_in_mid_claim(single: list[Node], say: Callable[[str], None]) -> None:
    """Another member takes over: workers and producers find it, and no job is lost or archived twice."""
    victim = primary(single)
    database = new_database(victim)
    engines = [writable_engine(single, database, pool_size=20) for _ in range(2)]
    load = Load({f"engine{number}": engine for number, engine in enumerate(engines)}, engines)
    with load:
        load.wait_for_success(count=50)
        killed = kill_in_mid_claim(engines[0], victim, load.in_hand["engine0"])
        back = load.wait_for_success(since=killed)
        rejoin(victim)
        victim.wait()
        load.wait_for_success(since=back, count=50)
        load.finish(engines)

    successor = primary(single)
    happened = f"killed the primary {victim.name} in mid-claim, workers recovered on {successor.name} in {back - killed:.1f} s"
    say(load.line(engines[0], "group, one primary", happened))
    assert successor is not victim
    load.check(engines[0])
    for engine in engines:
        engine.dispose()
