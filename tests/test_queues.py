"""One worker on several queues: strict order, and one claim for each."""

import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import QueueWorker, events
from tests.claims import process_next_job
from tests.observing import PATIENCE, Recorder, add
from tests.plans import capture
from tests.queue_contents import archived, queued

pytestmark = pytest.mark.usefixtures("claim")


def finished(engine: sa.Engine) -> list[str]:
    """Return the queues of the archived jobs, in the order in which they were finished."""
    return [row.queue for row in sorted(archived(engine), key=lambda row: row.finished_at)]


def test_queues_are_taken_in_the_given_order(queue_engine):
    """A job of a later queue runs when none of the earlier ones is due, however long it has been due itself."""
    for queue in ("low", "low", "middle", "urgent", "urgent", "elsewhere"):
        add(queue_engine, queue=queue)
    order = []

    def handler(job):
        order.append(job.queue)
        if len(order) == 3:
            add(queue_engine, queue="urgent")  # comes last, and goes before what has been waiting

    while process_next_job(queue_engine, handler, handler_mode="advanced", queue=["urgent", "middle", "low"]):
        pass

    assert ["urgent", "urgent", "middle", "urgent", "low", "low"] == order
    assert ["elsewhere"] == [row.queue for row in queued(queue_engine)]


def test_a_worker_serves_several_queues(queue_engine, work):
    """One thread and three queues: all are served, the first one first, and jobs that come later too."""
    for queue in ("low", "urgent", "middle", "elsewhere"):
        add(queue_engine, queue=queue)
    worker, seen = work(lambda _job: None, queue=("urgent", "middle", "low"))
    worker.start()
    seen.wait_for(events.JobSucceeded, count=3)
    for queue in ("low", "middle"):
        add(queue_engine, queue=queue)
        seen.wait_for(events.JobSucceeded, queue=queue, count=2)
    worker.stop()

    assert ["urgent", "middle", "low", "low", "middle"] == [event.queue for event in seen.of(events.JobSucceeded)]
    assert ["elsewhere"] == [row.queue for row in queued(queue_engine)]
    assert [("urgent", "middle", "low")] == [event.queues for event in seen.of(events.WorkerStarted)]
    assert {"proletarian[urgent,middle,low]"} == {event.worker_id for event in seen.events}


def test_room_is_filled_from_later_queues(queue_engine, work):
    """Two threads, one job in each queue: both run at the same time."""
    both = threading.Barrier(2)
    for queue in ("first", "second"):
        add(queue_engine, queue=queue)
    worker, seen = work(lambda _job: both.wait(PATIENCE), queue=["first", "second"], worker_threads=2)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=2)
    worker.stop()

    assert {"first", "second"} == set(finished(queue_engine))


def test_an_empty_poll_asks_once_for_each_queue(queue_engine):
    """No queue is sorted together with another: each has a claim of its own, which uses the index."""
    options = {"queue": ["a", "b", "c"]}
    process_next_job(queue_engine, lambda *_: None, **options)
    with capture(queue_engine) as captured:
        assert process_next_job(queue_engine, lambda *_: None, **options) is None

    assert 3 == len([one for one in captured if one.of_jobs])


BAD = {
    "none": ([], ValueError, r"queue must name one or more queues, each once, not \[\]"),
    "twice": (["a", "b", "a"], ValueError, r"each once, not \['a', 'b', 'a'\]"),
    "bad name": (["a", " b"], ValueError, r"queue\[1\] ' b' has white space"),
    "no name": (["a", 7], TypeError, r"queue\[1\] must be a string, not 7"),
    "no order": ({"a", "b"}, TypeError, r"or a list of strings: queue=\['urgent', 'default'\]"),
}


@pytest.mark.parametrize("given", BAD)
def test_bad_queues_are_refused(queue_engine, given):
    """What is wrong with a list of queues is said, and where."""
    queue, error, message = BAD[given]
    with pytest.raises(error, match=message):
        QueueWorker(queue_engine, lambda *_: None, queue=queue, on_event=Recorder())
    with pytest.raises(error, match=message):
        process_next_job(queue_engine, lambda *_: None, queue=queue)
