"""PgBouncer in transaction mode, with and without prepared statements."""

from collections.abc import Callable, Iterator

import pytest

from proletarian_sa import JobTables, QueueWorker, enqueue_many, events
from tests.clusters.load import LEASE, PATIENCE, Load, engine_on, kill_in_mid_claim, new_database
from tests.clusters.node import Node
from tests.clusters.pooler import keeps_prepared_statements, pooled
from tests.helpers import wait_until
from tests.observing import Recorder
from tests.queue_contents import archived, queued_ids

WITHOUT = {"connect_args": {"prepare_threshold": None}}


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, Node]]:
    """Run the server, and the pooler."""
    with pooled() as nodes:
        yield nodes


def test_a_pooler_is_killed_in_mid_claim(nodes: tuple[Node, Node], say: Callable[[str], None]) -> None:
    """Without prepared statements: no job is lost or archived twice, and workers resume when the pooler is back."""
    server, pooler = nodes
    database = new_database(server)
    engines = [engine_on(pooler, database, **WITHOUT) for _ in range(2)]
    load = Load({f"engine{number}": engine for number, engine in enumerate(engines)}, engines)
    with load:
        load.wait_for_success(count=50)
        killed = kill_in_mid_claim(engines[0], pooler, load.in_hand["engine0"])
        pooler.start()
        pooler.wait()
        back = load.wait_for_success(since=killed)
        load.wait_for_success(since=back, count=50)
        load.finish(engines)

    happened = f"killed and restarted the pooler in mid-claim, workers recovered in {back - killed:.1f} s"
    say(load.line(engines[0], "pgbouncer, transaction mode", happened))
    load.check(engines[0])
    for engine in engines:
        engine.dispose()


def test_prepared_statements(nodes: tuple[Node, Node], say: Callable[[str], None]) -> None:
    """With prepared statements that the pooler does not keep, a worker ends and says what to do; no job is lost or done twice."""
    server, pooler = nodes
    database = new_database(server)
    through, direct = engine_on(pooler, database), engine_on(server, database)
    with direct.begin() as connection:
        ids = set(enqueue_many(connection, [{"job_type": "work"}] * 200))
    seen = Recorder()
    workers = [
        QueueWorker(through, lambda _job: None, handler_mode="advanced", polling_interval=0.05, lease=LEASE, on_event=seen)
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    try:
        if keeps_prepared_statements():
            wait_until(lambda: queued_ids(direct) == set(), timeout=PATIENCE)
        else:
            failed = seen.wait_for(events.WorkerFailed)
    finally:
        for worker in workers:
            worker.stop()
    rows = archived(direct)
    ends = len(seen.of(events.WorkerFailed))
    say(f"pgbouncer, prepared statements: {len(rows)} of {len(ids)} jobs done, {ends} of 4 workers ended with advice")

    if not keeps_prepared_statements():
        assert "prepared statement" in str(failed.exception)
        assert ["prepare_threshold" in note for note in failed.exception.__notes__] == [True]
    assert ids == {row.job_id for row in rows} | queued_ids(direct)
    assert set() == {row.job_id for row in rows} & queued_ids(direct)
    assert {"success"} >= {row.status for row in rows}
    for engine in (through, direct):
        engine.dispose()


def test_notifications(nodes: tuple[Node, Node]) -> None:
    """Through the pooler nothing is heard, which the worker says; producers may notify through it who listens past it."""
    server, pooler = nodes
    database = new_database(server)
    tables = JobTables(notify=True)
    through, direct = engine_on(pooler, database, **WITHOUT), engine_on(server, database)
    deaf, hearing = Recorder(), Recorder()
    workers = {
        queue: QueueWorker(engine, lambda *_: None, queue=queue, tables=tables, polling_interval=interval, on_event=seen)
        for queue, engine, interval, seen in (("deaf", through, 0.05, deaf), ("hearing", direct, 3600.0, hearing))
    }
    for worker in workers.values():
        worker.start()
    told = deaf.wait_for(events.NotificationsUnavailable, timeout=PATIENCE)
    hearing.wait_for(events.ListenerStarted, timeout=PATIENCE)
    with through.begin() as connection:
        for queue in workers:
            enqueue_many(connection, [{"job_type": "work", "queue": queue}] * 3, tables=tables)
    for seen in (deaf, hearing):
        seen.wait_for(events.JobSucceeded, 3, timeout=PATIENCE)
    for worker in workers.values():
        worker.stop()
    for engine in (through, direct):
        engine.dispose()

    assert "pooler in transaction mode" in told.reason
    assert [] == deaf.of(events.ListenerStarted) + hearing.of(events.NotificationsUnavailable)
