"""Archiving in two statements, for databases that cannot copy and delete in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc

from proletarian_sa.dialects.base import Archived, Statements
from proletarian_sa.types import current_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Connection

    from proletarian_sa.claimed import Finish


class TwoSteps:
    """INSERT … SELECT by the fence, then DELETE by the fence: nothing is deleted that was not copied.

    Args:
        statements: Those of the tables.
        fence: Which job.
        changed: What the archive is to say of it besides its outcome, by column.
    """

    def __init__(
        self, statements: Statements, fence: sa.ColumnElement[bool], changed: Mapping[str, sa.ColumnElement[Any]] | None = None
    ) -> None:
        job, archived_job = statements.job, statements.archived_job
        columns = {
            **{column.name: job.c[column.name] for column in archived_job.c if column.name in job.c},
            **(changed or {}),
            "status": sa.bindparam("outcome", type_=sa.String()),
            "finished_at": statements.clock(current_time()),
            "last_error": sa.func.coalesce(sa.bindparam("error", type_=archived_job.c.last_error.type), job.c.last_error),
        }
        owned = sa.select(*columns.values()).where(fence)
        if statements.row_locks:  # at READ COMMITTED the copying would read without a lock
            owned = owned.with_for_update()
        self._statements = statements
        self._copy = sa.insert(archived_job).from_select(list(columns), owned)
        self._delete = sa.delete(job).where(fence)
        self._forget = sa.delete(archived_job).where(archived_job.c.job_id == sa.bindparam("id"))

    def archive(self, connection: Connection, finish: Finish, key: Mapping[str, Any]) -> Archived:
        """Copy and delete the job of this key."""
        values = {**key, **self._statements.times(), "outcome": finish.status, "error": finish.last_error}
        done = Archived.DONE
        try:
            copied = connection.execute(self._copy, values).rowcount
        except exc.IntegrityError:
            connection.execute(self._forget, {"id": finish.job.job_id})
            copied = connection.execute(self._copy, values).rowcount
            done = Archived.REPLACED
        if copied == 0:
            return Archived.LOST
        connection.execute(self._delete, key)
        return done


class TwoStepArchive(Statements):
    """Jobs are copied and deleted one by one."""

    def _archive_leased(self, connection: Connection, finishes: Sequence[Finish]) -> list[Archived]:
        return [self._two_steps.archive(connection, finish, self._key(finish.job)) for finish in finishes]

    def _build_archive(self) -> None:
        self._two_steps = TwoSteps(self, self._fence)
