"""What is done about a failure fails itself, in worker processes of the command."""

import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import default_tables
from tests.faults import invariants
from tests.faults.scene import Scene
from tests.helpers import PATIENCE
from tests.queue_contents import archived, queued
from tests.stress import tables
from tests.stress.test_many_processes import is_empty

pytestmark = pytest.mark.long

MORE = "tests.faults.misbehaving:error_path"
UNHURT = {"ThreadDied", "WorkerFailed", "SinkFailed", "CallbackFailed", "OutcomeNotRecorded"}
"""Events that none of this may bring about."""
LASTING = {"lease": PATIENCE}
"""No job is to run twice, nor to count a crash, as its worker stands still for a moment."""
JOB, ARCHIVED_JOB = default_tables.job, default_tables.archived_job


def rows_of(scene: Scene) -> dict[uuid.UUID, Any]:
    """Return the archive, by id."""
    return {row.job_id: row for row in archived(scene.engine)}


def told_of(scene: Scene, name: str) -> set[str]:
    """Return the ids of the jobs of which such an event was told."""
    return {line["job_id"] for line in scene.told(name)}


def texts(*ids: uuid.UUID) -> set[str]:
    """Return ids as events have them."""
    return {str(job_id) for job_id in ids}


def test_whatever_fails_after_a_failure(scene: Scene) -> None:
    """Failed-job callback raises, absurd retries, NUL characters: a strategy, `failed_job`, a text that fails: archived once."""
    stored = {"NUL": "a\N{SYMBOL FOR NULL}b", "emoji": "🐞 жук", "10 MB": "characters left out", "mute": "Mute"}
    worker = scene.start(more=MORE, worker=LASTING)
    by_text = {text: scene.add(1, "fails", text=text)[0] for text in stored}
    no_retry = [scene.add(1, "fails", text="emoji", retry=retry)[0] for retry in ("raises", "nonsense", "mute")]
    callback = [scene.add(1, "fails", text="mute", failed_job=what)[0] for what in ("raises", "exits", "spoils")]
    (good,) = scene.add(1)
    scene.wait(lambda: is_empty(scene.engine))
    rows, effects = rows_of(scene), invariants.marks(scene.engine, tables.effects)

    assert sorted(scene.jobs) == sorted(rows)
    assert {(job_id, "failure", 2) for job_id in [*by_text.values(), *callback]} | {
        (job_id, "failure", 1) for job_id in no_retry
    } | {(good, "success", 1)} == {(job_id, row.status, row.attempts) for job_id, row in rows.items()}
    assert [] == [text for text, job_id in by_text.items() if stored[text] not in rows[job_id].last_error]
    assert max(len(row.last_error or "") for row in rows.values()) < 17_000
    # Of each failure once; of a callback that failed none.
    assert dict.fromkeys(texts(good, *by_text.values(), *no_retry), 1) == dict(effects)
    assert texts(*no_retry) == told_of(scene, "RetryStrategyFailed")
    assert texts(*callback) == told_of(scene, "FailedJobCallbackFailed")
    assert set() == UNHURT & {line["name"] for line in scene.told()}
    assert 0 == worker.stop()


def test_an_archive_row_that_is_there(scene: Scene) -> None:
    """An archive row of the same id costs no job and no effect: the newer outcome stands, success or failure, with an event."""
    ends: dict[str, dict[str, Any]] = {"success": {}, "success, plain": {"effect": False}, "failure": {"ends": "failure"}}
    ids = {end: scene.add(1, **payload)[0] for end, payload in ends.items()}
    names = [column.name for column in ARCHIVED_JOB.c if column.name in JOB.c]
    stale = sa.select(*(JOB.c[name] for name in names), sa.literal("cancelled"), JOB.c.enqueued_at)
    with scene.engine.begin() as connection:
        connection.execute(sa.insert(ARCHIVED_JOB).from_select([*names, "status", "finished_at"], stale))
    worker = scene.start(worker=LASTING)
    scene.wait(lambda: is_empty(scene.engine))
    scene.check_alive()

    assert texts(*ids.values()) == told_of(scene, "ArchiveRowReplaced")
    scene.check(failed=[ids["failure"]], effectless=[ids["success, plain"]], allowed={"ArchiveRowReplaced"})
    assert 0 == worker.stop()


def test_a_row_that_vanishes(leased_scene: Scene) -> None:
    """Row changed from outside: of a job deleted while it runs nothing remains, an event tells, and the worker does the next."""
    scene = leased_scene
    worker = scene.start(worker=LASTING)
    ids: list[uuid.UUID] = []

    def wait_for(name: str) -> None:
        scene.wait(lambda: texts(*ids) == told_of(scene, name))

    for effect in (True, False):
        go = scene.folder / f"go {effect}"
        ids += scene.add(1, wait=str(go), effect=effect)
        wait_for("JobStarted")
        with scene.engine.begin() as connection:
            connection.execute(sa.delete(JOB).where(JOB.c.job_id == ids[-1]))
        go.touch()
        wait_for("JobLeaseLost")
    scene.check_alive()

    last = scene.jobs[-1]  # by which was seen that the worker is alive

    assert [last] == list(rows_of(scene))
    assert texts(last) == told_of(scene, "JobSucceeded") == set(invariants.marks(scene.engine, tables.effects))
    assert set() == UNHURT & {line["name"] for line in scene.told()}
    assert 0 == worker.stop()


def test_a_rolling_deploy(scene: Scene) -> None:
    """Lost job, cannot be restored: old workers put back unknown types and payloads that they cannot decode; new ones do them."""
    old = scene.start(types=["work"], worker=LASTING)
    unknown = scene.add(2, "killer")
    (broken,) = scene.add(1, queue="broken")
    with scene.engine.begin() as connection:
        mended = connection.execute(sa.select(JOB.c.payload).where(JOB.c.job_id == broken)).scalar_one()
        values = {"payload": '{"cut off', "queue": "default"}
        connection.execute(sa.update(JOB).where(JOB.c.job_id == broken).values(values))
    work = scene.add(3)
    scene.wait(lambda: texts(*unknown, broken) == told_of(scene, "JobUndeliverable"))
    scene.wait_for_end(work)
    waiting = {row.job_id for row in queued(scene.engine) if (row.last_error or "").startswith("Put back ")}
    new = scene.start(worker=LASTING)
    assert 0 == old.stop()
    with scene.engine.begin() as connection:
        connection.execute(sa.update(JOB).where(JOB.c.job_id == broken).values(payload=mended))
    recovered = scene.wait_for_end()
    scene.check_alive(new)

    assert {*unknown, broken} == waiting
    assert {("success", 1, 0)} == {(row.status, row.attempts, row.crashes or 0) for row in archived(scene.engine)}
    scene.check()
    scene.measured("an old worker meets jobs of a new version", recovered, [*unknown, broken])
