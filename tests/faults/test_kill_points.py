"""A worker process that is killed, at each point of its work."""

import pytest

from tests.faults.scene import Scene

pytestmark = pytest.mark.long


@pytest.mark.parametrize("point", ["started", "in the handler"])
def test_killed_at_a_point(scene: Scene, point: str) -> None:
    """Lost job, worker killed: whoever stands there is killed, and another worker runs the job, in the same attempt."""
    sign = scene.folder / "sign"
    victim = scene.start(point=point, sign=str(sign))
    (killer,) = scene.add(1, "killer")
    scene.wait(sign.exists)
    lost = scene.in_hand()
    victim.kill()
    scene.start()
    recovered = scene.wait_for_end([killer])
    scene.check_alive()

    scene.check(lost=lost)
    scene.measured(f"SIGKILL: {point}", recovered, [killer])
