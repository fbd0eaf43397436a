"""Serializers of the application's own: any text goes through, whatever they raise is told, and the cap is exact."""

import base64
import datetime as dt
import json
import zlib
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import (
    JobTables,
    ManualClock,
    PayloadError,
    PayloadTooLarge,
    PlainJSON,
    TaggedJSON,
    create_all,
    enqueue,
    enqueue_many,
    process_next_job,
)
from proletarian_sa.events import JobUndeliverable
from tests.observing import Recorder, add
from tests.queue_contents import archived, queued, run_due

CAP = 200


class Zipped:
    """JSON, compressed, as base64."""

    def encode(self, value: Any) -> str:
        return base64.b85encode(zlib.compress(json.dumps(value).encode())).decode()

    def decode(self, text: str) -> Any:
        return json.loads(zlib.decompress(base64.b85decode(text)))


class Raw:
    """Text as it is."""

    def encode(self, value: Any) -> Any:
        return value

    def decode(self, text: str) -> Any:
        return text


class Raises:
    """Raises what it is given."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def encode(self, value: Any) -> str:
        if value == "encode":
            raise self.error
        return str(value)

    def decode(self, text: str) -> Any:
        if text == "decode":
            raise self.error
        return text


class Mute(Exception):  # noqa: N818 - a name for a test
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class MutePayloadError(PayloadError):
    """One of the right class that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Odd(BaseException):
    """What is no Exception at all."""


ERRORS: list[BaseException] = [
    KeyError("key"),
    PayloadError("mine"),
    ZeroDivisionError("a\0b \ud83d é"),
    RecursionError("deep"),
    MemoryError(),
    StopIteration(5),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    Mute(),
    MutePayloadError(),
    Odd("odd"),
    SystemExit(3),
    GeneratorExit(),
]


def made(engine: sa.Engine, serializer: Any, **options: Any) -> JobTables:
    """Create tables with a serializer."""
    tables = JobTables(serializer=serializer, **options)
    create_all(engine, tables=tables)
    return tables


def test_a_serializer_of_ones_own(engine: sa.Engine):
    """`:serializer`: one of the application's own writes what is stored, and reads it for handler, model and archive."""
    tables = made(engine, Zipped())
    payload = {"text": "é" * 300, "n": [1, 2]}
    with Session(engine) as session, session.begin():
        job = tables.Job(job_type="tick", payload=payload)
        session.add(job)
        session.flush()
        enqueue_many(session, [{"job_type": "tick", "payload": 5}], tables=tables)
        assert payload == job.payload
        assert job.payload_text == Zipped().encode(payload)

    assert [payload, 5] == [job.payload for job in run_due(engine, tables=tables)]
    with Session(engine) as session:
        done = session.scalars(sa.select(tables.ArchivedJob).order_by(tables.ArchivedJob.process_at)).all()
        assert [payload, 5] == [job.payload for job in done]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_encode_raises_travels(error: BaseException):
    """Whatever a serializer raises at enqueue is what the caller gets, before anything is added or sent."""
    tables = JobTables(serializer=Raises(error))
    engine = sa.create_engine("sqlite://")
    create_all(engine, tables=tables)
    with Session(engine) as session:
        with pytest.raises(type(error)):
            tables.Job(job_type="tick", payload="encode")
        with pytest.raises(type(error)):
            enqueue(session, "tick", "encode", tables=tables)
        assert [] == list(session.new)
        assert [] == queued(session.connection(), tables)
        kept = enqueue(session, "tick", "fine", tables=tables)
        session.commit()

        assert [kept] == [row.job_id for row in queued(session.connection(), tables)]
    engine.dispose()


class RaisesInTurn:
    """Raises the error whose number it is to decode."""

    def encode(self, value: Any) -> str:
        return str(value)

    def decode(self, text: str) -> Any:
        if text.isdigit():
            raise ERRORS[int(text)]
        return text


def test_what_decode_raises_waits_for_a_worker_that_can_read_it(engine: sa.Engine):
    """Whatever a serializer raises at a worker: the job is put back with the reason, its payload untouched, and others run."""
    tables = made(engine, RaisesInTurn())
    with engine.begin() as connection:
        enqueue_many(connection, [{"job_type": "bad", "payload": n} for n in range(len(ERRORS))], tables=tables)
        enqueue(connection, "good", "fine", tables=tables)
    events = Recorder()
    ran: list[Any] = []

    def handle(job_type: str, payload: Any) -> None:
        ran.append((job_type, payload))

    for error in ERRORS:
        outcome = process_next_job(engine, handle, tables=tables, on_event=events)

        assert outcome is not None
        assert "retrying" == outcome.status, type(error)
        assert isinstance(outcome.exception, PayloadError)
    process_next_job(engine, handle, tables=tables, on_event=events)
    rows = {row.payload: row for row in queued(engine, tables)}

    assert [("good", "fine")] == ran
    assert {str(number) for number in range(len(ERRORS))} == set(rows)
    assert len(ERRORS) == len(events.of(JobUndeliverable))
    for number, error in enumerate(ERRORS):
        row = rows[str(number)]
        assert ("bad", 0, None) == (row.job_type, row.attempts, row.claimed_by)
        assert type(error).__name__ in row.last_error


def test_what_can_never_be_decoded_ends_in_the_archive(engine: sa.Engine):
    """After ten minutes the job is archived as failure, with its payload text as it was."""
    clock = ManualClock(dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
    tables = made(engine, Raises(Mute()), clock=clock)
    add(engine, "bad", "decode", tables=tables)
    process_next_job(engine, print, tables=tables)
    clock.tick(dt.timedelta(minutes=11))
    outcome = process_next_job(engine, print, tables=tables)
    (row,) = archived(engine, tables)

    assert outcome is not None
    assert "failed" == outcome.status
    assert ("bad", "decode", "failure") == (row.job_type, row.payload, row.status)
    assert [] == queued(engine, tables)


NOT_TEXT: list[tuple[Any, type[Exception], str]] = [
    (b"bytes", TypeError, r"Raw\.encode returned bytes, not str\. Return text\."),
    (None, TypeError, r"Raw\.encode returned NoneType, not str"),
    ({"a": 1}, TypeError, r"Raw\.encode returned dict, not str"),
    ("a\0b", ValueError, r"The serializer returned text with a NUL, which PostgreSQL cannot store\. Escape it\."),
    ("a\ud83d", ValueError, "The serializer returned text that is no Unicode: .*surrogates not allowed.*Escape it"),
]


def test_what_is_no_text_is_refused(engine: sa.Engine):
    """What a serializer returns must be text that every database stores; else the call says what was returned, and in which row."""
    tables = made(engine, Raw())
    with Session(engine) as session, session.begin():
        for value, error, message in NOT_TEXT:
            with pytest.raises(error, match=message):
                enqueue(session, "tick", value, tables=tables)
            with pytest.raises(error, match=rf"^rows\[1\]: {message}"):
                enqueue_many(session, [{"job_type": "tick", "payload": "x"}, {"job_type": "tick", "payload": value}], tables=tables)
        enqueue(session, "tick", "", tables=tables)

    assert [""] == [row.payload for row in queued(engine, tables)]
    assert [""] == [job.payload for job in run_due(engine, tables=tables)]


def at_the_cap(serializer: Any, character: str) -> list[str]:
    """Return a payload of exactly the cap, and one of a byte more, in this character."""
    one = len(serializer.encode(character * 2).encode()) - len(serializer.encode(character).encode())
    around = len(serializer.encode("").encode())
    count, rest = divmod(CAP - around, one)
    fits = character * count + "x" * rest
    return [fits, fits + "x"]


@pytest.mark.parametrize("character", ["x", "é", "\U0001f600"], ids=["ascii", "two bytes", "four bytes"])
@pytest.mark.parametrize("serializer", [TaggedJSON(), PlainJSON(), Raw()], ids=lambda serializer: type(serializer).__name__)
def test_the_cap_is_exact(serializer: Any, character: str):
    """`max_payload` counts the bytes of the encoded text in UTF-8: exactly that many are taken, one more is refused."""
    tables = JobTables(serializer=serializer, max_payload=CAP)
    fits, exceeds = at_the_cap(serializer, character)
    job = tables.Job(job_type="tick", payload=fits)

    assert CAP == len(job.payload_text.encode())
    assert fits == job.payload
    with pytest.raises(
        PayloadTooLarge, match=rf"has {CAP + 1} bytes encoded; at most {CAP} are allowed.*JobTables\(max_payload=…\)"
    ):
        tables.Job(job_type="tick", payload=exceeds)


def test_the_default_cap_is_stored_whole(engine: sa.Engine):
    """Four MiB of any text are stored whole on every database and reach the handler; a byte more is refused before it is sent."""
    tables = made(engine, Raw())
    largest = "é" * (2 * 2**20)
    with engine.begin() as connection:
        with pytest.raises(PayloadTooLarge, match="has 4194305 bytes encoded; at most 4194304 are allowed"):
            enqueue(connection, "tick", f"{largest}x", tables=tables)
        enqueue(connection, "tick", largest, tables=tables)
    (job,) = run_due(engine, tables=tables)
    (row,) = archived(engine, tables)

    assert largest == job.payload
    assert largest == row.payload
