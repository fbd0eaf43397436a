"""`job.session`: the handler's writes and the job's completion in one commit."""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sqlalchemy import event, exc, inspect
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from proletarian_sa import events
from proletarian_sa.errors import LeaseLost, SessionNotYours, TransactionLost
from proletarian_sa.own_connection import INSISTED, past_stale
from proletarian_sa.turns import NO_TURN, take_turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection, ExceptionContext, NestedTransaction

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

MOST_FLUSHES: Final = 100
"""As many as SQLAlchemy itself allows, where hooks keep changing objects."""

ERRORS: Final = "proletarian_sa_errors"  # execution option: a list that gathers what goes wrong on a connection


@event.listens_for(Engine, "handle_error")
def _gather(context: ExceptionContext) -> None:
    """Remember an error that the handler may swallow: what fails after it tells nothing of the reason."""
    connection, error = context.connection, context.sqlalchemy_exception
    errors = connection.get_execution_options().get(ERRORS) if connection is not None else None
    if errors is not None and error is not None:
        errors.append(error)


class HandlerTransaction:
    """The transaction behind `job.session`.

    The handler works inside a savepoint of ours, which is also a witness: if it is gone at the end, the database has dropped the
    transaction (at a deadlock that the handler swallowed) or committed it (at a DDL statement), and nothing may be finished. It is
    one of the connection, of which the Session knows nothing: the application's `after_commit` hooks must not run at its release.
    """

    def __init__(self, runtime: Runtime, job: ClaimedJob) -> None:
        self._runtime = runtime
        self._job = job
        self._errors: list[exc.StatementError] = []
        self._turn = NO_TURN
        self.session = self._make_session()
        self._start()
        for method, instead in _ENDS.items():
            setattr(self.session, method, _refuse(method, instead))

    not_opened: BaseException | None = None
    """Why it could not be begun, where that is tried after the handler has been given its session."""

    def _make_session(self) -> Session:
        return new_session(self._runtime)

    def _start(self) -> None:
        past_stale(self._open, self._runtime.engine)

    def _open(self) -> None:
        self._errors.clear()
        self._turn = take_turn(self._runtime.engine)
        try:
            self.connection = self._begin()
            if not self._runtime.statements.begin_owned(self.connection, self._job):
                raise LeaseLost(f"The job {self._job.job_id} no longer belongs to this worker: its lease has lapsed.")
            self._turn.has_lock()
            self._savepoint: NestedTransaction = self.connection.begin_nested()
        except BaseException:
            self._turn.end()
            self._not_begun()
            raise

    def _not_begun(self) -> None:
        type(self.session).close(self.session)

    def _begin(self) -> Connection:
        if not self.session.in_transaction():
            self.session.begin()
        # A session of the application's brings its own engine, which has not our options.
        insist = self._runtime.session_factory is not None or INSISTED in self._runtime.engine.get_execution_options()
        options = self._runtime.options if insist else {}
        return self._connect(execution_options={**options, ERRORS: self._errors})

    def _connect(self, **options: Any) -> Connection:
        return self.session.connection(bind_arguments={"mapper": inspect(self._runtime.tables.Job)}, **options)

    def is_transient(self, error: BaseException) -> bool:
        """Return whether the same may succeed later."""
        return self._runtime.statements.is_transient(error)

    def died_of(self) -> exc.StatementError | None:
        """Return the error, swallowed or not, at which the database ended the transaction for a reason that lies outside it."""
        return next((error for error in self._errors if self._runtime.statements.is_transaction_death(error)), None)

    def complete(self) -> None:
        """Flush, let deferred constraints speak, and release the savepoint: what fails here is the handler's failure.

        Raises:
            TransactionLost: The savepoint is gone.
        """
        statements = self._runtime.statements
        try:
            self._release()
        except exc.DBAPIError as error:
            if statements.is_lost_savepoint(error):
                raise TransactionLost(
                    "The transaction of job.session ended before the handler did: the database dropped it at a deadlock or a lost "
                    "connection that the handler swallowed, or a statement such as DDL committed it. Let database errors travel, "
                    "and keep DDL out of job.session."
                ) from error
            if self._errors and self._errors[0] is not error:
                error.add_note(f"It follows from an error in job.session that the handler swallowed: {self._errors[0]}")
            raise
        except exc.InvalidRequestError as error:
            if not self._savepoint.is_active and not isinstance(error, exc.PendingRollbackError):
                raise not_yours() from error
            raise

    def _release(self) -> None:
        self._flush()
        self._runtime.statements.check_constraints(self.connection)
        self._savepoint.commit()

    def _flush(self) -> None:
        self.session.flush()
        self._connect()  # raises if an earlier flush has failed
        self._release_inner()

    def _release_inner(self) -> None:
        """Release the savepoints that the handler has left open."""
        while (nested := self.session.get_nested_transaction()) is not None:
            nested.commit()
        while (inner := self.connection.get_nested_transaction()) not in (None, self._savepoint):
            inner.commit()

    def commit(self, archive: Callable[[], None]) -> None:
        """Archive and commit, whatever the handler was told.

        The archiving comes last, after the hooks of the application's session: PostgreSQL answers the COMMIT of a transaction that
        has failed with a quiet ROLLBACK, which drivers do not report. If a hook has swallowed an error, the archiving meets it.
        """

        def before_commit(session: Session) -> None:
            if not session.in_nested_transaction():  # a savepoint of a hook's is no commit
                for _ in range(MOST_FLUSHES):  # what hooks add after one: of a held claim, nothing is flushed after the COMMIT
                    session.flush()
                    if not (session.new or session.dirty or session.deleted):
                        break
                archive()

        event.listen(self.session, "before_commit", before_commit)
        try:
            type(self.session).commit(self.session)
        finally:
            event.remove(self.session, "before_commit", before_commit)

    alive = True
    """Whether a transaction that was lent by the worker can go on."""

    def undo(self) -> None:
        """Take back what a failed handler has written."""
        self.abandon()

    def abandon(self) -> None:
        """Roll back and give the connection back. Raises nothing that matters: the server rolls back by itself when it is gone."""
        try:
            type(self.session).rollback(self.session)
        except (Exception, CancelledError):  # noqa: BLE001 - a lost connection, a hook: the handler's failure is told, not this
            self._discard()
        finally:
            self.close()

    def _discard(self) -> None:
        try:
            type(self.session).invalidate(self.session)
        except Exception:  # noqa: BLE001 - see above
            self.connection.invalidate()

    def close(self) -> None:
        """Give the connection back, and the Session to whoever made it."""
        for method in _ENDS:
            delattr(self.session, method)
        self._forget()

    def _forget(self) -> None:
        try:
            type(self.session).close(self.session)
        except Exception as error:  # noqa: BLE001 - becomes an event: a hook of the application's, which changes no outcome
            self._runtime.emit(
                events.CallbackFailed(worker_id=self._runtime.worker_id, callback="the close of job.session", exception=error)
            )
        finally:
            self._turn.end()


def not_yours() -> SessionNotYours:
    """Return the error that says that the handler ended the transaction, whichever way it found."""
    return SessionNotYours("The handler ended the transaction that job.session had begun for it. Leave that transaction alone.")


def new_session(runtime: Runtime) -> Session:
    """Return a new Session: the application's own, if it has given a factory."""
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
