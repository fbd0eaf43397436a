"""Stop a worker at a signal, beside what the application does at that signal itself."""

from __future__ import annotations

import contextlib
import functools
import os
import queue as queues
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

NAMES: Final = ("SIGTERM", "SIGINT", "SIGBREAK")  # those that the platform has
EXIT_SIGNAL: Final = 128  # plus the signal's number, as shells do
AGAIN: Final = 0.5  # seconds


class StopAtSignals:
    """What stops a worker at the first signal, if it has the option: on from `install` until `remove`.

    Attributes:
        in_run: The main thread waits in `run`, which returns by itself.
    """

    def __init__(self, stop: Callable[[], object], name: str, *, enabled: bool) -> None:
        self._stop = stop
        self._name = name
        self._enabled = enabled
        self._watch = Watch(self, stop)  # that of the last start
        self.in_run = False

    @property
    def obeyed(self) -> bool:
        """Whether the stop that a signal asked for has ended, or its time is over."""
        return self._watch.obeyed

    @property
    def hurried(self) -> bool:
        """Whether a signal has had its own effect since: the process is to end now."""
        return self._watch.hurried

    def check(self) -> None:
        """Raise RuntimeError if the handlers are wanted and this is not the main thread, the only one that may install them."""
        if self._enabled and not _is_main_thread():
            raise RuntimeError(
                "install_signal_handlers=True works in the main thread only, and this is"
                f" {threading.current_thread().name!r}. Start the worker in the main thread, or leave install_signal_handlers"
                " out and call stop() when the process is to end."
            )

    def install(self) -> None:
        """Install the handlers. What a signal asks for before `begin` waits for it."""
        if self._enabled:
            self._watch.remove()
            self._watch = Watch(self, self._stop)
            self._watch.install(f"{self._name} signals")

    def begin(self) -> None:
        """Begin to obey: the worker can be stopped now."""
        self._watch.begun.set()

    def remove(self) -> None:
        """Let go of the worker."""
        self._watch.remove()

    @contextlib.contextmanager
    def stopping(self, is_running: Callable[[], bool]) -> Iterator[None]:
        """Let go of the worker after `stop`; not elsewhere than in the main thread while handlers are still running."""
        watch = self._watch  # the worker may be started again meanwhile
        try:
            yield
        finally:
            if _is_main_thread() or not is_running():
                watch.remove()

    @contextlib.contextmanager
    def waiting_in_run(self) -> Iterator[None]:
        """Say that the main thread, if this is it, waits for the worker to stop."""
        in_main_thread = _is_main_thread()
        self.in_run = self.in_run or in_main_thread
        try:
            yield
        finally:
            if in_main_thread:
                self.in_run = False
                self.remove()


class Watch:
    """One start of a worker, between the signals and its stop.

    Attributes:
        asked: A signal has asked for a stop.
        obeyed: That stop has ended, or its time is over.
        hurried: A signal has had its own effect since.
        begun: Set when the worker can be stopped.
    """

    def __init__(self, owner: StopAtSignals, stop: Callable[[], object]) -> None:
        self._owner = owner
        self._stop = stop
        self._handlers: list[Handler] = []
        self._removing = threading.RLock()
        self._requests: queues.SimpleQueue[Callable[[], None] | None] = queues.SimpleQueue()  # a signal may interrupt its put()
        self.asked = False
        self.obeyed = False
        self.hurried = False
        self.begun = threading.Event()

    @property
    def in_run(self) -> bool:
        """Whether the main thread waits in `run`."""
        return self._owner.in_run

    def install(self, name: str) -> None:
        """Install the handlers, and the thread of that name that does what they cannot do themselves."""
        threading.Thread(target=self._obey, name=name, daemon=True).start()
        self._handlers = [found for name in NAMES if (found := _handler(getattr(signal, name, None))) is not None]
        for handler in self._handlers:
            handler.watches.append(self)

    def ask(self, afterwards: Callable[[], None]) -> None:
        """Ask for a stop. Called by a signal handler, which may have interrupted anything: takes no lock."""
        self.asked = True
        self._requests.put(afterwards)

    def _obey(self) -> None:
        afterwards = self._requests.get() or self._late_request()
        if afterwards is None:
            return
        self.begun.wait()
        try:
            if self._handlers:  # else the main thread has stopped it meanwhile, and may have started it again
                self._stop()
        finally:
            self.obeyed = True
            afterwards()

    def _late_request(self) -> Callable[[], None] | None:
        """Return what a signal asks for whose handler had found this watch before it was removed; others wait for that."""
        with contextlib.suppress(queues.Empty):
            return self._requests.get(timeout=AGAIN)
        return None

    def remove(self) -> None:
        """Let go of the worker; in the main thread also put back what was installed before, unless another worker needs ours."""
        with self._removing:
            for handler in self._handlers:
                if self in handler.watches:
                    handler.watches.remove(self)
                if not handler.watches and _is_main_thread():
                    handler.restore()
            if _is_main_thread():
                self._handlers = []
        self.begun.set()
        self._requests.put(None)


class Handler:
    """What is installed for one signal, for all workers of this process, in front of what was installed before."""

    def __init__(self, number: int, previous: Any) -> None:
        self.number = number
        self.previous = previous
        self.process = os.getpid()
        self.watches: list[Watch] = []
        self._calls = 0
        self._stopping: set[Watch] = set()
        self._settling = threading.Lock()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Ask the workers to stop at the first signal; at the next do what would have been done without us."""
        self._calls += 1
        if self.process == os.getpid():  # else a forked child, which has none of the workers
            unasked = [watch for watch in tuple(self.watches) if not watch.asked]  # another thread may remove one
            if unasked:
                self._ask(unasked)
                if not self._is_default():
                    self.previous(number, frame)
                return
            for watch in tuple(self.watches):
                watch.hurried = True
        self._pass_on(number, frame)

    def restore(self) -> None:
        """Put back what was installed before, unless the application has installed something else since."""
        if self._is_installed():
            signal.signal(self.number, self.previous)

    def _is_installed(self) -> bool:
        found: object = signal.getsignal(self.number)
        return found is self

    def _is_default(self) -> bool:
        return self.previous in (signal.SIG_DFL, signal.default_int_handler)

    def _ask(self, watches: list[Watch]) -> None:
        again = self._is_default() and not any(watch.in_run for watch in tuple(self.watches))
        self._stopping.update(watches)
        for watch in watches:
            watch.ask(functools.partial(self._settle, watch, again=again))

    def _settle(self, watch: Watch, *, again: bool) -> None:
        """Let the signal have its default effect once all workers that it asked have stopped."""
        with self._settling:
            self._stopping.discard(watch)
            last = not self._stopping
        if not last or not again or watch.hurried:
            return
        calls = self._calls
        while True:
            _send_to_main_thread(self.number)
            # Python does not see a signal that arrives just before its main thread begins to wait, until the wait ends.
            time.sleep(AGAIN)
            if self._calls != calls or not self._is_installed():
                return

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self._is_default():
            self.restore()
        if self.previous is not signal.SIG_DFL:
            self.previous(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        raise SystemExit(EXIT_SIGNAL + number)  # as process 1 of a container, which no signal ends


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _handler(number: int | None) -> Handler | None:
    """Return our handler of a signal, installed; None where the signal does not exist, is ignored, or is not Python's."""
    if number is None:
        return None
    current = signal.getsignal(number)
    if current is None or current is signal.SIG_IGN:
        return None
    if isinstance(current, Handler):
        if current.process == os.getpid():
            return current
        current = current.previous  # of the process that this one was forked from
    handler = Handler(number, current)
    signal.signal(number, handler)
    return handler


def _send_to_main_thread(number: int) -> None:
    """Raise a signal in the main thread, which may wait for something that only a signal of its own interrupts."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, number)
    else:
        signal.raise_signal(number)
