"""What is kept of an exception: a text that every database can store, whatever the exception says of itself."""

import pytest

from proletarian_sa import RetryStrategy, process_next_job
from tests.observing import Recorder, add
from tests.queue_contents import archived, queued


class NoText(Exception):  # noqa: N818 - see what it does
    """Has a text that fails."""

    def __str__(self):
        raise RuntimeError("no text")


class ExitingText(Exception):  # noqa: N818 - see what it does
    """Has a text that ends the program."""

    def __str__(self):
        raise SystemExit(7)


class NoNotes(Exception):  # noqa: N818 - see what it does
    """Has notes that end the program."""

    @property
    def __notes__(self):
        raise SystemExit(8)


class NoTextAtAll(Exception):  # noqa: N818 - see what it does
    """Has a text that is none."""

    def __str__(self):
        return 5  # noqa: PLE0307 - that is the point

    __repr__ = __str__


def deep_chain(length):
    """Return an exception with a long chain of causes."""
    error = ValueError("the last")
    for number in range(length):
        cause, error = error, ValueError(f"level {number}")
        error.__cause__ = cause
    return error


TEXTS = {
    "NUL": (ValueError("a\0b"), "a\N{SYMBOL FOR NULL}b"),
    "emoji": (ValueError("жук 🐞"), "ValueError: жук 🐞"),
    "surrogate": (ValueError("a\ud800b"), "a\\ud800b"),
    "lines": (ValueError("a\r\nb\u2028c"), "c"),
    "10 MB": (ValueError("x" * 10_000_000 + " the end"), "characters left out"),
    "10 MB of emoji": (ValueError("🐞" * 2_500_000 + " the end"), "the end"),
    "no text": (NoText("x"), "NoText"),
    "exiting text": (ExitingText("x"), "ExitingText"),
    "exiting notes": (NoNotes("x"), "NoNotes"),
    "text of a wrong type": (NoTextAtAll("x"), "NoTextAtAll"),
    "chain": (deep_chain(2000), "level 1999"),
    "percent": (ValueError("100 %s %(x)s :name {0}"), "100 %s %(x)s :name {0}"),
    "quotes": (ValueError("'; -- \\ \" `"), "'; -- \\ \" `"),
}


@pytest.mark.parametrize("way", ["archived", "retried"])
def test_every_error_text_can_be_stored(queue_engine, way):
    """NUL characters, lone surrogates: whatever an exception says, or fails to say, is recorded, with a text of bounded length."""
    strategy = RetryStrategy(retries=int(way == "retried"), delays=[60])
    for name, (exception, expected) in TEXTS.items():
        job_id = add(queue_engine)

        def handler(_job_type, _payload, exception=exception):
            raise exception

        outcome = process_next_job(queue_engine, handler, retry=strategy, on_event=Recorder())

        rows = archived(queue_engine) if way == "archived" else queued(queue_engine)
        (row,) = [row for row in rows if row.job_id == job_id]
        assert (name, {"archived": "failed", "retried": "retrying"}[way]) == (name, outcome.status)
        assert expected in row.last_error
        assert len(row.last_error) < 17_000
