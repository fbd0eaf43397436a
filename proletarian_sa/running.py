"""The job as its handler sees it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from proletarian_sa.clock import as_timedelta
from proletarian_sa.errors import SessionNotYours
from proletarian_sa.forks import this_process

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from sqlalchemy.orm import Session

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.session import HandlerTransaction


class StopFlag:
    """An event that costs nothing until somebody waits for it: most handlers never do."""

    _is_set = False
    _event: threading.Event | None = None

    def is_set(self) -> bool:
        """Return whether it has been set."""
        return self._is_set

    def set(self) -> None:
        """Wake all who wait, now and later."""
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def wait(self, timeout: float) -> bool:
        """Wait until it is set; return whether it is."""
        if self._event is None:
            with _making_events:
                self._event = self._event or threading.Event()
        if self._is_set:  # looked at after the event is there, as `set` looks for the event after it is set
            return True
        return self._event.wait(timeout)


_making_events: Final = threading.Lock()


class RunningJob:
    """A job that is being run: handed to handlers that take it, to retry functions and to `failed_job`.

    Attributes:
        payload: Its payload, decoded.
    """

    # What most jobs leave as it is stands here: to make a job for its handler is a part of what each one costs.
    _transaction: HandlerTransaction | None = None
    _not_opened: BaseException | None = None
    _finishing = False
    _over = False
    """Whether the handler has returned."""

    def __init__(self, claimed: ClaimedJob, payload: Any, open_transaction: Callable[[], HandlerTransaction]) -> None:
        self._claimed = claimed
        self._open_transaction = open_transaction
        self._stop = StopFlag()
        self._process = this_process()
        self.payload: Any = payload

    @property
    def job_id(self) -> Any:
        """The job's id: a `uuid.UUID`, unless the tables' `job_ids` say otherwise."""
        return self._claimed.job_id

    @property
    def queue(self) -> str:
        """Its queue."""
        return self._claimed.queue

    @property
    def job_type(self) -> str:
        """Its type."""
        return self._claimed.job_type

    @property
    def attempts(self) -> int:
        """Attempts begun, this one included: 1 on the first run."""
        return self._claimed.attempts

    @property
    def crashes(self) -> int:
        """Runs lost with their worker so far."""
        return self._claimed.crashes

    @property
    def enqueued_at(self) -> dt.datetime:
        """When it was enqueued; aware UTC."""
        return self._claimed.enqueued_at

    @property
    def process_at(self) -> dt.datetime:
        """When it was due; aware UTC."""
        return self._claimed.process_at

    @property
    def session(self) -> Session:
        """A Session whose writes are committed together with the job's completion, or not at all.

        Opened at the first use, on a connection of its own; held, in the claim's transaction. Do not commit, roll back or close
        it: return to commit, raise to roll back; `begin_nested()` is yours. On SQLite it takes the write lock when it is opened:
        write late and briefly.

        Raises:
            LeaseLost: The job no longer belongs to this worker.
            SessionNotYours: The handler has returned, or this is a child that it has forked.

        **Transaction:** begins one, with a savepoint; on SQLite writes the job's row.
        """
        return self._begun_transaction().session

    def _begun_transaction(self) -> HandlerTransaction:
        if self._over:
            raise SessionNotYours("job.session ended when the handler returned. For later work, open a session of your own.")
        if this_process() is not self._process:
            raise SessionNotYours(
                "job.session belongs to the process that runs the job, and this is a forked child, which would speak on the same "
                "connection. Make an engine in the child."
            )
        with self.__dict__.setdefault("_opening", threading.Lock()):  # a handler with threads of its own must not get two
            if self._transaction is None:
                try:
                    self._transaction = self._open_transaction()
                except BaseException as error:
                    self._not_opened = error
                    raise
            return self._transaction

    @property
    def stopping(self) -> bool:
        """Whether the handler is asked to stop: the worker stops, or the job no longer belongs to it."""
        return self._stop.is_set()

    def wait(self, seconds: float | dt.timedelta) -> bool:
        """Wait, and return True as soon as the handler is asked to stop, False after the time.

        Args:
            seconds: At most this long: seconds or a timedelta.
        """
        return self._stop.wait(min(as_timedelta(seconds, "seconds").total_seconds(), threading.TIMEOUT_MAX))

    def __repr__(self) -> str:
        return f"RunningJob({self.job_id}, {self.job_type!r}, queue={self.queue!r}, attempts={self.attempts})"
