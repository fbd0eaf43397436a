"""What became of one run of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import datetime as dt

Status = Literal["succeeded", "retrying", "failed", "interrupted", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one run, recorded in the database. Always truthy.

    Attributes:
        status: `succeeded`: archived as success. `retrying`: put back, due again after `retry_in`. `failed`: archived as
            failure. `interrupted`: put back with the attempt given back. `lost`: the claim no longer owned the job, so nothing
            was recorded, and nothing written through `job.session` remains; the job runs again, or has run elsewhere.
        job_id: The job's id: a `uuid.UUID`, unless the tables' `job_ids` say otherwise.
        job_type: Its type.
        attempts: Attempts begun, this one included.
        exception: What the handler raised, or why the job could not be run.
        retry_in: The delay of a job put back.
    """

    status: Status
    job_id: Any
    job_type: str
    attempts: int
    exception: BaseException | None = None
    retry_in: dt.timedelta | None = None
