"""`proletarian-sa revision --adopt`, and its way back: broken off anywhere, blocked by others, or run twice at the same moment."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from alembic.util import CommandError

from proletarian_sa import check_tables, create_all, drop_all
from tests.helpers import wait_until
from tests.observing import PATIENCE
from tests.original_tables import contents, shape, tables
from tests.servers.sessions import sessions
from tests.test_adopt import left_by_the_original, original, without_order  # noqa: F401 - a fixture among them
from tests.test_alembic import project, run_alembic  # noqa: F401 - a fixture among them

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.long

WAYS = {"upgrade": "head", "downgrade": "base"}
CHANGES = {"upgrade": 5, "downgrade": 3}
"""How many statements change the tables where each is committed: an interruption may follow each."""


class CutError(Exception):
    """The process ended here, as far as the database knows."""


@contextmanager
def cut(count: int) -> Iterator[list[str]]:
    """Break off what runs after so many statements that change our tables; 0: never."""
    done: list[str] = []

    def after(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.split(maxsplit=1)[0] in {"ALTER", "CREATE", "DROP"} and "alembic_version" not in statement:
            done.append(statement)
            if len(done) == count:
                raise CutError

    sa.event.listen(sa.Engine, "after_cursor_execute", after)
    try:
        yield done
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", after)


def test_statements_are_few(original: sa.Engine):  # noqa: F811 - the fixture
    """Each table is changed by one statement, so that it is taken over wholly or not at all, and is copied once."""
    for command, target in WAYS.items():
        with cut(0) as done:
            run_alembic(command, target)
        committed = [statement for statement in done if statement.split(maxsplit=1)[0] != "DROP" or command == "downgrade"]
        assert CHANGES[command] == len(committed), done
        assert 2 == sum(statement.startswith("ALTER") for statement in done)


@pytest.mark.parametrize("count", range(1, CHANGES["upgrade"] + 1))
def test_interrupted_upgrade_is_run_again(original: sa.Engine, count: int):  # noqa: F811 - the fixture
    """After any statement the jobs are as they were, and a second run ends with the same tables."""
    before = contents(original)
    with cut(count), pytest.raises(CutError):
        run_alembic("upgrade", "head")
    assert before == contents(original)
    run_alembic("upgrade", "head")
    adopted = without_order(original)

    assert before == contents(original)
    drop_all(original)
    create_all(original)
    assert adopted == without_order(original)


@pytest.mark.parametrize("count", range(1, CHANGES["downgrade"] + 1))
def test_interrupted_downgrade_is_run_again(original: sa.Engine, count: int):  # noqa: F811 - the fixture
    """On the way back likewise; and the tables can be taken over again."""
    before = contents(original)
    run_alembic("upgrade", "head")
    with cut(count), pytest.raises(CutError):
        run_alembic("downgrade", "base")
    assert before == contents(original)
    run_alembic("downgrade", "base")
    assert left_by_the_original(original) == {kind: (set(columns), indexes) for kind, (columns, indexes) in shape(original).items()}

    run_alembic("upgrade", "head")
    check_tables(original)
    assert before == contents(original)


def patience(project: Path, seconds: int) -> None:  # noqa: F811 - the fixture
    """Let the revision wait for locks for so long."""
    (path,) = (project / "migrations" / "versions").glob("*.py")
    text = path.read_text()
    for given in ("'lock_timeout', '5s'", "lock_wait_timeout = 5"):
        assert given in text
        text = text.replace(given, given.replace("5", str(seconds)))
    path.write_text(text)


@pytest.mark.parametrize(("command", "kind"), [("upgrade", "job"), ("upgrade", "archived_job"), ("downgrade", "job")])
def test_a_long_transaction_is_not_waited_for(project: Path, original: sa.Engine, command: str, kind: str):  # noqa: F811 - the fixtures
    """While somebody's transaction has a table in use, the migration gives up and says so; after its end a second run finishes."""
    patience(project, 1)
    before = contents(original)
    if command == "downgrade":
        run_alembic("upgrade", "head")
    untouched = shape(original)[kind]
    with original.connect() as other:
        other.execute(sa.select(tables(original)[kind].c.job_id))
        with pytest.raises(CommandError, match="are in use, by a long transaction or a held job, so this migration gave up"):
            run_alembic(command, WAYS[command])
    assert untouched == shape(original)[kind]
    run_alembic(command, WAYS[command])

    assert untouched != shape(original)[kind]
    assert before == contents(original)


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def waiting(connection: sa.Connection) -> int:
    """Return how many others wait for a lock in this database."""
    if connection.dialect.name == "postgresql":
        return int(connection.exec_driver_sql(WAITING).scalar_one())
    url = connection.engine.url
    return sum(one.database == url.database and (one.state or "").endswith(" metadata lock") for one in sessions(url))


def test_two_at_the_same_moment(project: Path, original: sa.Engine):  # noqa: F811 - the fixtures
    """Of two upgrades that begin together one succeeds; the tables are whole, and a third has nothing left to do."""
    patience(project, 50)
    before = contents(original)
    command = [sys.executable, "-m", "alembic", "upgrade", "head"]
    looks = original.execution_options(isolation_level="AUTOCOMMIT")
    with ThreadPoolExecutor(1) as threads, looks.connect() as watching:
        with original.connect() as other:
            other.execute(sa.select(tables(original)["job"].c.job_id))
            here = threads.submit(run_alembic, "upgrade", "head")
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            try:
                wait_until(lambda: waiting(watching) == 2 or here.done(), 2 * PATIENCE, 0.1)
            except AssertionError:
                process.kill()
                raise
        said = process.communicate(timeout=PATIENCE)[0]
        error = here.exception(PATIENCE)

    assert [False, True] == sorted([error is None, process.returncode == 0]), (error, said)
    check_tables(original)
    assert before == contents(original)
    run_alembic("upgrade", "head")
    with original.connect() as connection:
        assert 1 == len(connection.exec_driver_sql("SELECT * FROM alembic_version").all())
