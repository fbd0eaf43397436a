"""Two threads of a worker, or a thread and a signal, at the one moment at which they could get into each other's way."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from proletarian_sa import JobRegistry, QueueWorker, events, handlers, signals
from proletarian_sa.aio.on_loop import OnLoop
from proletarian_sa.errors import UnknownJobType
from proletarian_sa.health import Vigil
from proletarian_sa.held import HeldWatch
from proletarian_sa.held_crew import HeldCrew
from proletarian_sa.reentrant import ReentrantEvent
from tests.helpers import PATIENCE, wait_until
from tests.observing import Gate, add

ONCE = pytest.mark.parametrize("database_kind", ["sqlite"])  # what threads do is the same whatever the database


def in_a_thread(function: Callable[[], object]) -> None:
    """Call a function in another thread, to its end."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_handler_is_registered_while_another_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is imported late registers handlers: an unknown job type stays what it is."""
    jobs = JobRegistry()
    for number in range(3):
        jobs.handler(f"type-{number}")(print)

    def compare(_wanted: str, names: Iterable[str], n: int) -> list[str]:
        return [name for name in names if not jobs.handler(f"late {n} {name}")(print)]

    monkeypatch.setattr(handlers.difflib, "get_close_matches", compare)  # type: ignore[attr-defined]

    with pytest.raises(UnknownJobType, match="Registered: 'type-0', 'type-1', 'type-2'"):
        jobs.find("type-x")


def test_the_loop_goes_on_while_it_is_looked_at() -> None:
    """The thread that watches over an event loop outlives the moment at which that answers."""
    told: list[Any] = []
    crew = OnLoop.__new__(OnLoop)
    crew._asked_at, crew._blocked_for = -1000.0, 0.0
    crew._loop = SimpleNamespace(is_running=lambda: crew._goes_on() or True)  # type: ignore[assignment]
    crew._runtime = SimpleNamespace(emit=told.append, worker_id="w")  # type: ignore[assignment]
    crew._look_at_loop()

    assert [events.LoopBlocked] == [type(event) for event in told]


def test_another_thread_succeeds_while_a_failure_is_told() -> None:
    """The first failure of a claim is told as what it is, whatever a claim of another thread does meanwhile."""
    told: list[Any] = []
    crew = HeldCrew.__new__(HeldCrew)
    crew._untold = crew._failures = 0
    usual = {"is_transient": lambda _: True, "is_missing_table": lambda _: False, "is_lost_race": lambda _: False}
    statements = SimpleNamespace(advice=lambda _: None, **usual)
    crew._runtime = SimpleNamespace(vigil=Vigil(), statements=statements, emit=told.append, worker_id="w")  # type: ignore[assignment]
    crew._idle = SimpleNamespace(hand_on=lambda: setattr(crew, "_failures", 0))  # type: ignore[assignment]
    crew._failed(exc.OperationalError("claim", None, Exception("down")))

    assert [(1, "new")] == [(event.consecutive, event.news) for event in told]


def test_a_busy_thread_finds_jobs_while_another_begins_to_wait() -> None:
    """The thread that polls asks how to wait once: a thread that has found jobs forgets that for all."""

    class Crew(HeldCrew):
        @property
        def _idle(self) -> Any:
            self._waiting = None
            return SimpleNamespace(wait=lambda *given: waited.append(given))

    waited: list[Any] = []
    crew = Crew.__new__(Crew)
    crew._polling, crew._failures, crew._waiting = threading.Lock(), 0, (3, 0.5)
    crew._stopping = threading.Event()  # type: ignore[assignment]
    crew._claim = lambda _claims: ["a job"]  # type: ignore[assignment, method-assign, list-item]

    assert ["a job"] == crew._poll(SimpleNamespace(own=SimpleNamespace(rollback=lambda: None)))  # type: ignore[arg-type]
    assert [(crew._stopping, 3, 0.5)] == waited


@pytest.fixture
def two_watches(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[signals.StopAtSignals, signals.StopAtSignals, list[str]]]:
    """Return what stops two workers at SIGTERM, which tells when it does."""
    stopped: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.append("application"))
    both = [signals.StopAtSignals(lambda name=name: stopped.append(name), name, enabled=True) for name in ("first", "second")]
    for one in both:
        one.install()
        one.begin()
    yield both[0], both[1], stopped
    for one in both:
        one.remove()
    signal.signal(signal.SIGTERM, before)


def test_a_worker_ends_while_a_signal_counts_the_workers(
    two_watches: tuple[signals.StopAtSignals, signals.StopAtSignals, list[str]],
) -> None:
    """A signal asks all workers to stop, also if one of them stops by itself, in another thread, in that moment."""
    first, second, stopped = two_watches
    removed: list[bool] = []

    class Ending(signals.Watch):
        @property
        def asked(self) -> bool:
            if not removed:
                removed.append(True)
                in_a_thread(first._watch.remove)
            return False

        @asked.setter
        def asked(self, value: bool) -> None:
            """Forget it."""

    del first._watch.__dict__["asked"]
    first._watch.__class__ = Ending
    signal.raise_signal(signal.SIGTERM)

    wait_until(lambda: second.obeyed)
    assert "second" in stopped


def test_a_worker_ends_before_a_signal_reaches_it(
    two_watches: tuple[signals.StopAtSignals, signals.StopAtSignals, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a signal asks of a worker that has just ended is answered: the end of the process may wait for that."""
    first, _, _ = two_watches
    handler: Any = signal.getsignal(signal.SIGTERM)
    ask = signals.Handler._ask

    def late(self: signals.Handler, watches: list[signals.Watch]) -> None:
        in_a_thread(first._watch.remove)
        ask(self, watches)

    monkeypatch.setattr(signals.Handler, "_ask", late)
    signal.raise_signal(signal.SIGTERM)

    wait_until(lambda: not handler._stopping)


@pytest.fixture
def at_a_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Return what lets a signal call a function in the main thread."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda function: signal.signal(signal.SIGTERM, lambda *_: function()) and None
    signal.signal(signal.SIGTERM, before)


def test_a_signal_stops_a_worker_while_its_jobs_are_counted(at_a_signal: Callable[[Callable[[], object]], None]) -> None:
    """An application's own handler of a signal stops a worker while the main thread asks for its health."""
    watch = HeldWatch(SimpleNamespace(engine=None, thread=None, statements=SimpleNamespace(held=True)), keep_connection=False)  # type: ignore[arg-type]
    at_a_signal(watch.running)

    class Interrupted(set[Any]):
        def __iter__(self) -> Iterator[Any]:
            watch._watched = set()
            signal.raise_signal(signal.SIGTERM)
            return super().__iter__()

    watch._watched = Interrupted()
    got = watch._lock.acquire

    assert [] == watch.running()
    in_a_thread(lambda: got(timeout=PATIENCE) and watch._lock.release())


def test_a_signal_sets_what_the_main_thread_begins_to_wait_for(at_a_signal: Callable[[Callable[[], object]], None]) -> None:
    """A signal may come at any moment of a wait, and wait itself."""
    event = ReentrantEvent()
    at_a_signal(lambda: (event.wait(0.01), event.set()))
    with event._changed:  # as in the middle of wait()
        signal.raise_signal(signal.SIGTERM)

        assert event.wait(PATIENCE)
    in_a_thread(event.clear)
    assert not event.wait(0.01)


@ONCE
def test_a_sink_stops_the_worker_in_the_thread_of_its_leases(
    queue_engine: sa.Engine, work: Callable[..., QueueWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink that stops its worker, as at an error that it has waited for, does not wait for the thread in which it is called."""
    gate, left = Gate(), []

    def sink(event: events.Event) -> None:
        if isinstance(event, events.TransientErrorMet) and event.activity == "prolonging leases":
            left.append(worker.stop())

    worker, _ = work(gate, on_event=sink, lease=0.3)  # type: ignore[misc]
    job_id = add(queue_engine)
    worker.start()
    gate.begun.get(timeout=PATIENCE)

    def broken(*_given: object, **_options: object) -> None:
        raise exc.OperationalError("heartbeat", None, Exception("down"))

    monkeypatch.setattr(type(worker._crew._runtime.statements), "heartbeat", broken)  # type: ignore[union-attr]
    wait_until(lambda: left)  # at once: the handler has not returned
    gate.open.set()

    assert [job_id] == [job.job_id for job in left[0]]
    assert worker.join(PATIENCE)
