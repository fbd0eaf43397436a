"""A job in the hands of one claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime as dt
    import uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    """What a claim read of a job, and the token that proves the claim.

    Attributes:
        attempts: Attempts begun, this one included: 1 on the first run.
        crashes: Runs lost with their worker so far.
        token: Unique per claim; every later write of this job is fenced by `(job_id, token)`.
        enqueued_at: Aware UTC.
        process_at: When it was due; aware UTC.
    """

    job_id: uuid.UUID
    queue: str
    job_type: str
    payload_text: str
    attempts: int
    crashes: int
    enqueued_at: dt.datetime
    process_at: dt.datetime
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """An outcome to be archived: `status` is `success` or `failure`; `last_error` None keeps an earlier one."""

    job: ClaimedJob
    status: str
    last_error: str | None = None
