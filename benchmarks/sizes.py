"""How much of everything there is in each form of the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much of everything; all are numbers of jobs where nothing else is said."""

    repeats: int
    repeats_others: int
    """On the other databases than PostgreSQL."""
    drain: int
    held: int
    others: int
    """To drain on the other databases."""
    bulk: int
    bulk_batch: int
    commits: int
    """Rows of `session.add`, one a commit; ten times as many go 100 a commit."""
    latency: int
    snapshot: int
    snapshot_others: int
    near: int
    """The small backlog, the window of the large ones too: about a second's work. On other databases a part of it."""
    far: int
    far_others: int
    memory: int
    idle_seconds: float
    heavy_repeats: int
    """Of what takes long: backlog, snapshot, memory."""
    heavy_repeats_first: int
    """Of the backlogs and snapshots on PostgreSQL, where a run is short beside what the machine's disk does meanwhile."""
    sweep: bool
    """Try all settings of the peers, not only those that were best."""
    patience: float
    """Seconds that one run may take."""


FORMS: Final = {
    "quick": Sizes(
        repeats=2,
        repeats_others=1,
        drain=140_000,
        held=3_000,
        others=4_000,
        bulk=40_000,
        bulk_batch=5_000,
        commits=600,
        latency=100,
        snapshot=150_000,
        snapshot_others=10_000,
        near=50_000,
        far=300_000,
        far_others=40_000,
        memory=150_000,
        idle_seconds=4.0,
        heavy_repeats=1,
        heavy_repeats_first=2,
        sweep=False,
        patience=120.0,
    ),
    "full": Sizes(
        repeats=5,
        repeats_others=3,
        drain=200_000,
        held=20_000,
        others=20_000,
        bulk=200_000,
        bulk_batch=5_000,
        commits=3_000,
        latency=500,
        snapshot=1_100_000,
        snapshot_others=110_000,
        near=50_000,
        far=10_000_000,
        far_others=1_000_000,
        memory=1_000_000,
        idle_seconds=30.0,
        heavy_repeats=3,
        heavy_repeats_first=3,
        sweep=True,
        patience=3600.0,
    ),
    "tiny": Sizes(
        repeats=1,
        repeats_others=1,
        drain=100,
        held=50,
        others=100,
        bulk=100,
        bulk_batch=50,
        commits=20,
        latency=5,
        snapshot=200,
        snapshot_others=100,
        near=100,
        far=200,
        far_others=200,
        memory=100,
        idle_seconds=0.5,
        heavy_repeats=1,
        heavy_repeats_first=1,
        sweep=False,
        patience=60.0,
    ),
}
"""`tiny` shows that everything runs; its figures say nothing."""
