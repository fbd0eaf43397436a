"""Run the handlers of one thread of a worker, in a process of their own: the other end of `processes`."""

from __future__ import annotations

import contextlib
import os
import queue as queues
import signal
import threading
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from proletarian_sa.carried import carry, pack, pack_decision
from proletarian_sa.run import Decision, run, start
from proletarian_sa.runtime import prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.running import RunningJob
    from proletarian_sa.runtime import Runtime

SIGNALS: Final = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
LOOK_FOR_PARENT: Final = 1.0  # seconds


def serve(connection: Connection, load: Callable[[str], Runtime], factory: str, worker_id: str) -> None:
    """Run jobs until told to end, in the process of the handlers. Ends at once with the worker's process."""
    _let_signals_pass()
    sending = threading.Lock()

    def send(kind: str, what: Any) -> None:
        try:
            with sending:
                connection.send((kind, what))
        except OSError:  # the worker's process has ended
            os._exit(1)

    try:
        runtime = prepare(load(factory))
        # Who listens, and to what, is known on the other side.
        runtime = replace(runtime, worker_id=worker_id, emit=lambda event: send("event", pack(event)), is_quiet=lambda: False)
    except BaseException as error:  # noqa: BLE001 - told where the worker is started
        send("failed", carry(error))
        return
    send("ready", None)
    _Server(runtime, send).listen(connection)


class _Server:
    """Runs one job at a time in a thread, while the main thread listens."""

    def __init__(self, runtime: Runtime, send: Callable[[str, Any], None]) -> None:
        self._runtime, self._send = runtime, send
        self._inbox: queues.SimpleQueue[ClaimedJob] = queues.SimpleQueue()
        self._running: RunningJob | None = None
        self._stop = False
        self._lock = threading.Lock()

    def listen(self, connection: Connection) -> None:
        parent = os.getppid()
        threading.Thread(target=self._work, name=f"{self._runtime.worker_id} handler", daemon=True).start()
        while True:
            try:
                while not connection.poll(LOOK_FOR_PARENT):
                    if os.getppid() != parent:  # a fork of it may hold the other side open
                        os._exit(1)
                kind, what = connection.recv()
            except (EOFError, OSError):  # the worker's process has ended
                os._exit(1)
            if kind == "end":
                return
            if kind == "run":
                self._stop = False
                self._inbox.put(what)
            else:
                with self._lock:
                    self._stop = True
                    if self._running is not None:
                        self._running._stop.set()

    def _work(self) -> None:
        try:
            while True:
                decision = pack_decision(self._run(self._inbox.get()))
                with self._lock:
                    self._running = None
                self._send("decision", decision)
        except BaseException:  # noqa: BLE001 - nothing can be told any more, and the worker would wait for ever
            with contextlib.suppress(BaseException):
                traceback.print_exc()
            os._exit(1)

    def _run(self, claimed: ClaimedJob) -> Decision:
        started = start(self._runtime, claimed)
        if isinstance(started, Decision):
            return started
        with self._lock:
            self._running = started
            if self._stop:
                started._stop.set()
        return run(self._runtime, claimed, started, limited=False)


def _let_pass(_number: int, _frame: object) -> None:
    """Do nothing at a signal. To ignore it would have programs that handlers start ignore it, too."""


def _let_signals_pass() -> None:
    """Leave signals to the worker's process, which asks handlers to stop: a terminal and a supervisor signal all processes."""
    for number in SIGNALS:
        signal.signal(number, _let_pass)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_obey_signals)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _obey_signals() -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is _let_pass:
            signal.signal(number, signal.SIG_DFL)
