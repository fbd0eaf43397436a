"""`AsyncQueueWorker`: options that are refused where they are given, in words that say what to type instead."""

import inspect

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from proletarian_sa import AsyncQueueWorker, QueueWorker
from proletarian_sa.aio.worker import THREADED


@pytest.mark.parametrize("count", [0, 10_001, True, 1.5])
def test_how_many_at_once(count):
    """`concurrency` is an int of 1 to 10 000."""
    engine = create_async_engine("sqlite+aiosqlite:///never.db")
    with pytest.raises((TypeError, ValueError), match="concurrency must be"):
        AsyncQueueWorker(engine, print, concurrency=count)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"worker_threads": 4}, r"has no option worker_threads=4\. .*: concurrency=4 says how many"),
        ({"batch_size": 50}, r"batch_size=50\. .*one after the other.*Leave it out.*QueueWorker\(.*claim='held', batch_size=50\)"),
        ({"executor": "process"}, r"executor='process'\. .*: QueueWorker\(engine, …, executor='process'\)"),
        ({"factory": "app:make"}, r"factory='app:make'\. .*QueueWorker\(engine, …, executor='process', factory='app:make'\)"),
        ({"nonsense": None}, r"^An AsyncQueueWorker has no option nonsense=None\.$"),
    ],
)
def test_options_that_are_not_its_own(option, message):
    """An option that only a `QueueWorker` has is refused with the reason and what to type instead, by `with_options`, too."""
    engine = create_async_engine("sqlite+aiosqlite:///never.db")
    with pytest.raises(TypeError, match=message):
        AsyncQueueWorker(engine, print, claim="held", **option)
    with pytest.raises(TypeError, match=message):
        AsyncQueueWorker(engine, print).with_options(**option)


def test_every_other_option_is_a_queue_workers():
    """What is no option of one worker or the other is named in the refusal; all others have one default."""
    threaded, ours = (
        {name: one.default for name, one in inspect.signature(worker).parameters.items() if one.kind is one.KEYWORD_ONLY}
        for worker in (QueueWorker, AsyncQueueWorker)
    )

    assert {*THREADED} == set(threaded) - set(ours)
    assert {"concurrency"} == set(ours) - set(threaded)
    assert [] == [name for name, default in ours.items() if name in threaded and default != threaded[name]]


def test_it_needs_an_async_engine():
    """A plain engine is refused, with what to give."""
    with pytest.raises(
        TypeError, match=r"needs an AsyncEngine, not Engine\. Give create_async_engine\(url\), or use a QueueWorker"
    ):
        AsyncQueueWorker(sa.create_engine("sqlite:///never.db"), print)
