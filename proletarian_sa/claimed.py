"""A job in the hands of one claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datetime as dt


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow:
    """What the row of a job says that is held by its lock: nothing is written to it before the finish.

    The lock proves the claim. Where it is lost with its connection, a row that still says this has had no other outcome since.

    Attributes:
        attempts: Attempts begun before this one.
        claimed_by: The token of a lapsed lease, if there is one.
        backend: The server's number of the connection that holds the lock.
    """

    attempts: int
    claimed_by: str | None
    backend: int


@dataclass(slots=True, eq=False)
class ClaimedJob:
    """What a claim read of a job, and the token that proves the claim. Never changed; to make frozen ones takes four times as long.

    Attributes:
        attempts: Attempts begun, this one included: 1 on the first run.
        crashes: Runs lost with their worker so far.
        token: Unique per claim; every later write of this job is fenced by `(job_id, token)`.
        row: Of a held job, what its row says; None: leased, the row has the token.
        enqueued_at: Aware UTC.
        process_at: When it was due; aware UTC.
    """

    job_id: Any
    queue: str
    job_type: str
    payload_text: str
    attempts: int
    crashes: int
    enqueued_at: dt.datetime
    process_at: dt.datetime
    token: str
    row: HeldRow | None = None


@dataclass(slots=True, eq=False)
class Finish:
    """An outcome to be archived: `status` is `success` or `failure`; `last_error` None keeps an earlier one."""

    job: ClaimedJob
    status: str
    last_error: str | None = None
