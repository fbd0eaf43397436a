"""Two runs of Alembic at the same moment: one succeeds, the other fails cleanly or finds nothing to do, and nothing is broken."""

from typing import Any

import pytest
import sqlalchemy as sa

from tests.helpers import wait_until
from tests.migrators import check_rerun, migrators, stand_at_end, stand_before, stand_no_more  # noqa: F401 - a fixture among them
from tests.second_version import second_version  # noqa: F401 - a fixture
from tests.test_alembic import project  # noqa: F401 - a fixture
from tests.upgrading import at_once, by_steps, keep_jobs, kept  # noqa: F401 - fixtures among them

pytestmark = pytest.mark.long

ROUNDS = 2
INSTALLED = "CommandError: Another run of Alembic has installed the tables of proletarian-sa. Run the same command again."


def is_waiting(engine: sa.Engine) -> bool:
    """Return whether somebody in this database waits for a lock, on PostgreSQL."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with engine.connect() as connection:
        return bool(connection.exec_driver_sql(query).scalar_one())


def both(database: Any, migrators: Any, command: str, target: str) -> list[str]:  # noqa: F811 - the fixture
    """Let both processes run a command at the same moment, and return how they ended."""
    for migrator in migrators:
        migrator.begin(database, command, target)
    return [migrator.end() for migrator in migrators]


def test_at_the_same_moment(by_steps, database, migrators):  # noqa: F811 - the fixtures
    """Of two runs one succeeds at least; what they leave is as after one, and a rerun changes nothing."""
    expected = by_steps.expected()
    for _ in range(ROUNDS):
        for start, end in [(0, 1), (1, 2), (2, 1), (1, 0), (0, 2), (2, 0)]:
            ended = both(database, migrators, "upgrade" if start < end else "downgrade", by_steps.target(end))
            assert "" in ended, ended
            assert (end, expected[end]) == (by_steps.current(), by_steps.catalogue()), ended
            if start < end:
                check_rerun(by_steps, end, expected[end])


POINTS = {
    "before the installation": (1, "from version 0 to version 1", 0, 2),
    "in the installation": (1, 'if not exists("job", op.f("job_unique_key"))', 0, 2),
    "after the installation": (1, "context = op.get_context()", 0, 2),
    "before the upgrade": (2, "from version 1 to version 2", 1, 2),
    "in the upgrade": (2, "op.create_index(", 1, 2),
    "before the downgrade": (2, "from version 2 to version 1", 2, 1),
    "in the downgrade": (2, "op.drop_column(", 2, 1),
    "in the uninstallation": (1, 'op.drop_table("archived_job"', 1, 0),
}


@pytest.mark.parametrize("point", POINTS)
def test_one_runs_while_the_other_stands(by_steps, database, engine, migrators, point):  # noqa: F811 - the fixtures
    """Wherever a run stands still while another does the same and more: one is noted, the other says so, all is whole."""
    version, operation, start, end = POINTS[point]
    expected = by_steps.expected()
    for former, next_one in [(0, 1), (1, 0), *([(0, start)] if start else [])]:
        by_steps.move(former, next_one)
    rows = keep_jobs(engine) if start else []
    slow, fast = migrators
    stand_before(by_steps.files[version], operation)
    command = ("upgrade" if start < end else "downgrade", by_steps.target(end))
    slow.begin(database, *command)
    slow.stand()
    stand_no_more(by_steps.files[version])
    fast.begin(database, *command)
    if database.transactional_ddl and "before" not in point:  # what the one has changed, the other waits for
        wait_until(lambda: is_waiting(engine))
        slow.go_on()
        ended = (fast.end(), slow.end())
    else:
        first = fast.end()
        slow.go_on()
        ended = (first, slow.end())

    assert 1 == ended.count(""), ended
    assert "Traceback" not in "".join(ended)
    assert (end, expected[end]) == (by_steps.current(), by_steps.catalogue()), ended
    assert end == 0 or rows == kept(engine)
    if start < end:
        check_rerun(by_steps, end, expected[end])
    if point == "before the installation":
        assert ("", INSTALLED) == ended


IMPATIENT = {
    "postgresql": {"options": "-c lock_timeout=100ms"},
    "mysql": {"init_command": "SET innodb_lock_wait_timeout = 1"},
    "mariadb": {"init_command": "SET innodb_lock_wait_timeout = 1"},
    "sqlite": {"timeout": "0.05"},
}


def test_nobody_comes_between(by_steps, database, migrators):  # noqa: F811 - the fixtures
    """From the look at what others have done until Alembic has noted the installation, nobody else can note it."""
    expected = by_steps.expected()
    by_steps.move(0, 1)
    by_steps.move(1, 0)
    slow, fast = migrators
    stand_at_end(by_steps.files[1])
    slow.begin(database, "upgrade", "head")
    slow.stand()
    stand_no_more(by_steps.files[1])
    fast.begin(database, "upgrade", "head", IMPATIENT[database.url.get_backend_name()])
    ended = fast.end()
    slow.go_on()

    assert "" == slow.end()
    assert ended.startswith("OperationalError: ")
    check_rerun(by_steps, 2, expected[2])
