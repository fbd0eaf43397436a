"""What a queued job is waiting for, as properties that also work in queries."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import sqlalchemy as sa
from sqlalchemy.ext.hybrid import hybrid_property

from proletarian_sa.types import UTCDateTime, statement_time

if TYPE_CHECKING:
    from sqlalchemy.orm import Mapped

    from proletarian_sa.clock import Clock

State = Literal["due", "scheduled", "running", "lapsed"]


class States:
    """The state of a queued job: `due`, `scheduled`, `running` or `lapsed`, exactly one of them at a time.

    In a query the clock is the database's, on an instance this process's (UTC); with `JobTables(clock=…)` it is that clock in
    both, read when the query is executed. A job that a worker with `claim="held"` is running looks `due`: its row is locked, not
    changed, and no other transaction can see that.
    """

    job_tables: ClassVar[Any]
    _process_in: dt.timedelta | None

    if TYPE_CHECKING:
        process_at: Mapped[dt.datetime]
        claimed_by: Mapped[str | None]
        lease_until: Mapped[dt.datetime | None]

    @hybrid_property
    def is_due(self) -> bool:
        """Whether any worker may take it now: its time has come and nobody has claimed it.

        With an equality on `queue` PostgreSQL, MySQL and MariaDB can search the index of the claims:
        `select(Job).where(Job.queue == "mail", Job.is_due)`.
        """
        return self.state == "due"

    @is_due.inplace.expression
    @classmethod
    def _is_due_in_sql(cls) -> sa.ColumnElement[bool]:
        return sa.and_(cls.process_at <= _now(cls), cls.claimed_by.is_(None), _free(cls))

    @hybrid_property
    def is_scheduled(self) -> bool:
        """Whether its time has not come: it was enqueued for later, or waits for its next attempt."""
        return self.state == "scheduled"

    @is_scheduled.inplace.expression
    @classmethod
    def _is_scheduled_in_sql(cls) -> sa.ColumnElement[bool]:
        return sa.and_(cls.process_at > _now(cls), cls.claimed_by.is_(None), _free(cls))

    @hybrid_property
    def is_running(self) -> bool:
        """Whether a worker has claimed it and its lease holds: it runs, or is about to."""
        return self.state == "running"

    @is_running.inplace.expression
    @classmethod
    def _is_running_in_sql(cls) -> sa.ColumnElement[bool]:
        return sa.and_(cls.lease_until.is_not(None), cls.lease_until > _now(cls))

    @hybrid_property
    def is_lapsed(self) -> bool:
        """Whether its worker was lost: it was claimed, and the lease is over. The next claim takes it again."""
        return self.state == "lapsed"

    @is_lapsed.inplace.expression
    @classmethod
    def _is_lapsed_in_sql(cls) -> sa.ColumnElement[bool]:
        return sa.and_(cls.claimed_by.is_not(None), _free(cls))

    @hybrid_property
    def state(self) -> State:
        """`due`, `scheduled`, `running` or `lapsed`: to show and to count by.

            select(Job.queue, Job.state, func.count()).group_by(Job.queue, Job.state)

        To find due jobs among many, `Job.is_due` is faster: no index knows the state.
        """
        clock: Clock | None = self.job_tables.clock
        now = clock.now() if clock else dt.datetime.now(dt.UTC)
        if self.lease_until is not None and self.lease_until > now:
            return "running"
        if self.claimed_by is not None:
            return "lapsed"
        process_at: dt.datetime | None = self.process_at
        if process_at is None:  # not flushed yet
            return "scheduled" if self._process_in else "due"
        return "due" if process_at <= now else "scheduled"

    @state.inplace.expression
    @classmethod
    def _state_in_sql(cls) -> sa.ColumnElement[str]:
        now = _now(cls)
        return sa.case(
            (sa.and_(cls.lease_until.is_not(None), cls.lease_until > now), _word("running")),
            (cls.claimed_by.is_not(None), _word("lapsed")),
            (cls.process_at <= now, _word("due")),
            else_=_word("scheduled"),
        )


def _free(cls: type[States]) -> sa.ColumnElement[bool]:
    return sa.or_(cls.lease_until.is_(None), cls.lease_until <= _now(cls))


def _now(cls: type[States]) -> sa.ColumnElement[dt.datetime]:
    clock: Clock | None = cls.job_tables.clock
    if clock is None:
        return statement_time()
    # One name for one clock: PostgreSQL groups by an expression only where it is the very same as the selected one.
    return sa.bindparam(f"clock_{id(clock)}", callable_=clock.now, type_=UTCDateTime())


def _word(word: State) -> sa.ColumnElement[str]:
    return sa.literal_column(f"'{word}'", sa.String())  # not a parameter, for the same reason
