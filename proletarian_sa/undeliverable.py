"""How long a job waits that this worker cannot run: no handler for its type, or a payload it cannot decode.

During a rolling deployment old workers meet jobs of the new version. Such a job is put back with a growing delay, so that a newer
worker gets it; what stays undeliverable is archived as a failure with its payload text as it is. The count stands in `last_error`,
where any worker continues it and an operator can read it.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from proletarian_sa.error_text import error_line, storable

GRACE: Final = dt.timedelta(minutes=10)
LONGEST_DELAY: Final = dt.timedelta(minutes=1)
_NOTE: Final = re.compile(r"^Put back (\d{1,6}) times since (\S+): ")


def put_back(last_error: str | None, error: Exception, now: dt.datetime) -> tuple[str, dt.timedelta] | None:
    """Return the note to store and the delay until the next try, or None when it has been tried for ten minutes.

    Args:
        last_error: What the job's row says now.
        error: Why the job cannot be run.
        now: Aware UTC.
    """
    times, since = _parse(last_error) or (0, now)
    if now - since >= GRACE:
        return None
    delay = min(dt.timedelta(seconds=2 ** min(times, 10)), LONGEST_DELAY)
    note = f"Put back {times + 1} times since {since.isoformat()}: {error_line(error)}"
    return storable(note), delay


def _parse(note: str | None) -> tuple[int, dt.datetime] | None:
    match = _NOTE.match(note or "")
    if match is None:
        return None
    try:
        since = dt.datetime.fromisoformat(match[2])
    except ValueError:
        return None
    return (int(match[1]), since) if since.tzinfo else None
