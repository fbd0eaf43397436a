"""A PostgreSQL server, and a standby that takes over when it is killed."""

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from tests.clusters.load import Load, kill_in_mid_claim, new_database
from tests.clusters.node import Node
from tests.clusters.standby import promote, url_of_both, with_standby


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    """Run both."""
    with with_standby() as nodes:
        yield nodes


def test_a_primary_is_killed_in_mid_claim(nodes: list[Node], say: Callable[[str], None]) -> None:
    """The standby is promoted: workers and producers find it by themselves, and no job is lost or archived twice."""
    primary, standby = nodes
    url = url_of_both(nodes, new_database(primary))
    engines = [sa.create_engine(url, pool_size=20) for _ in range(2)]
    load = Load({f"engine{number}": engine for number, engine in enumerate(engines)}, engines)
    with load:
        load.wait_for_success(count=50)
        killed = kill_in_mid_claim(engines[0], primary, load.in_hand["engine0"])
        promote(standby)
        back = load.wait_for_success(since=killed)
        load.wait_for_success(since=back, count=50)
        load.finish(engines)

    happened = f"killed the primary in mid-claim and promoted the standby, workers recovered in {back - killed:.1f} s"
    say(load.line(engines[0], "postgresql, standby", happened))
    load.check(engines[0])
    for engine in engines:
        engine.dispose()
