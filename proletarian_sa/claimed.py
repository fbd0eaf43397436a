"""A job in the hands of one claim."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any


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
        enqueued: When it was enqueued, in UTC; naive where the driver has said so, because hardly any handler asks.
        due: When it was due; likewise.
    """

    job_id: Any
    queue: str
    job_type: str
    payload_text: str
    attempts: int
    crashes: int
    enqueued: dt.datetime
    due: dt.datetime
    token: str
    row: HeldRow | None = None

    @property
    def enqueued_at(self) -> dt.datetime:
        """When it was enqueued, aware UTC."""
        return _aware(self.enqueued)

    @property
    def process_at(self) -> dt.datetime:
        """When it was due, aware UTC."""
        return _aware(self.due)


def _aware(moment: dt.datetime) -> dt.datetime:
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment


@dataclass(slots=True, eq=False)
class Finish:
    """An outcome to be archived: `status` is `success` or `failure`; `last_error` None keeps an earlier one."""

    job: ClaimedJob
    status: str
    last_error: str | None = None
