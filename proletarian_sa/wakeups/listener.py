"""One thread for each engine that hears notifications, on a connection of its own, for all workers of the process."""

from __future__ import annotations

import dataclasses
import os
import secrets
import selectors
import socket
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, Protocol

from proletarian_sa import events
from proletarian_sa.backoff import backoff
from proletarian_sa.own_loops import close_own_pool, make_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy.engine import Dialect, Engine

    from proletarian_sa.runtime import Runtime
    from proletarian_sa.wakeups.contract import Ear, Notifications

LISTENING: Final = "listening for notifications"
CHECK: Final = 30.0  # seconds of silence until the connection is tried
TRIAL: Final = 5.0  # seconds that a notification of our own may take to arrive
DEAF_FOR: Final = 60.0  # seconds until it is tried again, where none arrived
STOPPING: Final = 1.0  # seconds that a stop waits for the thread; it may be connecting, and ends by itself then


class Subscriber(Protocol):
    """A worker that is to be woken."""

    @property
    def runtime(self) -> Runtime:
        """Its own."""
        ...

    def topics(self) -> set[str]:
        """Return what wakes it."""
        ...

    def wake(self) -> None:
        """Wake it."""
        ...

    def emit(self, event: events.Event) -> None:
        """Tell its sink."""
        ...


class Listener:
    """Hears what is due on one database, and wakes the workers that look for it.

    Attributes:
        hears: Whether notifications arrive. If not, workers poll as if there were none.
    """

    def __init__(self, engine: Engine, notifications: Notifications) -> None:
        self._engine = engine
        self._notifications = notifications
        self._lock = threading.Lock()  # guards what follows
        self._subscribers: tuple[Subscriber, ...] = ()
        self._state: events.Event | None = None  # what has been told of it last
        self.hears = False
        self._failures = 0
        self._stop = threading.Event()
        self._bell, self._ring = socket.socketpair()  # interrupts the wait for notifications
        self._thread = make_thread(engine, self._run, "proletarian listener")

    def start(self) -> None:
        """Begin to listen."""
        try:
            self._thread.start()
        except BaseException:
            self._bell.close()
            self._ring.close()
            raise

    def add(self, subscriber: Subscriber) -> None:
        """Wake this one, too."""
        with self._lock:
            self._subscribers += (subscriber,)

    def introduce(self, subscriber: Subscriber) -> None:
        """Tell one that has just been added what the others have been told."""
        with self._lock:
            state = self._state
        if state is not None:
            _tell([subscriber], state)

    def remove(self, subscriber: Subscriber) -> bool:
        """Do not wake this one any more; return whether there is none left."""
        with self._lock:
            self._subscribers = tuple(one for one in self._subscribers if one is not subscriber)
            return not self._subscribers

    def stop(self) -> None:
        """End the thread and close its connection."""
        self._stop.set()
        self._ring.close()  # which can be read at the other end
        if self._thread is not threading.current_thread():
            self._thread.join(STOPPING)

    def _run(self) -> None:
        reason = self._notifications.why_deaf(self._engine)
        if reason is not None:
            self._tell(events.NotificationsUnavailable(worker_id="", reason=reason))
        pause = 0.0
        with closing(self._bell):
            while reason is None and not self._stop.wait(pause):
                try:
                    with closing(self._notifications.listen(self._engine)) as ear:
                        pause = self._listen(ear)
                except Exception as error:  # noqa: BLE001 - becomes an event; polling goes on
                    pause = self._failed(error)

    def _listen(self, ear: Ear) -> float:
        """Wake workers until the stop, or until the connection is lost, which raises; return when to try again in a deaf state."""
        with selectors.DefaultSelector() as selector:
            selector.register(ear, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            if not self._is_heard(ear, selector):
                if not self._stop.is_set() and not isinstance(self._state, events.NotificationsUnavailable):
                    self._tell(events.NotificationsUnavailable(worker_id="", reason=DEAF))
                return DEAF_FOR
            self._begin()
            try:
                while not self._stop.is_set():
                    if selector.select(CHECK):
                        self._wake(ear.heard())
                    else:
                        ear.check()
                        self._wake(ear.heard())
            finally:
                self._end()
        return 0.0

    def _is_heard(self, ear: Ear, selector: selectors.BaseSelector) -> bool:
        """Return whether a notification from another session arrives: behind a pooler, ours may be somebody else's meanwhile."""
        sent = secrets.token_hex(16)
        with self._engine.begin() as connection:
            self._notifications.send(connection, sent)
        close_own_pool(self._engine)  # it is not needed any more
        deadline = time.monotonic() + TRIAL
        while not self._stop.is_set() and (left := deadline - time.monotonic()) > 0:
            if selector.select(left) and sent in ear.heard():
                return True
        return False

    def _begin(self) -> None:
        if self._failures:
            self._tell(events.Recovered(worker_id="", activity=LISTENING, failures=self._failures), keep=False)
        self._failures = 0
        self.hears = True
        self._tell(events.ListenerStarted(worker_id=""))
        self._wake(None)  # jobs may have come before

    def _end(self) -> None:
        self.hears = False
        self._wake(None)  # who waits for long is to poll again

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        self._state = None
        delay = backoff(self._failures)
        told = events.TransientErrorMet(
            worker_id="", activity=LISTENING, exception=error, retry_in=delay, consecutive=self._failures
        )
        self._tell(told, keep=False)
        return delay.total_seconds()

    def _wake(self, topics: set[str] | None) -> None:
        """Wake those who wait for one of these topics; None: all."""
        for subscriber in self._subscribers:
            if topics is None or topics & subscriber.topics():
                subscriber.wake()

    def _tell(self, event: events.Event, *, keep: bool = True) -> None:
        with self._lock:
            subscribers = self._subscribers
            if keep:
                self._state = event
        _tell(subscribers, event)


DEAF: Final = (
    "a notification of our own did not arrive. Is there a pooler in transaction mode? Give the worker an engine that goes past it"
)


def _tell(subscribers: Iterable[Subscriber], event: events.Event) -> None:
    for subscriber in subscribers:
        runtime = subscriber.runtime
        told = dataclasses.replace(event, worker_id=runtime.worker_id)
        if isinstance(told, events.TransientErrorMet):
            told = dataclasses.replace(told, news=runtime.vigil.news(LISTENING, told.exception, told.retry_in))
        elif isinstance(told, events.Recovered):
            runtime.vigil.over(LISTENING)
        subscriber.emit(told)


class _Listeners:
    """The listeners of this process, by dialect: the part of an engine that all its variants share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_dialect: dict[Dialect, Listener] = {}


_here = _Listeners()


def _forget() -> None:
    """Start anew in a forked child: the threads are the parent's, and so are the connections."""
    global _here  # noqa: PLW0603 - its lock may be held by a thread that is no more
    _inherited.append(_here)  # so that nothing is closed here that the parent uses
    _here = _Listeners()


_inherited: Final[list[Any]] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def attach(subscriber: Subscriber) -> Listener | None:
    """Return what wakes a worker from now on; None where notifications are not known."""
    runtime = subscriber.runtime
    notifications = runtime.statements.notifications
    if notifications is None:
        return None
    with _here.lock:
        listener = _here.by_dialect.get(runtime.engine.dialect)
        if listener is None:
            listener = Listener(runtime.engine, notifications)
            listener.add(subscriber)
            listener.start()
            _here.by_dialect[runtime.engine.dialect] = listener
            return listener
        listener.add(subscriber)
    listener.introduce(subscriber)  # not in there: a sink may wait for somebody who wants that lock
    return listener


def detach(listener: Listener, subscriber: Subscriber) -> None:
    """Let a worker be woken no more; the last one ends the thread."""
    with _here.lock:
        last = listener.remove(subscriber)
        for dialect, known in list(_here.by_dialect.items()):
            if last and known is listener:
                del _here.by_dialect[dialect]
    if last:
        listener.stop()
