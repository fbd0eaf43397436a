"""Claims held by a row lock: one transaction from the claim to the finish, and nothing written in between.

What differs between dialects stands beside their other statements. As everywhere here, nothing is begun or committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from proletarian_sa.claimed import ClaimedJob, HeldRow
from proletarian_sa.dialects.counting import one_more
from proletarian_sa.floor import EARLIEST

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy.engine import Connection

    from proletarian_sa.claimed import Finish
    from proletarian_sa.dialects.base import Archived, Statements


class HeldStatements:
    """The statements of held claims on one pair of tables, built once.

    The row lock proves the claim. Every statement names, beside the id, what the row said when it was claimed: so a job whose lock
    was lost with its connection can still be finished, if nobody has finished, retried or leased it since.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        columns = statements.job.c
        self.fence = sa.and_(
            columns.job_id == sa.bindparam("id"),
            columns.attempts == sa.bindparam("attempts_before"),
            self._same(columns.claimed_by, sa.bindparam("token_before", type_=columns.claimed_by.type)),
        )
        self._claim = self._hint(
            sa.select(*statements.read, columns.claimed_by, self._backend())
            .where(statements.due_since)
            .order_by(columns.process_at)
            .limit(sa.bindparam("limit", type_=sa.Integer))
            .with_for_update(skip_locked=True)
        )
        self._own = sa.select(columns.job_id).where(self.fence).with_for_update()
        self._take = sa.update(statements.job).where(self.fence).values(self.after_claim())
        self._build()

    def _same(self, column: sa.Column[Any], value: sa.BindParameter[Any]) -> sa.ColumnElement[bool]:
        """Return whether the two are equal, or both NULL."""
        return column.is_not_distinct_from(value)

    def _hint(self, claim: sa.Select[Any]) -> sa.Select[Any]:
        """Return the claim, told which index to use where the planner can be told."""
        return claim

    def _backend(self) -> sa.ColumnElement[int]:
        """Return the expression for the number of the connection."""
        raise NotImplementedError

    def _build(self) -> None:
        """Build what differs between dialects."""
        raise NotImplementedError

    def after_claim(self) -> dict[str, sa.ColumnElement[Any]]:
        """Return the columns that a claim changes, as they are after it."""
        parameters = {"attempts": "attempts_now", "crashes": "crashes_now", "claimed_by": "token"}
        columns = self._statements.job.c
        return {column: sa.bindparam(parameter, type_=columns[column].type) for column, parameter in parameters.items()}

    def why_not(self, connection: Connection) -> str | None:
        """Return why this server's row locks cannot hold claims, as far as its version and settings tell; None if they can."""
        raise NotImplementedError

    # Claim

    def begin(self, connection: Connection) -> None:
        """Tell the server what it should know in each transaction before claims."""

    def commit(self, connection: Connection) -> None:
        """Commit where another claim follows at once: its transaction may begin with that."""
        connection.commit()

    def claim(self, connection: Connection, *, queue: str, token: str, since: dt.datetime = EARLIEST) -> ClaimedJob | None:
        """Lock the oldest due job that nobody holds, of those due since then; after `begin`.

        **Transaction:** locks one row until its end; writes nothing.
        """
        return next(iter(self.claim_some(connection, queue=queue, token=token, since=since, limit=1)), None)

    def claim_some(
        self, connection: Connection, *, queue: str, token: str, since: dt.datetime = EARLIEST, limit: int
    ) -> list[ClaimedJob]:
        """Lock as many of the oldest due jobs that nobody holds, of those due since then; after `begin`. The oldest comes first.

        **Transaction:** locks their rows until its end; writes nothing.
        """
        wanted = {**self._statements.times(), "of_queue": queue, "since": since, "limit": limit}
        return [_claimed_job(row, queue, token) for row in self._lock(connection, wanted)]

    def _lock(self, connection: Connection, wanted: Mapping[str, Any]) -> Sequence[Any]:
        """Return the rows of the oldest due jobs that nobody holds, locked."""
        return connection.execute(self._claim, wanted).all()

    def own(self, connection: Connection, job: ClaimedJob) -> bool:
        """Lock the row again, and return whether it says what it said at the claim; waits for an unfinished commit."""
        return connection.execute(self._own, self.key(job)).first() is not None

    def take(self, connection: Connection, job: ClaimedJob) -> bool:
        """Write the claim into the row, so that what is fenced by its token applies; return whether the row was still ours."""
        return connection.execute(self._take, self.key(job)).rowcount == 1

    def archive(self, connection: Connection, finish: Finish) -> Archived:
        """Move a finished job to the archive, if its row still says what it said at the claim."""
        raise NotImplementedError

    @staticmethod
    def key(job: ClaimedJob) -> dict[str, Any]:
        """Return the parameters of the fence, and of what a claim changes."""
        row = held_row(job)
        return {
            "id": job.job_id,
            "attempts_before": row.attempts,
            "token_before": row.claimed_by,
            "attempts_now": job.attempts,
            "crashes_now": job.crashes or None,
            "token": job.token,
        }

    # Those who watch

    def living(self, connection: Connection, backends: Collection[int]) -> set[int]:
        """Return those of these connections that the server still has.

        **Transaction:** reads.
        """
        raise NotImplementedError

    def keep_open(self, connection: Connection, *, lasting: bool) -> Any:
        """Keep the server from ending a connection that waits for a handler; return what to restore, None if that is nothing.

        `lasting`: the connection is kept for more than one transaction.

        **Transaction:** none is left open.
        """

    def let_go(self, connection: Connection, before: Any) -> None:
        """Restore what `keep_open` returned, before the connection goes back to the application's pool."""

    def idle_timeouts(self, connection: Connection) -> dict[str, str]:
        """Return the settings, by name, that end an idle transaction although we have asked that they do not."""
        raise NotImplementedError


def held_row(job: ClaimedJob) -> HeldRow:
    """Return what the job's row said at its claim."""
    if job.row is None:
        raise ValueError(f"{job.job_id} is leased, not held.")
    return job.row


def _claimed_job(row: Any, queue: str, token: str) -> ClaimedJob:
    job_id, job_type, payload, attempts, crashes, enqueued_at, process_at, claimed_by, backend = row
    crashes, lapsed = crashes or 0, claimed_by is not None
    return ClaimedJob(
        job_id=job_id,
        queue=queue,
        job_type=job_type,
        payload_text=payload,
        # A lapsed lease is a run lost with its worker: it is repeated under the same number, and counted apart.
        attempts=attempts if lapsed else one_more(attempts),
        crashes=one_more(crashes) if lapsed else crashes,
        enqueued=enqueued_at,
        due=process_at,
        token=token,
        row=HeldRow(attempts=attempts, claimed_by=claimed_by, backend=backend),
    )
