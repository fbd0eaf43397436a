"""Outcomes recorded together: what spoils one of them spoils no other."""

import threading
import uuid
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from proletarian_sa import default_tables, events
from proletarian_sa.log import log_event
from tests.helpers import wait_until
from tests.observing import PATIENCE, Spoken, add, change
from tests.queue_contents import archived, queued

pytestmark = pytest.mark.long

JOBS = 40
THREADS = 4


def copy_to_archive(connection, job_id):
    """Put a row of the same id into the archive, as a failure of long ago."""
    job, archive = default_tables.job.c, default_tables.archived_job
    same = [column.name for column in archive.c if column.name in job]
    source = sa.select(*[job[name] for name in same], sa.literal("failure"), job.enqueued_at).where(job.job_id == job_id)
    connection.execute(archive.insert().from_select([*same, "status", "finished_at"], source))


@pytest.mark.parametrize("failing", [False, True], ids=["successes", "failures"])
def test_one_spoils_nobody_else(database, app_engine, work, failing):
    """In a batch of many an archive collision, a vanished row, a lost lease and a locked row cost those jobs alone."""
    engine = database.create_engine()
    spoken, ran, lock = Spoken(engine), [], threading.Lock()
    spoken.hold = lambda statement: "archived_job" in statement

    def handler(job):
        with lock:
            ran.append(job.job_id)
        if failing:
            raise LookupError

    worker, seen = work(handler, engine, worker_threads=THREADS)
    first = add(app_engine)
    worker.start()
    assert spoken.arrived.wait(PATIENCE)  # the finisher stands still: what comes now is one batch
    ids = [add(app_engine, payload=number) for number in range(JOBS)]
    wait_until(lambda: len(ran) == JOBS + 1, timeout=PATIENCE)
    wait_until(lambda: worker._crew._unrecorded == JOBS + 1, timeout=PATIENCE)
    collision, vanished, lease, locked = ids[3], ids[13], ids[23], ids[33]
    job = default_tables.job
    with app_engine.begin() as connection:
        copy_to_archive(connection, collision)
        connection.execute(sa.delete(job).where(job.c.job_id == vanished))
    change(app_engine, lease, claimed_by="somebody else")
    locker = app_engine.connect()
    if database.row_locks:
        locker.execute(sa.select(job.c.job_id).where(job.c.job_id == locked).with_for_update())
    spoken.go.set()
    good = [first, *(job_id for job_id in ids if job_id not in (vanished, lease, locked))]
    told = events.JobFailed if failing else events.JobSucceeded
    wait_until(lambda: {event.job_id for event in seen.of(told)} >= set(good), timeout=PATIENCE)
    early = seen.of(told, job_id=locked) if database.row_locks else []
    locker.close()
    seen.wait_for(told, job_id=locked)

    rows = {row.job_id: row for row in archived(app_engine)}
    assert [] == early
    assert {*good, locked} == set(rows)
    assert {("failure" if failing else "success", 1)} == {(row.status, row.attempts) for row in rows.values()}
    assert [lease] == [row.job_id for row in queued(app_engine)]
    assert {vanished, lease} == {event.job_id for event in seen.of(events.JobLeaseLost)}
    assert [collision] == [event.job_id for event in seen.of(events.ArchiveRowReplaced)]
    assert JOBS + 1 == len(ran)
    assert JOBS - 1 == len(seen.of(told))


def test_successes_nobody_is_told_of(database, app_engine, work, caplog):
    """Where only warnings are logged successes are recorded in fewer words; there, too, one spoils no other."""
    engine = database.create_engine()
    refused: list[sa.engine.ExceptionContext] = []
    sa.event.listen(engine, "handle_error", refused.append)
    spoken, ran = Spoken(engine), []
    worker, _ = work(lambda job: ran.append(job.job_id), engine, worker_threads=THREADS, on_event=log_event)
    worker.start()

    def run(count: int, before: Callable[[list[uuid.UUID]], None]) -> list[uuid.UUID]:
        """Let jobs be recorded as one batch; `before` is called when they have run."""
        ran.clear()
        spoken.arrived.clear(), spoken.go.clear()
        spoken.hold = lambda statement: "archived_job" in statement
        add(app_engine)
        assert spoken.arrived.wait(PATIENCE)
        ids = [add(app_engine, payload=number) for number in range(count)]
        wait_until(lambda: worker._crew._unrecorded == count + 1, timeout=PATIENCE)
        before(ids)
        spoken.hold = lambda _statement: False
        spoken.go.set()
        wait_until(lambda: worker._crew._unrecorded == 0, timeout=PATIENCE)
        return ids

    def collide(ids: list[uuid.UUID]) -> None:
        with app_engine.begin() as connection:
            copy_to_archive(connection, ids[1])

    def lose(ids: list[uuid.UUID]) -> None:
        job = default_tables.job
        with app_engine.begin() as connection:
            connection.execute(sa.delete(job).where(job.c.job_id == ids[1]))
        change(app_engine, ids[2], claimed_by="somebody else")

    lossy = run(4, lose)
    rounds = [run(4, collide), run(4, collide)]

    rows = {row.job_id: row for row in archived(app_engine)}
    lines = [record.getMessage() for record in caplog.records]
    assert {"success"} == {row.status for row in rows.values()}
    assert [lossy[0], lossy[3]] == [job_id for job_id in lossy if job_id in rows]
    assert [True] * 8 == [job_id in rows for ids in rounds for job_id in ids]
    for job_id, words in ((lossy[1], "no longer"), (lossy[2], "no longer"), (rounds[0][1], "archive"), (rounds[1][1], "archive")):
        assert [str(job_id) in line and words in line for line in lines].count(True) == 1, lines
    # Elsewhere an id that the archive has already is found out by an error each time, here the first time.
    assert (1 if engine.dialect.name == "postgresql" else 2) == len(refused), refused
