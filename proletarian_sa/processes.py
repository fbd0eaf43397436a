"""Run handlers in processes of their own, one job at a time in each: what ends one costs an attempt of one job."""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final

from proletarian_sa.backoff import backoff
from proletarian_sa.carried import unpack, unpack_decision
from proletarian_sa.errors import HandlerProcessLost, JobTimeout, LeaseLost, UnknownJobType
from proletarian_sa.process_server import SIGNALS, serve
from proletarian_sa.run import Decision, decide_failure
from proletarian_sa.trouble import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proletarian_sa.heartbeat import InHand
    from proletarian_sa.running import RunningJob
    from proletarian_sa.runtime import Runtime

STARTING: Final = "starting a process of handlers"
LOOK: Final = 0.05  # seconds between looks at whether the handler is to stop
LONGEST_START: Final = 60.0  # seconds for a process to import the application and look at the database
LONGEST_END: Final = 5.0  # seconds for a process without a job to end
LONGEST_TALK: Final = 30  # whole seconds for a message to be taken, or to come to its end

_context: Final = multiprocessing.get_context("spawn")
_alive: Final[set[Any]] = set()  # processes of handlers; to add, discard and list are one step each, whatever thread does it
_ending: Final = threading.Event()  # the interpreter
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alive.clear)  # whose they are not


class HandlerProcess:
    """A process that runs handlers for one thread of a worker.

    Args:
        runtime: The worker's, in this process.
        load: Returns the worker's in the other; pickled by name.
        factory: What it is to load.
    """

    def __init__(self, runtime: Runtime, load: Callable[[str], Runtime], factory: str) -> None:
        self._runtime, self._load, self._factory = runtime, load, factory
        self._process: Any = None
        self._connection: Any = None
        self._ready = False
        self._trouble = Trouble(runtime.emit, runtime.worker_id, STARTING, runtime.vigil)

    def begin(self) -> None:
        """Start the process, without waiting for it.

        Raises:
            OSError: The system has no memory, no files or no processes left.
        """
        _stand_still_at_exit()
        self._ready = False
        self._connection, theirs = _context.Pipe()
        arguments = (theirs, self._load, self._factory, self._runtime.worker_id)
        process = _context.Process(target=serve, args=arguments, name=f"{self._runtime.worker_id} handlers", daemon=False)
        try:
            with theirs, _holding_signals():
                # Known beforehand: another thread may take the signal, which then raises at any moment, in here, too.
                self._process = process
                process.start()
                _alive.add(process)
            _limit(self._connection)
        except BaseException:
            self.kill()
            raise

    def wait_until_ready(self, stopping: Callable[[], bool] = lambda: False) -> bool:
        """Wait until it can run jobs, and return True; False if it is not to any more.

        Raises:
            HandlerProcessLost: It has ended, or does not come to an end of starting.
            BaseException: What the application's factory, or the look at the database, has raised.
        """
        deadline = time.monotonic() + LONGEST_START
        try:
            while (said := self._receive(LOOK)) is None:
                if stopping():
                    return False
                if time.monotonic() >= deadline:
                    raise HandlerProcessLost(f"The process of {self._factory} was not ready within {LONGEST_START:g} s.")
            kind, what = said
            if kind == "failed":
                raise what.restore()
        except BaseException:
            self.kill()
            raise
        self._ready = True
        return True

    def run(self, in_hand: InHand, running: RunningJob) -> Decision:
        """Let it run a job, and return what is to become of it.

        It is killed when the handler's time is over or the lease is lost.
        """
        claimed, runtime = in_hand.claimed, self._runtime
        try:
            found = runtime.handlers.find(claimed.job_type)
        except UnknownJobType as error:
            return Decision(claimed=claimed, verdict="undeliverable", exception=error, payload=running.payload)
        try:
            ready = self._ensure_started(lambda: running.stopping or in_hand.lost)
        except BaseException as error:  # noqa: BLE001 - told; the job has not begun
            delay = dt.timedelta(seconds=self._trouble.met(error, backoff))
            return Decision(claimed=claimed, verdict="release", exception=error, retry_in=delay)
        if not ready or running.stopping or in_hand.lost:
            return Decision(claimed=claimed, verdict="release")
        self._trouble.over()
        try:
            return self._watch(in_hand, running, found.timeout)
        except (HandlerProcessLost, JobTimeout) as failure:
            _stand_still_at_exit()
            self._begin_anew(running)
            return decide_failure(runtime, claimed, running, failure)
        except LeaseLost as failure:
            self._begin_anew(running)
            return Decision(claimed=claimed, verdict="lost", exception=failure)
        finally:
            running._over = True

    def _watch(self, in_hand: InHand, running: RunningJob, timeout: float | None) -> Decision:
        """Wait for the decision, and tell what the process tells.

        Raises:
            HandlerProcessLost: It has ended.
            JobTimeout: The handler's time is over.
            LeaseLost: The job is somebody else's.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        told = False
        self._send(("run", in_hand.claimed))
        while True:
            said = self._receive(LOOK)
            if said is not None and said[0] == "event":
                self._runtime.emit(unpack(said[1]))
                continue
            if said is not None:
                return unpack_decision(said[1], running.payload)
            if not self._process.is_alive() and not wait([self._connection], 0):  # a child of it may hold the other side open
                raise self._lost()
            if in_hand.lost:
                raise LeaseLost(f"The job {in_hand.claimed.job_id} no longer belongs to this worker, so its process is killed.")
            if deadline is not None and time.monotonic() >= deadline:
                raise JobTimeout(f"The handler ran for longer than its timeout of {timeout:g} s, so its process is killed.")
            if running.stopping and not told:
                told = True
                self._send(("stop", None))

    def _begin_anew(self, running: RunningJob) -> None:
        """Kill the process, and start the next, so that it may be ready for the next job."""
        self.kill()
        if not running.stopping:
            with contextlib.suppress(OSError):  # tried again at the next job
                self.begin()

    def _ensure_started(self, stopping: Callable[[], bool]) -> bool:
        if self._process is not None and not self._process.is_alive():
            self.kill()
        if self._process is None:
            self.begin()
        return self._ready or self.wait_until_ready(stopping)

    def _send(self, message: tuple[str, Any]) -> None:
        try:
            self._connection.send(message)
        except OSError:
            raise self._lost() from None

    def _receive(self, timeout: float) -> Any:
        """Return a message, or None if there is none within the time.

        Raises:
            HandlerProcessLost: The process has ended.
        """
        if not wait([self._connection], timeout):  # also at its end, which closes the other side
            return None
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None

    def _lost(self) -> HandlerProcessLost:
        self._process.join(LONGEST_END)
        code = self._process.exitcode
        if code is None:
            return HandlerProcessLost("The process that runs the handler stands still.")
        if code < 0:
            try:
                how = f"by {signal.Signals(-code).name}"
            except ValueError:
                how = f"by signal {-code}"
        else:
            how = f"with exit code {code}"
        if not self._ready:
            return HandlerProcessLost(
                f"The process of {self._factory} ended {how} before it was ready. Its standard error says why; a program that "
                "starts a worker needs `if __name__ == '__main__':`, because the process imports it, too."
            )
        return HandlerProcessLost(f"The process that ran the handler ended {how}.")

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            if self._process.pid is not None:  # else it was not started
                self._process.kill()
                self._process.join()
            _alive.discard(self._process)
            self._process = None
        if self._connection is not None:
            self._connection.close()

    def close(self) -> None:
        """End the process, which has no job."""
        if self._process is not None and self._ready:
            with contextlib.suppress(OSError):
                self._connection.send(("end", None))
            self._process.join(LONGEST_END)
        self.kill()


def start_all(processes: list[HandlerProcess]) -> None:
    """Start processes side by side, and wait until each can run jobs; if one cannot, end them all.

    Raises:
        Exception: What that one has said.
    """
    try:
        for process in processes:
            process.begin()
        for process in processes:
            process.wait_until_ready()
    except BaseException:
        for process in processes:
            process.kill()
        raise


@atexit.register
def _kill_all() -> None:
    """End what has outlived its worker: multiprocessing would wait for it."""
    _ending.set()
    for process in list(_alive):
        with contextlib.suppress(ValueError):
            process.kill()


def _stand_still_at_exit() -> None:
    """Do not return when the interpreter ends: a handler that is cut off has not failed, it runs again after its lease."""
    if _ending.is_set():
        threading.Event().wait()


def _limit(connection: Any) -> None:
    """Let no message wait for ever: a process that is stopped takes no more than fits between the two."""
    if hasattr(socket, "SO_SNDTIMEO") and os.name == "posix":
        with socket.socket(fileno=os.dup(connection.fileno())) as same:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                same.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", LONGEST_TALK, 0))


@contextlib.contextmanager
def _holding_signals() -> Iterator[None]:
    """Start a process in which signals wait until it can deal with them: Ctrl-C goes to all processes of a terminal."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it lets them through when it starts one
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
