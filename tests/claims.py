"""Both kinds of claim for one suite: a module that uses the fixture `claim` is run with each.

Its tests take `process_next_job` from here, and workers from the fixture `work`.
"""

from typing import Any

import proletarian_sa

LEASED, HELD = "leased", "held"
_options: dict[str, Any] = {}


def choose(kind: str) -> None:
    """Let the next steps and workers claim in this way."""
    _options["claim"] = kind


def chosen() -> str:
    """Return how steps and workers claim in this test."""
    return str(_options.get("claim", LEASED))


def process_next_job(engine: Any, handler: Any, **options: Any) -> proletarian_sa.Outcome | None:
    """Run the next job with the kind of claim of this test."""
    return proletarian_sa.process_next_job(engine, handler, **{"claim": chosen(), **options})
