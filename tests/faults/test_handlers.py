"""Handlers that do what no handler should, in worker processes of the command."""

import sys
import uuid
from collections.abc import Iterable

import pytest

from tests.faults import invariants
from tests.faults.misbehaving import EXCEPTIONS, MEMORY, resident
from tests.faults.scene import Scene
from tests.helpers import PATIENCE, wait_until
from tests.queue_contents import archived, queued
from tests.stress import tables
from tests.stress.test_many_processes import is_empty

pytestmark = pytest.mark.long

MORE = "tests.faults.misbehaving:handlers"
THREADS = 3
CUT_OFF = 3
"""The exit code of the command when it has cut jobs off."""
STOP_TIMEOUT = 0.5
SMALL = 1000
LEASE = 3.0
"""Seconds; beside an endless loop heartbeats come late."""


def fates(scene: Scene, ids: Iterable[uuid.UUID]) -> list[tuple[object, ...]]:
    """Return status, attempts and crashes of archived jobs, in the order of their ids here."""
    rows = {row.job_id: row for row in archived(scene.engine)}
    return [(rows[job_id].status, rows[job_id].attempts, rows[job_id].crashes or 0) for job_id in ids]


def test_every_base_exception(scene: Scene) -> None:
    """BaseException: each is a failed attempt, with its name in the archive; the process and all its threads go on."""
    worker = scene.start(more=MORE, worker={"worker_threads": THREADS, "lease": PATIENCE})
    ids = [scene.add(1, "raises", error=error, effect=False)[0] for error in EXCEPTIONS]
    scene.wait(lambda: is_empty(scene.engine))
    errors = {row.job_id: row.last_error for row in archived(scene.engine)}
    work = scene.add(THREADS, wait=str(scene.folder / "all"))  # each thread is needed for these
    scene.wait(lambda: len(scene.told("JobStarted")) == len(ids) + THREADS)
    (scene.folder / "all").touch()
    scene.wait_for_end(work)

    assert [("failure", 1, 0)] * len(ids) == fates(scene, ids)
    assert [] == [name for name, job_id in zip(EXCEPTIONS, ids, strict=True) if name not in errors[job_id]]
    assert [("success", 1, 0)] * THREADS == fates(scene, work)
    assert [] == scene.told("ThreadDied") + scene.told("WorkerFailed")
    assert 0 == worker.stop()


def test_handlers_that_end_their_process(scene: Scene) -> None:
    """Job kills its process: os._exit, segmentation fault; what it wrote is gone, and another worker does it, in one attempt."""
    codes = {"os._exit": 5, "segfault": -11}
    dying = {how: scene.start("--queue", how, more=MORE) for how in codes}
    ids = [scene.add(1, "dies", how, how=how, url=scene.url, once=str(scene.folder / how))[0] for how in codes]
    found = {how: worker.wait() for how, worker in dying.items()}
    (other,) = scene.add(1)
    queues = [word for how in ("default", *codes) for word in ("--queue", how)]
    successor = scene.start(*queues, more=MORE, worker={"lease": PATIENCE})
    recovered = scene.wait_for_end()
    scene.check_alive(successor)

    assert codes == found
    assert [("success", 1, int(scene.claim == "leased"))] * len(ids) == fates(scene, ids)
    assert [("success", 1, 0)] == fates(scene, [other])
    assert [] == scene.told("ThreadDied") + scene.told("WorkerFailed")
    scene.measured("a handler ends its process", recovered, ids)


def test_an_endless_loop(scene: Scene) -> None:
    """Handler outlives the stop: others go on, the job stays owned, the stop ends in its limit with code 3; it runs again."""
    calm = scene.folder / "calm"
    worker = scene.start(more=MORE, worker={"worker_threads": 2, "stop_timeout": STOP_TIMEOUT, "lease": LEASE})
    (endless,) = scene.add(1, "endless", url=scene.url, calm=str(calm))
    scene.wait(lambda: scene.told("JobStarted", job_id=endless))
    first = leases(scene, endless)
    work = scene.add(3)
    scene.wait_for_end(work)
    scene.wait(lambda: scene.claim == "held" or leases(scene, endless) > first)  # kept by heartbeats
    code = worker.stop()
    calm.touch()
    successor = scene.start(more=MORE, worker={"lease": PATIENCE})
    recovered = scene.wait_for_end()
    scene.check_alive(successor)

    assert CUT_OFF == code, worker.text()
    assert "cut off: " in worker.text()
    assert [("success", 1, 0)] * len(work) == fates(scene, work)
    assert [("success", 1, int(scene.claim == "leased"))] == fates(scene, [endless])
    scene.measured("an endless handler is cut off at the stop", recovered, [endless])


def leases(scene: Scene, job_id: uuid.UUID) -> list[object]:
    """Return until when a job is leased, if it is."""
    return [row.lease_until for row in queued(scene.engine) if row.job_id == job_id and row.lease_until is not None]


def test_what_a_handler_leaves_behind(scene: Scene) -> None:
    """Handler leaves a broken session, context leaks: neither its open transaction nor its context is met by the next job."""
    worker = scene.start(more=MORE, worker={"lease": PATIENCE})
    seen = scene.folder / "seen"
    writes = scene.kind != "sqlite"  # there it is its own application that it would keep from writing
    left = scene.add(1, "leaves", url=scene.url, writes=writes)
    context = [scene.add(1, "context", tenant=tenant, seen=str(seen))[0] for tenant in ("a", "b")]
    work = scene.add(2)
    scene.wait_for_end()

    assert [("success", 1, 0)] * 5 == fates(scene, [*left, *context, *work])
    assert "nobody nobody" == seen.read_text()
    assert 0 == worker.stop()
    # What was left open is rolled back with its process.
    assert {str(job_id) for job_id in work} == set(invariants.marks(scene.engine, tables.effects))


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_much_memory_and_then_many_small_jobs(leased_scene: Scene) -> None:
    """Memory growth: after a job that took 50 MB, and kept it in its traceback, a thousand small ones leave nothing of that."""
    scene = leased_scene
    worker = scene.start(more=MORE, worker={"lease": PATIENCE})
    scene.add(50, "small")
    scene.wait(lambda: is_empty(scene.engine))
    before = resident(worker.pid)
    (large,) = scene.add(1, "large", seen=str(scene.folder / "most"))
    scene.wait(lambda: is_empty(scene.engine))
    scene.add(SMALL, "small")
    scene.wait(lambda: is_empty(scene.engine))
    wait_until(lambda: resident(worker.pid) - before < MEMORY / 3 or None)

    assert [("failure", 1, 0)] == fates(scene, [large])
    assert SMALL + 51 == len(archived(scene.engine))
    assert int((scene.folder / "most").read_text()) - before > 0.9 * MEMORY
    assert 0 == worker.stop()
