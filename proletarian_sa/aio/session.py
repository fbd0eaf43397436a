"""`job.session` as an AsyncSession: begun at its first use, since handing it over cannot wait."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import IllegalStateChangeError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from proletarian_sa.held_session import HeldTransaction
from proletarian_sa.own_loops import on_loop
from proletarian_sa.session import HandlerTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session

    from proletarian_sa.runtime import Runtime

_OPENING: Final[tuple[str, ...]] = (
    *("begin", "begin_nested", "connection", "execute", "flush", "scalar", "scalars"),
    *("delete", "get", "get_one", "merge", "refresh"),
    *("bulk_insert_mappings", "bulk_save_objects", "bulk_update_mappings"),
    "get_bind",
)
"""What of a Session may need its connection, where it can still be closed if there is none; and what all of them call in the end.

Its savepoints are among them: those of the handler must lie in ours.
"""


class AtFirstUse(HandlerTransaction):
    """A transaction that is opened by the first thing that the handler does with its session.

    Attributes:
        async_session: The handler's.
        not_opened: Why it could not be opened. Whatever is done with the session raises that again, and the run fails with it: what
            the handler wrote has gone nowhere.
    """

    def _make_session(self) -> Session:
        self.async_session = new_async_session(self._runtime)
        return self.async_session.sync_session

    def _start(self) -> None:
        self.is_open = False
        self._behind = {name: vars(self.session)[name] for name in _OPENING if name in vars(self.session)}
        self._hook()

    def _hook(self) -> None:
        for name in _OPENING:
            setattr(self.session, name, self._open_before(name))

    def _open_before(self, name: str) -> Callable[..., Any]:
        def opened(*arguments: Any, **options: Any) -> Any:
            if on_loop():  # else nothing can be awaited: somebody asks for the bind
                self.open()
                return getattr(self.session, name)(*arguments, **options)
            behind = self._behind.get(name)
            return (behind or getattr(type(self.session), name).__get__(self.session))(*arguments, **options)

        return opened

    def open(self) -> None:
        """Open it, unless it is open.

        **Transaction:** begins one, with a savepoint.
        """
        if self.not_opened is not None:
            raise self.not_opened
        if self.is_open:
            return
        self._unhook()
        try:
            super()._start()
        except BaseException as error:
            self.not_opened = error
            self._hook()
            raise
        self.is_open = True

    def _not_begun(self) -> None:
        with suppress(IllegalStateChangeError):  # it is in the middle of something: it is closed after the handler has returned
            super()._not_begun()

    def _unhook(self) -> None:
        for name in _OPENING:
            vars(self.session).pop(name, None)
        vars(self.session).update(self._behind)

    def complete(self) -> None:
        """Flush, let deferred constraints speak, and release the savepoint: what fails here is the handler's failure."""
        self.open()
        super().complete()

    def close(self) -> None:
        """Give the connection back, and the Session to whoever made it."""
        if not self.is_open:
            self._unhook()
        super().close()


class AsyncOwnTransaction(AtFirstUse):
    """The transaction behind `job.session` of a leased job."""


class AsyncJoinedTransaction(AtFirstUse, HeldTransaction):
    """The handler's savepoint in a transaction of the worker's."""

    def _make_session(self) -> Session:
        session = AtFirstUse._make_session(self)
        if self._runtime.session_factory is None:
            session.bind = self.connection
            session.join_transaction_mode = "rollback_only"
            return session
        return self._join(session)

    def undo(self) -> None:
        """Roll back to the savepoint, if it is still there."""
        if self.is_open:
            super().undo()
        else:
            self.close()


def new_async_session(runtime: Runtime) -> AsyncSession:
    """Return a new AsyncSession: the application's own, if it has given a factory."""
    if runtime.session_factory is None:
        return AsyncSession(AsyncEngine(runtime.engine))
    session: Any = runtime.session_factory()
    if not isinstance(session, AsyncSession):
        raise TypeError(
            f"session_factory must return a new AsyncSession, not {type(session).__name__}: "
            "session_factory=async_sessionmaker(async_engine)."
        )
    if session.in_transaction():
        raise TypeError("session_factory must return a new AsyncSession at each call; this one has a transaction already.")
    return session
