"""A start that does not come to its end: interrupted, or without threads to be had. No thread goes on behind anybody's back."""

import threading

import pytest

from proletarian_sa import at_exit, events
from tests.claims import HELD, LEASED, chosen
from tests.helpers import wait_until
from tests.observing import PATIENCE, Recorder

pytestmark = pytest.mark.usefixtures("claim")

NOT_NEEDED = {LEASED: {"watch"}, HELD: {"heartbeat", "finisher"}}  # threads


def threads_of(worker_id):
    """Return the threads of a worker."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(worker_id)]


@pytest.mark.parametrize("begin", ["start", "run"])
def test_ctrl_c_once_it_has_started(queue_engine, work, begin):
    """KeyboardInterrupt out of `start` or `run` leaves no worker running, though its threads had begun; it can be started again."""
    keyboard = [KeyboardInterrupt]

    class Interrupting(Recorder):
        def __call__(self, event):
            super().__call__(event)
            if isinstance(event, events.WorkerStarted) and keyboard:
                raise keyboard.pop()

    worker, seen = work(lambda _job: None, on_event=Interrupting(), worker_id="interrupted")
    with pytest.raises(KeyboardInterrupt):
        getattr(worker, begin)()

    assert worker.join(PATIENCE)
    wait_until(lambda: not threads_of("interrupted"))
    worker.start()
    assert worker.is_running
    assert 2 == len(seen.of(events.WorkerStarted))


def test_ctrl_c_while_its_threads_start(queue_engine, work, monkeypatch):
    """KeyboardInterrupt while `start` waits for a thread that runs already ends that thread too."""
    begin = threading.Thread.start

    def begin_and_be_interrupted(thread):
        begin(thread)
        if thread.name == "interrupted supervisor":
            raise KeyboardInterrupt

    worker, _ = work(lambda _job: None, worker_id="interrupted")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", begin_and_be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.start()

    wait_until(lambda: not threads_of("interrupted"))
    assert not worker.is_running


@pytest.mark.parametrize("missing", ["supervisor", "heartbeat", "finisher", "watch", "handler 2"])
def test_a_thread_that_cannot_be_started(queue_engine, work, monkeypatch, missing):
    """A process that may have no more threads: `start` raises, or the worker ends with that error; nothing is left of it."""
    begin = threading.Thread.start

    def begin_unless_missing(thread):
        if thread.name == f"crowded {missing}":
            raise RuntimeError("can't start new thread")
        begin(thread)

    worker, _ = work(lambda _job: None, worker_threads=2, worker_id="crowded")
    told = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", begin_unless_missing)
        try:
            worker.start()
        except RuntimeError as error:
            told.append(str(error))
        worker.stop()
    if worker.error is not None:
        told.append(str(worker.error))

    assert ["can't start new thread"] * (missing not in NOT_NEEDED[chosen()]) == told
    assert worker.join(PATIENCE)
    wait_until(lambda: not threads_of("crowded"))


def test_what_is_stopped_at_exit_is_no_more_than_what_runs(queue_engine, work):
    """A worker that has stopped, however it came to that, is not kept until the interpreter ends."""
    before = len(at_exit._stops)
    worker, seen = work(lambda _job: None)
    worker.start()
    assert before + 1 == len(at_exit._stops)
    seen.wait_for(events.WorkerStarted)
    worker._crew.ask_to_stop()  # as after a fatal error
    assert worker.join(PATIENCE)
    worker.stop()

    assert before == len(at_exit._stops)
