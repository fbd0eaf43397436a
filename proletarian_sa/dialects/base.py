"""What the pipeline asks of a database: the contract, and all of it that is the same everywhere.

A dialect file holds only the difference. Every method takes a sync `Connection` inside a transaction of ours and neither
begins nor commits anything.
"""

from __future__ import annotations

import datetime as dt
import enum
import operator
from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy as sa

from proletarian_sa.claimed import ClaimedJob, Finish
from proletarian_sa.dialects.bulk import BulkInserts
from proletarian_sa.dialects.counting import MOST_COUNTED
from proletarian_sa.dialects.judgement import Judgement
from proletarian_sa.due import due_time
from proletarian_sa.floor import EARLIEST
from proletarian_sa.types import UTCDateTime, current_time, delay_type, later, latest, statement_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy.engine import Connection

    from proletarian_sa.dialects.held import HeldStatements
    from proletarian_sa.models import JobTables
    from proletarian_sa.spread import Spread
    from proletarian_sa.wakeups.contract import Notifications

Time = sa.ColumnElement[dt.datetime]
_due = operator.attrgetter("due")
NO_DELAY = dt.timedelta()


class Archived(enum.Enum):
    """What became of an attempt to archive."""

    DONE = "done"
    REPLACED = "replaced"  # an archive row of the same id was there; the newer outcome stands now
    LOST = "lost"  # the claim no longer owns the job: nothing was written


class NotNew(Exception):  # noqa: N818 - no error: it is done in another way
    """A row of the archive has the id of a job that was taken for new."""


class Statements(Judgement, BulkInserts):
    """The statements of one pair of tables on one database, built once.

    Attributes:
        isolation: Execution options of the connections of ours, whatever the application's engine says.
        row_locks: Rows can be locked one by one; where not, there is one writer at a time.
        savepoint_recovers: After a deadlock a transaction can go on from a savepoint; where not, the database has dropped it whole.
        native_clock: The database has a clock with microseconds; where not, the process's own is used.
        most_archived: How many outcomes are recorded in one transaction at the most.
        most_ahead: How many jobs a worker takes ahead of its handlers at the most, and how many outcomes may wait to be recorded:
            what the database gives and takes in a tenth of a second, or half of one.
        held: The statements of claims that are held by a row lock; None where rows cannot be locked.
        notifications: How sessions tell each other of new jobs; None where they cannot.
    """

    isolation: ClassVar[Mapping[str, Any]] = {"isolation_level": "READ COMMITTED"}
    row_locks: ClassVar[bool] = True
    savepoint_recovers: ClassVar[bool] = False
    native_clock: ClassVar[bool] = True
    most_archived: ClassVar[int] = 500
    most_ahead: ClassVar[int] = 500
    held: HeldStatements | None = None
    notifications: Notifications | None = None

    def __init__(self, tables: JobTables) -> None:
        self.tables = tables
        self.job, self.archived_job = tables.job, tables.archived_job
        columns = self.job.c
        self._literal_clock = not self.native_clock or tables.clock is not None
        self._fence = sa.and_(columns.job_id == sa.bindparam("id"), columns.claimed_by == sa.bindparam("token"))
        self.due = sa.and_(
            columns.queue == sa.bindparam("of_queue"),
            columns.process_at <= self.clock(statement_time()),
            sa.or_(columns.lease_until.is_(None), columns.lease_until <= self.clock(statement_time())),
        )
        self.due_since = sa.and_(self.due, columns.process_at >= sa.bindparam("since", type_=UTCDateTime()))
        self._claimed_values = {
            "claimed_by": sa.bindparam("new_token"),
            "lease_until": self._after("lease"),
            # A lapsed lease is a run lost with its worker: it is repeated under the same number, and counted apart.
            "attempts": sa.case(
                (sa.and_(columns.claimed_by.is_(None), columns.attempts < MOST_COUNTED), columns.attempts + 1),
                else_=columns.attempts,
            ),
            "crashes": sa.case(
                (
                    sa.and_(columns.claimed_by.is_not(None), sa.func.coalesce(columns.crashes, 0) < MOST_COUNTED),
                    sa.func.coalesce(columns.crashes, 0) + 1,
                ),
                else_=columns.crashes,
            ),
        }
        # What a claim reads of a job; each column is a part of what a job costs.
        self.read = (
            columns.job_id,
            columns.job_type,
            columns.payload,
            columns.attempts,
            columns.crashes,
            columns.enqueued_at,
            columns.process_at,
        )
        self._freed = {"claimed_by": None, "lease_until": None}
        self._retry = (
            sa.update(self.job)
            .where(self._fence)
            .values(process_at=self._after("delay"), last_error=sa.bindparam("error"), **self._freed)
        )
        given_back = sa.case((columns.attempts > 0, columns.attempts - 1), else_=0)
        self._release = sa.update(self.job).where(self._fence).values(attempts=given_back, **self._freed)
        error = sa.func.coalesce(sa.bindparam("error", type_=columns.last_error.type), columns.last_error)
        self._postpone = self._release.values(process_at=self._after("delay"), last_error=error)
        self._own = sa.update(self.job).where(self._fence).values(claimed_by=columns.claimed_by)
        self._build()

    def _build(self) -> None:
        """Build what differs between dialects."""
        raise NotImplementedError

    def own_options(self, connection: Connection) -> Mapping[str, Any]:
        """Return the execution options for connections of ours from the engine of this one."""
        return self.isolation

    def why_not(self, connection: Connection) -> str | None:
        """Return why this server cannot serve a worker, and what could; None if it can."""
        raise NotImplementedError

    # Clock

    def clock(self, of_database: Time) -> Time:
        """Return the expression for what time it is: the database's own, or a literal."""
        return sa.bindparam("now", type_=UTCDateTime()) if self._literal_clock else of_database

    def _after(self, delay: str) -> Time:
        if self._literal_clock:
            return sa.bindparam(delay, type_=UTCDateTime())
        return later(current_time(), sa.bindparam(delay, type_=delay_type()))

    def times(self, **delays: dt.timedelta) -> dict[str, Any]:
        """Return the parameters for the clock: delays for the database to add, or moments where the clock is a literal."""
        if not self._literal_clock:
            return dict(delays)
        now = self.literal_now()
        return {"now": now, **{name: now + delay for name, delay in delays.items()}}

    def literal_now(self) -> dt.datetime:
        """Return the injected clock's time, or this process's, in aware UTC."""
        return self.tables.clock.now() if self.tables.clock else dt.datetime.now(dt.UTC)

    def enqueue_times(self, process_at: dt.datetime | None, process_in: dt.timedelta | None) -> dict[str, dt.datetime | Time]:
        """Return `enqueued_at` and `process_at` of a new row: values, or expressions for the database to evaluate."""
        if self._literal_clock:
            now = self.literal_now()
            return {"enqueued_at": now, "process_at": due_time(now, process_at, process_in)}
        due: Time = current_time()
        if process_at is not None:
            due = latest(sa.bindparam(None, process_at, type_=UTCDateTime()), due)
        elif process_in:
            due = later(due, sa.bindparam(None, process_in, type_=delay_type()))
        return {"enqueued_at": current_time(), "process_at": due}

    def read_clock(self, connection: Connection) -> dt.datetime:
        """Return what time it is, in aware UTC: a round trip, unless the clock is a literal."""
        if self._literal_clock:
            return self.literal_now()
        now = connection.execute(sa.select(sa.type_coerce(current_time(), UTCDateTime()))).scalar_one()
        assert isinstance(now, dt.datetime)
        return now

    # Claim

    def claim(
        self,
        connection: Connection,
        *,
        queue: str,
        token: str,
        lease: dt.timedelta,
        limit: int,
        spread: Spread | None = None,
        since: dt.datetime = EARLIEST,
    ) -> list[ClaimedJob]:
        """Take up to `limit` due jobs that nobody holds, oldest first, or one whose lease has lapsed, alone.

        `spread`: which of the due jobs to choose, where row locks may not keep claims apart; elsewhere, and without it, the oldest.
        `since`: look at no jobs that were due before, where finished jobs are stepped over for long.

        **Transaction:** locks and updates the rows it returns; commit at once.
        """
        raise NotImplementedError

    def make_ready(self, connection: Connection, *, lasting: bool) -> Any:
        """Let a new connection of ours claim; return what to restore, None if nothing. `lasting`: for more than one transaction.

        **Transaction:** none is left open.
        """

    def _claimed(self, rows: Iterable[Any], queue: str, token: str) -> list[ClaimedJob]:
        """Return rows that begin with `read`, as they are after the claim, oldest first: RETURNING has no order."""
        jobs = [
            ClaimedJob(job_id, queue, job_type, payload, attempts, crashes or 0, enqueued_at, process_at, token)
            for job_id, job_type, payload, attempts, crashes, enqueued_at, process_at, *_ in rows
        ]
        jobs.sort(key=_due)
        return jobs

    # Ownership

    def heartbeat(
        self, connection: Connection, jobs: Sequence[ClaimedJob], *, lease: dt.timedelta
    ) -> tuple[set[tuple[Any, str]], set[tuple[Any, str]]]:
        """Prolong the leases of these claims; return those prolonged, and those still owned but locked, as (job_id, token).

        A row that is locked is skipped: mostly it is being finished by its owner.

        **Transaction:** locks the rows it updates, in the order of their ids, and waits for nobody.
        """
        kept = self._prolong(connection, jobs, lease)
        missing = [job for job in jobs if (job.job_id, job.token) not in kept]
        locked: set[tuple[Any, str]] = set()
        if missing:
            columns = self.job.c
            ids = [job.job_id for job in missing]
            rows = connection.execute(sa.select(columns.job_id, columns.claimed_by).where(columns.job_id.in_(ids)))
            locked = {(row[0], row[1]) for row in rows} & {(job.job_id, job.token) for job in missing}
        return kept & {(job.job_id, job.token) for job in jobs}, locked

    def _prolong(self, connection: Connection, jobs: Sequence[ClaimedJob], lease: dt.timedelta) -> set[tuple[Any, str]]:
        raise NotImplementedError

    def keep(self, connection: Connection, job: ClaimedJob, *, lease: dt.timedelta) -> None:
        """Let the claim own its job, if it still does, for that long from now on, also where it was held.

        **Transaction:** updates the job's row.
        """
        if self._written(connection, job):
            self.heartbeat(connection, [job], lease=lease)

    def own(self, connection: Connection, job: ClaimedJob) -> bool:
        """Return whether the claim still owns the job, and lock its row until the end of the transaction.

        **Transaction:** writes the row, unchanged; waits for a transaction that has it locked.
        """
        if job.row is not None:
            return self._held_claims().own(connection, job)
        return self._by_key(connection).execute(self._own, self._key(job)).rowcount == 1

    def archived_as(self, connection: Connection, job: ClaimedJob) -> str | None:
        """Return the status under which this claim has archived its job, None if it has not."""
        columns = self.archived_job.c
        query = sa.select(columns.status).where(columns.job_id == job.job_id, columns.claimed_by == job.token)
        return self._by_key(connection).execute(query).scalar()

    # Finish

    def make_impatient(self, connection: Connection, *, lasting: bool) -> Any:
        """Let a new connection of ours record outcomes: it waits only briefly for locks. Return what to restore, None if nothing.

        `lasting`: it is kept for more than one transaction.

        **Transaction:** none is left open.
        """

    def restore(self, connection: Connection, before: Any) -> None:
        """Restore what `make_ready` or `make_impatient` returned, before the connection goes back to the application's pool.

        **Transaction:** none is left open.
        """

    def wait_briefly(self, connection: Connection) -> None:
        """Let this transaction wait only briefly for locks, where that is set for each."""

    def archive(self, connection: Connection, finishes: Sequence[Finish]) -> list[Archived]:
        """Move finished jobs to the archive, each only if its claim still owns it; return what became of each.

        **Transaction:** locks, copies and deletes the rows that are owned.
        """
        if any(finish.job.row is not None for finish in finishes):
            return [self._held_claims().archive(connection, finish) for finish in finishes]
        return self._archive_leased(connection, finishes)

    def succeed(self, connection: Connection, jobs: Sequence[ClaimedJob], *, new: bool = False) -> list[Archived]:
        """Move jobs to the archive as `archive` does, with success.

        Args:
            connection: In a transaction of ours.
            jobs: Claimed jobs.
            new: Whether their ids are believed to be new to the archive, where that saves something.

        Raises:
            NotNew: One of them is not; the transaction is to be rolled back.
        """
        return self.archive(connection, [Finish(job, "success") for job in jobs])

    def _archive_leased(self, connection: Connection, finishes: Sequence[Finish]) -> list[Archived]:
        raise NotImplementedError

    def _held_claims(self) -> HeldStatements:
        if self.held is None:
            raise NotImplementedError("Rows cannot be locked one by one here.")
        return self.held

    def _written(self, connection: Connection, job: ClaimedJob) -> bool:
        """Return whether the token is in the job's row, as far as that is for us to do: a held claim writes it only now."""
        return job.row is None or self._held_claims().take(connection, job)

    def retry(self, connection: Connection, job: ClaimedJob, *, delay: dt.timedelta, error: str) -> bool:
        """Put the job back, due after `delay` (at least 0), with its error; return whether it was still owned.

        **Transaction:** updates the job's row.
        """
        if not self._written(connection, job):
            return False
        values = {**self._key(job), **self.times(delay=delay), "error": error}
        return self._by_key(connection).execute(self._retry, values).rowcount == 1

    def release(self, connection: Connection, job: ClaimedJob, *, delay: dt.timedelta = NO_DELAY, note: str | None = None) -> bool:
        """Put the job back as if this attempt had not begun; return whether it was still owned.

        Args:
            connection: In a transaction of ours.
            job: The claim.
            delay: When it is due again; without one it stays due.
            note: What `last_error` is to say; None leaves it.

        **Transaction:** updates the job's row.
        """
        if not self._written(connection, job):
            return False
        if not delay:
            return self._by_key(connection).execute(self._release, self._key(job)).rowcount == 1
        values = {**self._key(job), **self.times(delay=delay), "error": note}
        return self._by_key(connection).execute(self._postpone, values).rowcount == 1

    def last_error(self, connection: Connection, job_id: Any) -> str | None:
        """Return the stored error of a queued job.

        **Transaction:** reads.
        """
        query = sa.select(self.job.c.last_error).where(self.job.c.job_id == job_id)
        return self._by_key(connection).execute(query).scalar()

    def _by_key(self, connection: Connection) -> Connection:
        """Return the connection, told to find rows by primary key until the end of the transaction."""
        return connection

    @staticmethod
    def _key(job: ClaimedJob) -> dict[str, Any]:
        return {"id": job.job_id, "token": job.token}

    # The handler's and the producer's transaction

    def begin_before_savepoint(self, connection: Connection) -> None:
        """Make sure that a transaction is open in the database before a savepoint is set."""

    def begin_owned(self, connection: Connection, job: ClaimedJob) -> bool:
        """Do what must come first in a transaction of the handler's; return whether the job is still owned."""
        return True

    def lend(self, connection: Connection) -> None:
        """Give a transaction of ours to the application, with the settings that it knows."""

    def take_back(self, connection: Connection, *, undone: bool = False) -> None:
        """Go on with a transaction of ours after the application; `undone`: what it did in its savepoint is rolled back."""

    def check_constraints(self, connection: Connection) -> None:
        """Let deferred constraints speak now, where there are any."""


def dotted(version: tuple[Any, ...]) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version)) or "of an unknown version"
