"""Read the rows of many new jobs: check and encode each, and say when it is due. Every row pays for each call in here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from proletarian_sa.clock import aware_utc
from proletarian_sa.due import check_delay, due_time
from proletarian_sa.errors import PayloadError, PayloadTooLarge
from proletarian_sa.job_ids import new_id, unchecked_maker
from proletarian_sa.models import DEFAULT_QUEUE, JobTables
from proletarian_sa.moments import LATEST, microseconds
from proletarian_sa.names import check_name
from proletarian_sa.payload import encode

if TYPE_CHECKING:
    from proletarian_sa.dialects import NewRow
    from proletarian_sa.job_ids import JobIds

Row = Mapping[str, Any]
Due = dt.datetime | dt.timedelta | None
"""`process_at`, `process_in`, or None: now."""

ReadRow = tuple[Any, str, str, str, Due]
"""Its job_id (None: it is made later), queue, job_type, encoded payload, and when it is due. Plain tuples are quickest."""

_KEYS: Final = frozenset({"job_type", "payload", "queue", "process_at", "process_in", "job_id"})
_REMEMBERED: Final = 100_000


def read_rows(rows: Iterable[Row], tables: JobTables) -> Iterator[ReadRow]:
    """Check and encode rows, one at a time.

    Raises:
        TypeError: As `enqueue_many`; the message begins with the row.
        ValueError: Likewise.
    """
    read = _reader(tables)
    for index, row in enumerate(rows):
        try:
            new = read(row)
        except (TypeError, ValueError) as error:
            # Of the error's own class only where it is ours: a serializer's may take more than a message.
            kind = next(kind for kind in (PayloadTooLarge, PayloadError, TypeError, ValueError) if isinstance(error, kind))
            raise kind(f"rows[{index}]: {error}") from error
        yield new


def _reader(tables: JobTables) -> Callable[[Row], ReadRow]:
    """Return what checks and encodes one row; a name that was good once is not looked at again."""
    job_ids, serializer, max_payload = tables.job_ids, tables.serializer, tables.max_payload
    later = unchecked_maker(job_ids) is not None  # made with the due time, while the server is at work
    good: set[str] = set()

    def name(value: Any, what: str) -> str:
        found = check_name(value, what)
        if type(value) is str:
            if len(good) >= _REMEMBERED:
                good.clear()
            good.add(value)
        return found

    def read(row: Row) -> ReadRow:
        if (type(row) is not dict and not isinstance(row, Mapping)) or not _KEYS.issuperset(row) or "job_type" not in row:
            raise _bad_row(row)
        get = row.get
        job_id = get("job_id")
        if job_id is not None or not later:
            job_id = new_id(job_ids, job_id)
        queue, job_type = get("queue", DEFAULT_QUEUE), row["job_type"]
        if type(queue) is not str or queue not in good:
            queue = name(queue, "queue")
        if type(job_type) is not str or job_type not in good:
            job_type = name(job_type, "job_type")
        payload = encode(get("payload"), serializer, max_payload)
        process_at, process_in = get("process_at"), get("process_in")
        if process_at is None and process_in is None:
            return job_id, queue, job_type, payload, None
        moment = None if process_at is None else aware_utc(process_at, "process_at")
        delay = None if process_in is None else check_delay(process_in, "process_in")
        return job_id, queue, job_type, payload, delay if moment is None else moment

    return read


def _bad_row(row: Any) -> TypeError:
    if not isinstance(row, Mapping):
        return TypeError(f"a row must be a mapping with a job_type, not {type(row).__name__}.")
    return TypeError(f"a row takes the keys {', '.join(sorted(_KEYS))} and needs job_type; this one has {sorted(row)}.")


class Completion:
    """Give rows what they lack: an id, where Python makes it, and the moment when they are due.

    Jobs that would be due at the same moment are kept in order: one microsecond apart. The clock is read once, before the first
    row: read again for each chunk, a job with a delay could be due before its predecessor.

    Args:
        now: What time it was before the first row, aware UTC.
        job_ids: Where ids come from.
    """

    def __init__(self, now: dt.datetime, job_ids: JobIds) -> None:
        self._make_id = unchecked_maker(job_ids)
        self._now = now
        self._microsecond = microseconds(now)
        self._given: dict[int, int] = {}

    def of(self, rows: Iterable[ReadRow]) -> list[NewRow]:
        """Return the rows with the moments at which they are due: each moved by the number of jobs that had it before."""
        given, now, make_id = self._given, self._microsecond, self._make_id
        timed = []
        for job_id, queue, job_type, payload, due in rows:
            if job_id is None and make_id is not None:
                job_id = make_id()  # noqa: PLW2901 - a copy of all for one costs more
            moment = now if due is None else self._moment(due)
            before = given.get(moment, 0)
            if not before and len(given) >= _REMEMBERED:
                given.clear()
            given[moment] = before + 1
            moment += before
            timed.append((job_id, queue, job_type, payload, moment if moment < LATEST else LATEST))  # noqa: FURB136 - min() is slower
        return timed

    def _moment(self, due: dt.datetime | dt.timedelta) -> int:
        if isinstance(due, dt.datetime):
            return microseconds(due_time(self._now, due, None))
        return microseconds(due_time(self._now, None, due))
