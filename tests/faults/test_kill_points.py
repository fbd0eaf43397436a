"""A worker process that is killed, at each place between two things that it says to the database."""

import pytest

from tests.faults.scene import Scene
from tests.faults.siege import ARCHIVE, COMMIT, Stretch, besiege
from tests.faults.traps import NAMES

pytestmark = pytest.mark.long

EFFECT = {"before INSERT stress_effects", "after INSERT stress_effects"}
"""In the handler, or in `failed_job`: between its own statements."""
PUT_BACK = COMMIT | {"before UPDATE job", "after UPDATE job"}

CLAIM = Stretch(
    fault="SIGKILL in the claim",
    trap="claim",
    meets=COMMIT | {"before UPDATE job", "after UPDATE job"},
    meets_held=frozenset({"before SELECT", "after SELECT"}),
    runs=(1, 1),
)
FINISH = Stretch(fault="SIGKILL in the finish", names=NAMES, meets=COMMIT | EFFECT | {ARCHIVE})
BARE_FINISH = Stretch(fault="SIGKILL in the finish, job.session unused", payload={"effect": False}, meets=COMMIT | {ARCHIVE})
HEARTBEAT = Stretch(
    fault="SIGKILL in the heartbeat",
    trap="heartbeat",
    payload={"wait": "calm"},
    meets=PUT_BACK,
    meets_held=COMMIT | {"before SELECT", "after SELECT"},
)
RETRY = Stretch(
    fault="SIGKILL in a retry", payload={"ends": "flaky"}, both={"retries": 3}, meets=PUT_BACK | EFFECT, attempts=2, runs=(3, 2)
)
FAILURE = Stretch(fault="SIGKILL in a failure", payload={"ends": "failure"}, meets=COMMIT | EFFECT | {ARCHIVE}, status="failure")
RELEASE = Stretch(
    fault="SIGKILL in a release",
    payload={"ends": "interrupt", "calm": "calm"},
    stops=True,
    meets=PUT_BACK,
    meets_held=frozenset({"before ROLLBACK", "after ROLLBACK"}),
    runs=(2, 2),
)
UNKNOWN = Stretch(fault="SIGKILL while an unknown job type is put back", victim={"types": ["work"]}, meets=PUT_BACK, runs=(1, 1))


@pytest.mark.async_workers("asyncpg leased", "asyncmy-mariadb held", "psycopg-async held", "aiosqlite leased")
def test_killed_on_the_way_to_success(scene: Scene) -> None:
    """Lost job, worker killed: in claim, handler, finish or heartbeat; another runs it if it must, in the same attempt."""
    besiege(scene, CLAIM, FINISH, BARE_FINISH, HEARTBEAT)


@pytest.mark.async_workers("asyncpg held", "asyncmy-mysql leased", "psycopg-async leased", "aiosqlite leased")
def test_killed_on_the_way_to_another_end(scene: Scene) -> None:
    """Lost job, non-atomic hand-over: anywhere in a retry, a failure, a release, in putting back; it ends as if nobody had died."""
    besiege(scene, RETRY, FAILURE, RELEASE, UNKNOWN)
