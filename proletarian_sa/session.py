"""`job.session`: the handler's writes and the job's completion in one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from sqlalchemy import exc, inspect
from sqlalchemy.orm import Session

from proletarian_sa.errors import LeaseLost, SessionNotYours, TransactionLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection
    from sqlalchemy.orm import SessionTransaction

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.runtime import Runtime

_ENDS: Final = {
    "commit": "return from the handler: its writes and the job's completion are committed together",
    "rollback": "raise an exception, or use job.session.begin_nested() for a part that may fail on its own",
    "close": "leave it open: it is closed when the job is finished",
    "reset": "leave it open: it is closed when the job is finished",
    "invalidate": "raise an exception: the job is then tried again on a new connection",
    "prepare": "return from the handler: its writes and the job's completion are committed together",
}


class HandlerTransaction:
    """The transaction behind `job.session`.

    The handler works inside a savepoint of ours, which is also a witness: if it is gone at the end, the database has dropped the
    transaction (at a deadlock that the handler swallowed) or committed it (at a DDL statement), and nothing may be finished.
    """

    def __init__(self, runtime: Runtime, job: ClaimedJob) -> None:
        self._runtime = runtime
        self._job = job
        self.session = _new_session(runtime)
        try:
            self.connection = self._begin()
            if not runtime.statements.begin_owned(self.connection, job):
                raise LeaseLost(f"The job {job.job_id} no longer belongs to this worker: its lease has lapsed.")
            self._savepoint: SessionTransaction = self.session.begin_nested()
        except BaseException:
            self.session.close()
            raise
        for method, instead in _ENDS.items():
            setattr(self.session, method, _refuse(method, instead))

    def _begin(self) -> Connection:
        if not self.session.in_transaction():
            self.session.begin()
        mapper = inspect(self._runtime.tables.Job)
        # A session of the application's brings its own engine, which has not our options.
        options = self._runtime.options if self._runtime.session_factory is not None else {}
        return self.session.connection(bind_arguments={"mapper": mapper}, execution_options=dict(options))

    def complete(self) -> None:
        """Flush, let deferred constraints speak, and release the savepoint: what fails here is the handler's failure.

        Raises:
            TransactionLost: The savepoint is gone.
        """
        statements = self._runtime.statements
        try:
            self.session.flush()
            statements.check_constraints(self.connection)
            self._savepoint.commit()
        except exc.DBAPIError as error:
            if statements.is_lost_savepoint(error):
                raise TransactionLost(
                    "The transaction of job.session ended before the handler did: the database dropped it at a deadlock or a lost "
                    "connection that the handler swallowed, or a statement such as DDL committed it. Let database errors travel, "
                    "and keep DDL out of job.session."
                ) from error
            raise
        except exc.InvalidRequestError as error:
            if not self._savepoint.is_active and not isinstance(error, exc.PendingRollbackError):
                raise SessionNotYours(
                    "The handler ended the transaction that job.session had begun for it. Leave that transaction alone."
                ) from error
            raise

    def commit(self) -> None:
        """Commit, whatever the handler was told."""
        type(self.session).commit(self.session)

    def abandon(self) -> None:
        """Roll back and give the connection back. Raises nothing that matters: the server rolls back by itself when it is gone."""
        try:
            type(self.session).rollback(self.session)
        except exc.SQLAlchemyError:
            type(self.session).invalidate(self.session)
        finally:
            self.close()

    def close(self) -> None:
        """Give the connection back."""
        type(self.session).close(self.session)


def _new_session(runtime: Runtime) -> Session:
    session: Any = Session(runtime.engine) if runtime.session_factory is None else runtime.session_factory()
    if not isinstance(session, Session):
        raise TypeError(
            f"session_factory must return a new Session, not {type(session).__name__}: session_factory=sessionmaker(engine)."
        )
    if session.in_transaction():
        raise TypeError("session_factory must return a new Session at each call; this one has a transaction already.")
    return session


def _refuse(method: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        raise SessionNotYours(f"job.session.{method}() is the worker's business. Instead, {instead}.")

    return refuse
