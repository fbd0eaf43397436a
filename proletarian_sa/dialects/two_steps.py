"""Archiving in two statements, for databases that cannot copy and delete in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc

from proletarian_sa.dialects.base import Archived, Statements
from proletarian_sa.types import current_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection

    from proletarian_sa.claimed import Finish


class TwoStepArchive(Statements):
    """INSERT … SELECT by the fence, then DELETE by the fence: nothing is deleted that was not copied."""

    def archive(self, connection: Connection, finishes: Sequence[Finish]) -> list[Archived]:
        """Copy and delete, job by job."""
        return [self._archive_one(connection, finish) for finish in finishes]

    def _build_archive(self) -> None:
        columns = self._archived_columns()
        owned = sa.select(*columns.values()).where(self._fence)
        if self.row_locks:  # at READ COMMITTED the copying would read without a lock
            owned = owned.with_for_update()
        self._copy = sa.insert(self.archived_job).from_select(list(columns), owned)
        self._delete = sa.delete(self.job).where(self._fence)
        self._forget = sa.delete(self.archived_job).where(self.archived_job.c.job_id == sa.bindparam("id"))

    def _archived_columns(self) -> dict[str, sa.ColumnElement[Any]]:
        columns = self.job.c
        copied: dict[str, sa.ColumnElement[Any]] = {
            column.name: columns[column.name] for column in self.archived_job.c if column.name in columns
        }
        last_error = sa.bindparam("error", type_=self.archived_job.c.last_error.type)
        return copied | {
            "status": sa.bindparam("outcome", type_=sa.String()),
            "finished_at": self._clock(current_time()),
            "last_error": sa.func.coalesce(last_error, columns.last_error),
        }

    def _archive_one(self, connection: Connection, finish: Finish) -> Archived:
        values = {
            **self._key(finish.job),
            **self.times(),
            "outcome": finish.status,
            "error": finish.last_error,
        }
        done = Archived.DONE
        try:
            copied = connection.execute(self._copy, values).rowcount
        except exc.IntegrityError:
            connection.execute(self._forget, {"id": finish.job.job_id})
            copied = connection.execute(self._copy, values).rowcount
            done = Archived.REPLACED
        if copied == 0:
            return Archived.LOST
        connection.execute(self._delete, self._key(finish.job))
        return done
