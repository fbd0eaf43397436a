"""What a worker tells the server of its statements is told once a connection, where no pooler could hand that to somebody else."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import events
from proletarian_sa.dialects.planner import TOUCHED, is_direct
from tests.observing import PATIENCE, add
from tests.proxies import Proxy
from tests.servers.database import Database

SESSION = b"K\0\0\0\x0c"
"""How the message begins in which PostgreSQL tells a new client the number of its session."""
NAMES = [*TOUCHED, "idle_in_transaction_session_timeout"]
EACH_TIME = {"held": "set_config('idle_in_transaction", "leased": "set_config('"}
"""What is in the statements that tell it to one transaction."""
LOOK = sa.select(*(sa.func.current_setting(name).label(name) for name in NAMES))


class Pooler(Proxy):
    """As a pooler in transaction mode does, tells its clients numbers of its own."""

    def _carry(self, source: Any, target: Any, flow: threading.Event) -> None:
        super()._carry(Renumbered(source), target, flow)


class Renumbered:
    """A socket from which another number is read."""

    def __init__(self, under: Any) -> None:
        self._under = under

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)

    def __enter__(self) -> None:
        self._under.__enter__()

    def __exit__(self, *error: object) -> None:
        self._under.__exit__(*error)

    def recv(self, size: int) -> bytes:
        """Read, with the number of another session."""
        data: bytes = self._under.recv(size)
        at = data.find(SESSION)
        return data if at < 0 else data[: at + 5] + b"\x7f\0\0\0" + data[at + 9 :]


@pytest.fixture
def pooler(database: Database) -> Iterator[Pooler]:
    """Return the way to the database through it."""
    database.require("listen")  # as PostgreSQL alone can
    made = Pooler(database.url)
    yield made
    made.close()


class Jobs:
    """A worker on an engine with a setting of the application's, and what its jobs see of the server's settings."""

    def __init__(self, engine: sa.Engine, work: Callable[..., Any], claim: str) -> None:
        self._claim = claim
        self.seen: list[dict[str, str]] = []
        self.told: list[str] = []
        sa.event.listen(engine, "connect", _prefer)
        sa.event.listen(engine, "before_cursor_execute", lambda _connection, _cursor, statement, *_: self.told.append(statement))
        self._engine = engine
        self.worker, self._recorder = work(self._look, engine, claim=claim)
        self.worker.start()

    def _look(self, job: Any) -> None:
        if self._claim == "held":  # leased, the handler's connection is none of the worker's
            self.seen.append(dict(job.session.execute(LOOK).mappings().one()))

    def run(self, queue_engine: sa.Engine, count: int) -> int:
        """Run so many jobs one after the other, and return how often the server was told how to plan."""
        self.told.clear()
        for _ in range(count):
            job_id = add(queue_engine)
            self._recorder.wait_for(events.JobSucceeded, job_id=job_id)
        return len([statement for statement in self.told if EACH_TIME[self._claim] in statement])

    def stop(self) -> list[dict[str, str]]:
        """Stop the worker, and return what its connections say in a transaction of somebody else's."""
        self.worker.stop(PATIENCE)
        connections = [self._engine.connect() for _ in range(self._engine.pool.checkedin())]  # type: ignore[attr-defined]
        try:
            return [dict(connection.execute(LOOK).mappings().one()) for connection in connections]
        finally:
            for connection in connections:
                connection.close()


def _prefer(connection: Any, _record: object) -> None:
    connection.execute("SET enable_sort = off")
    connection.execute("SET idle_in_transaction_session_timeout = '77s'")
    connection.commit()


@pytest.mark.parametrize("claim", EACH_TIME)
def test_directly_the_session_is_told_once(
    database: Database, queue_engine: sa.Engine, work: Callable[..., Any], claim: str
) -> None:
    """A handler sees the application's settings; when the worker has stopped, its connections have them as before."""
    database.require("listen")
    jobs = Jobs(database.create_engine(), work, claim)
    jobs.run(queue_engine, 1)
    told = jobs.run(queue_engine, 3)
    after = jobs.stop()

    assert 0 == told
    assert {("on", "off")} >= {(seen["enable_seqscan"], seen["enable_sort"]) for seen in jobs.seen}
    assert {("on", "off", "77s")} == {_shown(one) for one in after}
    assert after


@pytest.mark.parametrize("claim", EACH_TIME)
def test_behind_a_pooler_each_transaction_is_told(
    pooler: Pooler, queue_engine: sa.Engine, work: Callable[..., Any], claim: str
) -> None:
    """Idle transactions: what one client sets for a session another client may find: so nothing is set for longer than it."""
    engine = sa.create_engine(pooler.url)
    jobs = Jobs(engine, work, claim)
    jobs.run(queue_engine, 1)
    told = jobs.run(queue_engine, 3)
    after = jobs.stop()
    engine.dispose()

    assert told >= 3
    assert {("on", "off")} >= {(seen["enable_seqscan"], seen["enable_sort"]) for seen in jobs.seen}
    assert {("on", "off", "77s")} == {_shown(one) for one in after}


def test_asking_leaves_no_transaction(pooler: Pooler) -> None:
    """Idle transactions: behind a pooler, too, nothing is open when a connection has been set up."""
    engine = sa.create_engine(pooler.url)
    with engine.connect() as connection:
        direct = is_direct(connection)
        open_still = connection.in_transaction()
    engine.dispose()

    assert (False, False) == (direct, open_still)


def _shown(settings: dict[str, str]) -> tuple[str, str, str]:
    return (
        settings["enable_seqscan"],
        settings["enable_sort"],
        settings["idle_in_transaction_session_timeout"].replace("1min 17s", "77s"),
    )
