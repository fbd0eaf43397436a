"""Tell the application that a job has failed for good: in the transaction that archives it."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Final

from proletarian_sa import events
from proletarian_sa.errors import is_ctrl_c
from proletarian_sa.handlers import result_of
from proletarian_sa.held_session import HeldTransaction
from proletarian_sa.run import about
from proletarian_sa.running import RunningJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

    from proletarian_sa.run import Decision
    from proletarian_sa.runtime import Runtime
    from proletarian_sa.session import HandlerTransaction

MOST_CALLS: Final = 3
"""How often it is called for one failure, where the database could not commit what it wrote."""


class TransactionSpoiled(Exception):  # noqa: N818 - a signal to ourselves, which travels no further
    """The transaction cannot be committed after what `failed_job` did in it."""


class Called:
    """The calls of `failed_job` for one failure."""

    def __init__(self) -> None:
        self._times = 0
        self._error: BaseException | None = None
        self._transaction: HandlerTransaction | None = None

    @property
    def has_failed(self) -> bool:
        """Whether there is an error to tell, and it is not to be called again."""
        return self._error is not None

    def call(self, runtime: Runtime, connection: Connection, decision: Decision, commit: Callable[[], None]) -> list[events.Event]:
        """Call it, and return what is to be told. What it writes through `job.session` is undone if it raises.

        Raises:
            TransactionSpoiled: The transaction is lost with it: the job must be archived in another one.

        **Transaction:** a savepoint in the one given, where `job.session` is used.
        """
        self._transaction = None
        if self._times < MOST_CALLS and self._error is None:
            self._times += 1
            self._error = self._try(runtime, connection, decision, commit)
        elif self._error is None:
            self._error = TimeoutError(f"What it wrote could not be committed {self._times} times.")
        if self._error is None:
            return []
        return [events.FailedJobCallbackFailed(**about(runtime, decision.claimed), exception=self._error)]

    def _try(
        self, runtime: Runtime, connection: Connection, decision: Decision, commit: Callable[[], None]
    ) -> BaseException | None:
        assert runtime.failed_job is not None
        assert decision.exception is not None
        claimed, colour = decision.claimed, runtime.colour
        if colour is None:
            job = RunningJob(claimed, decision.payload, lambda: HeldTransaction(runtime, claimed, connection, commit))
        else:
            job = colour.failed(claimed, decision.payload, lambda: colour.joined(runtime, claimed, connection, commit))
        try:
            with runtime.vigil.aside():
                result = contextvars.Context().run(runtime.failed_job, job, decision.exception)
                (result_of if colour is None else colour.result_of)(result, "failed_job")
            if job._transaction is not None:
                job._transaction.complete()
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            if job._transaction is not None:
                job._transaction.undo()
            if job._not_opened is not None or (job._transaction is not None and not job._transaction.alive):
                self._error = error
                raise TransactionSpoiled from error
            return error
        finally:
            job._over = True
        self._transaction = job._transaction
        return None

    def commit(self) -> None:
        """Commit, if it has used `job.session`: so that the hooks of the application's session are called."""
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return
        try:
            transaction.commit(lambda: None)
        except BaseException as error:
            transaction.abandon()
            if is_ctrl_c(error) or transaction.is_transient(error):
                raise
            self._error = error  # a constraint, a hook of its session: the job is archived all the same
            raise TransactionSpoiled from error
        transaction.close()
