"""`install_signal_handlers`: what a signal does, whatever the main thread is in the middle of."""

import asyncio
import contextlib
import os
import signal
import threading

import pytest

from proletarian_sa import QueueWorker, events
from proletarian_sa.crew import Crew
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder, add
from tests.signalling import Own, elsewhere


@pytest.fixture(params=["sqlite"])
def database_kind(request):
    """Run on the database that is always there."""
    return request.param


def test_stop_elsewhere_with_jobs_still_running(signalled):
    """While a handler has not returned after a `stop` elsewhere, a signal still waits for it instead of cutting it off."""
    begun, go = threading.Event(), threading.Event()
    worker, _ = signalled(lambda _job: begun.set() or go.wait(PATIENCE))
    add(worker._runtime.engine)
    worker.start()
    assert begun.wait(PATIENCE)
    assert 1 == len(elsewhere(lambda: worker.stop(0)))

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - comes when the worker has stopped
        signal.raise_signal(signal.SIGINT)
        assert worker.is_running
        go.set()
        wait_until(lambda: False, PATIENCE)
    assert not worker.is_running


def test_ctrl_c_without_a_handler_of_ones_own(signalled):
    """The KeyboardInterrupt comes as ever, but when the worker has stopped."""
    worker, seen = signalled()
    worker.start()

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - comes when the worker has stopped
        signal.raise_signal(signal.SIGINT)
        wait_until(lambda: False, PATIENCE)

    assert not worker.is_running
    assert 1 == len(seen.of(events.WorkerStopped))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_after_the_second_signal_stop_does_not_wait(signalled):
    """Whoever has pressed Ctrl-C twice has waited long enough; `stop` waits again only for as long as it is told to."""
    begun, go = threading.Event(), threading.Event()
    worker, seen = signalled(lambda _job: begun.set() or go.wait(PATIENCE), stop_timeout=3600)
    job_id = add(worker._runtime.engine)
    worker.start()
    assert begun.wait(PATIENCE)
    signal.raise_signal(signal.SIGINT)
    seen.wait_for(events.WorkerStopping)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

    assert [job_id] == [job.job_id for job in worker.stop()]
    go.set()
    assert [] == worker.stop(PATIENCE)
    assert not worker.is_running


def test_one_signal_stops_two_workers(signalled):
    """Both are asked to stop, and the application's handler is called once."""
    own = Own()
    workers = [signalled()[0], signalled()[0]]
    for worker in workers:
        worker.start()

    signal.raise_signal(signal.SIGTERM)

    assert [True, True] == [worker.join(PATIENCE) for worker in workers]
    assert 1 == own.count()
    for worker in workers:
        worker.stop()
    assert signal.getsignal(signal.SIGTERM) is own


def test_started_again_it_obeys_again(signalled):
    """After a stop by a signal the worker can be started again, and the next signal is a first one."""
    own = Own()
    worker, seen = signalled()
    for times in (1, 2, 3):
        worker.start()
        worker.start()
        signal.raise_signal(signal.SIGTERM)
        assert worker.join(PATIENCE)
        assert times == own.count()
    worker.stop()

    assert 3 == len(seen.of(events.WorkerStopping))
    assert signal.getsignal(signal.SIGTERM) is own


def test_without_a_way_to_signal_a_thread(signalled, monkeypatch):
    """On Windows there is no `pthread_kill`: Ctrl-C still ends the program after the worker."""
    monkeypatch.delattr(signal, "pthread_kill")
    worker, _ = signalled()
    worker.start()

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - comes when the worker has stopped
        signal.raise_signal(signal.SIGINT)
        wait_until(lambda: False, PATIENCE)
    assert not worker.is_running


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child(signalled, queue_engine):
    """A signal in a child does what it did before the worker, stops nothing of the parent's, and can be caught there anew."""
    own = Own()
    worker, seen = signalled()
    worker.start()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # no pytest here, only what is to be tested
        try:
            signal.raise_signal(signal.SIGTERM)
            said = [own.count(), worker._signals._watch.asked]
            other = QueueWorker(queue_engine, print, install_signal_handlers=True)
            other._signals.install()
            other._signals.begin()
            signal.raise_signal(signal.SIGTERM)
            said += [own.count(), other._signals._watch.asked]
            other._signals.remove()
            said.append(signal.getsignal(signal.SIGTERM) is own)
            os.write(writer, f"{said}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = os.read(reader, 100).decode()
    os.close(reader)
    os.waitpid(child, 0)
    add(queue_engine)
    seen.wait_for(events.JobSucceeded)

    assert "[1, False, 2, True, True]" == said
    assert worker.is_running
    assert 0 == own.count()


def test_a_signal_in_the_middle_of_a_lock(signalled):
    """A signal may interrupt the main thread while it holds the lock of logging, which events need: the handler takes none."""
    lock = threading.Lock()
    seen = Recorder()

    def sink(event):
        with lock:
            seen(event)

    own = Own()
    worker, _ = signalled(on_event=sink)
    worker.start()
    with lock:
        signal.raise_signal(signal.SIGTERM)
        assert 1 == own.count()

    assert worker.join(PATIENCE)
    assert 1 == len(seen.of(events.WorkerStopping))


def test_a_signal_while_the_worker_starts(signalled, monkeypatch):
    """It is not lost: the worker stops as soon as it has started."""
    original = Crew.start

    def start(crew):
        original(crew)
        signal.raise_signal(signal.SIGTERM)

    own = Own()
    monkeypatch.setattr(Crew, "start", start)
    worker, seen = signalled()
    worker.start()

    assert worker.join(PATIENCE)
    assert 1 == own.count()
    seen.wait_for(events.WorkerStopped)


def test_a_start_that_fails_puts_back_what_was_there(signalled, monkeypatch):
    """When no thread can be started, and a signal came meanwhile, which then has its effect."""

    def start(_crew):
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError("can't start new thread")

    own = Own()
    monkeypatch.setattr(Crew, "start", start)
    worker, _ = signalled()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - may come at any moment
        with contextlib.suppress(RuntimeError):
            worker.start()
        wait_until(lambda: False, PATIENCE)
    assert not worker.is_running
    assert signal.getsignal(signal.SIGTERM) is own
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_event_loop_keeps_its_handlers(signalled):
    """`loop.add_signal_handler` before `start` is called as well; after `start` it takes over, and the worker is left alone."""
    worker, _ = signalled()

    async def before():
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        worker.start()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(told.wait(), PATIENCE)
        assert await asyncio.to_thread(worker.join, PATIENCE)
        worker.stop()

    async def after():
        told = asyncio.Event()
        worker.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(told.wait(), PATIENCE)
        assert worker.is_running
        worker.stop()

    asyncio.run(before())
    asyncio.run(after())
