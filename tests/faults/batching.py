"""What a worker process with batches is told, beside its options: see `Options.more`."""

from typing import Any

from proletarian_sa import JobRegistry, held_batch


def from_the_start(_jobs: JobRegistry) -> dict[str, Any]:
    """Let it claim whole batches before it knows how long its jobs take, and run all of each, however slow the machine is."""
    held_batch.BatchClaims.limit = lambda self: self._size  # type: ignore[method-assign]
    vars(held_batch)["LONGEST"] = 60.0
    return {}
