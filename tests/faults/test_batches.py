"""A worker process that is killed inside a batch of held jobs: between two of them, at the archiving, around the COMMIT."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.faults import invariants
from tests.faults.scene import PATIENCE, Nursery, Scene, Worker
from tests.faults.traps import OVER
from tests.helpers import wait_until
from tests.queue_contents import archived, queued_ids
from tests.servers.database import Database
from tests.stress import tables

pytestmark = pytest.mark.long

JOBS = 3
OPTIONS = {"worker": {"batch_size": JOBS}, "more": "tests.faults.batching:from_the_start"}


@pytest.fixture
def held_scene(nursery: Nursery, database: Database, queue_engine: sa.Engine, tmp_path: Path) -> Iterator[Scene]:
    """Return a scene on a new database, with held claims."""
    database.require("row_locks")
    with Scene(nursery, queue_engine, database.kind, "held", tmp_path) as made:
        yield made


def start(scene: Scene, number: int, name: str) -> tuple[Worker, Path]:
    """Start a process that is to stand still at a place, with a queue and jobs of its own."""
    queue, sign = f"q{name}", scene.folder / f"sign{name}"
    scene.add(JOBS, queue=queue)
    point = {"point": f"run:{number}", "sign": str(sign)}
    return scene.start("--queue", queue, ready=False, **OPTIONS, **point), sign


def test_killed_inside_a_batch(held_scene: Scene) -> None:
    """Until the COMMIT all jobs of a batch run again, after it none: the effects of each are there once, and no attempt is lost."""
    scene = held_scene
    _, sign = start(scene, 0, "count")
    wait_until(sign.exists, PATIENCE)
    places = json.loads(sign.read_text().removeprefix(OVER))
    scene.wait_for_end()
    commit = places.index("before COMMIT")
    archivings = [number for number, place in enumerate(places) if place.startswith("after") and "archived_job" in place]
    points = [archivings[0], archivings[1] + 1, commit, commit + 1]
    victims = [start(scene, point + 1, str(point)) for point in points]
    for worker, sign in victims:
        wait_until(sign.exists, PATIENCE)
        assert not worker.ended.is_set()
    done = {row.job_id for row in archived(scene.engine)}
    for worker, _ in victims:
        worker.kill()
    arguments = [argument for point in points for argument in ("--queue", f"q{point}")]
    scene.start(*arguments, ready=False)
    scene.wait_for_end()
    batches = [scene.jobs[begin : begin + JOBS] for begin in range(JOBS, len(scene.jobs), JOBS)]
    runs = invariants.marks(scene.engine, tables.runs)
    effects = invariants.marks(scene.engine, tables.effects)

    assert "after COMMIT" == places[commit + 1]
    assert set() == queued_ids(scene.engine)
    assert {1} == {row.attempts for row in archived(scene.engine)}
    assert {str(job_id): 1 for job_id in scene.jobs} == dict(effects)
    assert set(scene.jobs[:JOBS]) | set(batches[-1]) == done
    for batch in batches[:-1]:
        assert 2 == runs[str(batch[0])]
    assert [2] * JOBS == [runs[str(job_id)] for job_id in batches[-2]]
    assert [1] * JOBS == [runs[str(job_id)] for job_id in batches[-1]]
