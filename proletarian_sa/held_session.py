"""`job.session` inside a transaction of the worker's."""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any

from sqlalchemy import inspect
from sqlalchemy.orm import Session

from proletarian_sa.session import ERRORS, HandlerTransaction, new_session, not_yours

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection, Engine

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.runtime import Runtime


class HeldTransaction(HandlerTransaction):
    """The handler's savepoint in a transaction that goes on after it.

    The Session joins the savepoint and can end no more than that, so a handler that fails is undone while the claim is kept. Its
    commit is the last of its `before_commit` hooks, so that the `after_commit` hooks of the application run after the COMMIT.

    Args:
        runtime: The worker's.
        job: The job.
        connection: In the worker's transaction.
        commit: Commits that.
    """

    def __init__(self, runtime: Runtime, job: ClaimedJob, connection: Connection, commit: Callable[[], None]) -> None:
        self.connection = connection
        self._lent = connection.get_transaction()
        self._released = False
        self._commit = commit
        super().__init__(runtime, job)

    def _make_session(self) -> Session:
        if self._runtime.session_factory is None:
            return Session(self.connection, join_transaction_mode="rollback_only")
        return self._join(new_session(self._runtime))

    def _join(self, session: Session) -> Session:
        """Let a session of the application's use our connection wherever it would use one to this database."""
        if session.twophase:
            raise TypeError(
                "session_factory makes sessions with twophase=True, which cannot join a transaction that has begun: that of a held "
                "claim, or the one in which failed_job is called. Use claim='leased', and there a factory without it."
            )
        session.join_transaction_mode = "rollback_only"
        get_bind = session.get_bind
        pool = get_bind(inspect(self._runtime.tables.Job)).engine.pool

        def get_our_bind(*arguments: Any, **options: Any) -> Engine | Connection:
            bind = get_bind(*arguments, **options)
            return self.connection if bind.engine.pool is pool else bind

        session.get_bind = get_our_bind  # type: ignore[method-assign]
        return session

    def _start(self) -> None:
        self.connection.execution_options(**{ERRORS: self._errors})
        try:
            self._savepoint = self.connection.begin_nested()
            self._runtime.statements.lend(self.connection)
            self._connect()
            self._joined = self.session.get_transaction()
        except BaseException:
            self.alive = False
            self._forget()
            raise

    def complete(self) -> None:
        """Flush, let deferred constraints speak, and release the savepoint: what fails here is the handler's failure."""
        if self.session.get_transaction() is not self._joined:
            raise not_yours()
        super().complete()

    def _release(self) -> None:
        super()._release()
        self._released = True
        self._runtime.statements.take_back(self.connection)

    def commit(self, archive: Callable[[], None]) -> None:
        """Archive and commit, between the hooks of the application's session."""

        def archive_and_commit() -> None:
            archive()
            self._commit()

        super().commit(archive_and_commit)

    def undo(self) -> None:
        """Roll back to the savepoint, if it is still there."""
        try:
            type(self.session).rollback(self.session)
        except (Exception, CancelledError):  # noqa: BLE001 - a lost connection or savepoint: the handler's failure is told, not this
            self.alive = False
        else:
            self.alive = not self._released and self._goes_on()
            if self.alive:
                self._runtime.statements.take_back(self.connection, undone=True)
        finally:
            self.close()

    def _goes_on(self) -> bool:
        """Return whether the transaction is still the one that was lent: not ended by the database, nor by the handler."""
        connection = self.connection
        if connection.closed or connection.invalidated or connection.get_transaction() is not self._lent:
            return False
        statements = self._runtime.statements
        ended = any(statements.is_lost_savepoint(error) for error in self._errors)
        dropped = not statements.savepoint_recovers and self.died_of() is not None
        return self._lent is not None and self._lent.is_active and not ended and not dropped

    def abandon(self) -> None:
        """Give up the whole transaction; who has begun it rolls it back."""
        self.undo()
        self.alive = False

    def _forget(self) -> None:
        self.connection.execution_options(**{ERRORS: None})
        vars(self.session).pop("get_bind", None)
        super()._forget()
