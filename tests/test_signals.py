"""`install_signal_handlers`: what is installed and put back, beside what the application has installed itself."""

import signal
import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import QueueWorker, events
from proletarian_sa.signals import Handler
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder
from tests.signalling import Own, elsewhere


@pytest.fixture(params=["sqlite"])
def database_kind(request):
    """Run on the database that is always there."""
    return request.param


def test_nothing_is_installed_unless_asked_for(work):
    """`:install-jvm-shutdown-hook?`: by default a worker leaves all signals to the application."""
    worker, _ = work(lambda _job: None)
    worker.start()

    assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("way", ["stop", "with", "signal, then stop", "stop elsewhere, then here"])
def test_stop_puts_back_what_was_there(signalled, way):
    """The application's handler and Python's own for Ctrl-C are there again after `stop` in the main thread."""
    own = Own()
    worker, _ = signalled()
    worker.start()
    assert isinstance(signal.getsignal(signal.SIGTERM), Handler)
    assert isinstance(signal.getsignal(signal.SIGINT), Handler)

    if way == "with":
        with worker:
            pass
    if way == "signal, then stop":
        signal.raise_signal(signal.SIGTERM)
        assert worker.join(PATIENCE)
    if way == "stop elsewhere, then here":
        assert [] == elsewhere(worker.stop)
    worker.stop()

    assert signal.getsignal(signal.SIGTERM) is own
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_the_application_has_installed_since_is_left(signalled):
    """`stop` takes nothing away that somebody else has put in the place of ours."""
    Own()
    worker, _ = signalled()
    worker.start()
    later = Own()
    worker.stop()

    assert signal.getsignal(signal.SIGTERM) is later
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_later_handler_that_calls_ours(signalled):
    """An application that wraps what it found stops the worker and keeps its own."""
    first = Own()
    worker, _ = signalled()
    worker.start()
    ours = signal.getsignal(signal.SIGTERM)
    wrapped = []
    signal.signal(signal.SIGTERM, lambda number, frame: (wrapped.append(number), ours(number, frame)))

    signal.raise_signal(signal.SIGTERM)

    assert worker.join(PATIENCE)
    assert [1, 1] == [len(wrapped), first.count()]


def test_stop_elsewhere_leaves_ours_which_pass_on(signalled):
    """Only the main thread can put handlers back; until it does, ours only call what was there before."""
    own = Own()
    worker, seen = signalled()
    worker.start()
    assert [] == elsewhere(worker.stop)

    signal.raise_signal(signal.SIGTERM)

    assert 1 == own.count()
    assert isinstance(signal.getsignal(signal.SIGTERM), Handler)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert 1 == len(seen.of(events.WorkerStopping))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_workers_in_one_process(signalled, order):
    """What was there is put back with the last of them, in whichever order they stop."""
    own = Own()
    workers = [signalled()[0], signalled()[0]]
    for worker in workers:
        worker.start()
    ours = signal.getsignal(signal.SIGTERM)
    workers[order[0]].stop()
    assert signal.getsignal(signal.SIGTERM) is ours
    workers[order[0]].start()
    workers[order[1]].stop()
    assert signal.getsignal(signal.SIGTERM) is ours
    workers[order[0]].stop()
    assert signal.getsignal(signal.SIGTERM) is own


def test_what_is_ignored_stays_ignored(signalled):
    """Whoever started the process with signals ignored, as nohup does, has decided; so has C code with handlers of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker, _ = signalled()
    worker.start()

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    worker.stop()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_start_in_another_thread_is_refused(queue_engine):
    """Not the main thread: with the option a message that says what to do, before anything is started; without it no difference."""
    seen = Recorder()
    worker = QueueWorker(sa.create_engine("sqlite:////no/such/place"), print, install_signal_handlers=True, on_event=seen)
    without = QueueWorker(queue_engine, print)

    error = elsewhere(worker.start)

    assert isinstance(error, RuntimeError)
    assert (
        "install_signal_handlers=True works in the main thread only, and this is 'elsewhere'. Start the worker in the main"
        " thread, or leave install_signal_handlers out and call stop() when the process is to end." == str(error)
    )
    assert not worker.is_running
    assert isinstance(elsewhere(worker.run), RuntimeError)
    assert [] == seen.events
    assert elsewhere(without.start) is None
    assert without.is_running
    assert [] == elsewhere(without.stop)


def test_start_of_a_running_worker_does_nothing_in_any_thread(signalled):
    """Where there is nothing to install, no thread is wrong."""
    worker, _ = signalled()
    worker.start()

    assert elsewhere(worker.start) is None


def test_signals_that_the_platform_does_not_have(signalled, monkeypatch, request):
    """Where there is no SIGTERM, nothing is missing; where there is a SIGBREAK, as on Windows, it stops the worker too."""
    monkeypatch.delattr(signal, "SIGTERM")
    monkeypatch.setattr(signal, "SIGBREAK", signal.SIGUSR1, raising=False)
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR1, signal.SIG_DFL))
    own = Own(signal.SIGUSR1)
    worker, _ = signalled()
    worker.start()

    signal.raise_signal(signal.SIGUSR1)

    assert worker.join(PATIENCE)
    assert 1 == own.count()


def test_the_threads_end(signalled):
    """Neither a stop nor a signal leaves a thread behind."""
    Own()
    for by_signal in (False, True):
        worker, _ = signalled()
        worker.start()
        if by_signal:
            signal.raise_signal(signal.SIGTERM)
            assert worker.join(PATIENCE)
        worker.stop()

        assert wait_until(lambda: not [one.name for one in threading.enumerate() if one.name.startswith("proletarian[")])


def test_the_option_is_checked(queue_engine):
    """It is True or False; a copy of the worker has it too."""
    with pytest.raises(TypeError, match="install_signal_handlers must be True or False, not 'SIGTERM'"):
        QueueWorker(queue_engine, print, install_signal_handlers="SIGTERM")
    with QueueWorker(queue_engine, print, install_signal_handlers=True).with_options(worker_threads=2):
        assert isinstance(signal.getsignal(signal.SIGTERM), Handler)
    assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)
