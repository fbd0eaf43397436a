"""Enqueueing many jobs: whole or not at all, in order, in few statements."""

import datetime as dt
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import JobTables, ManualClock, create_all, enqueue, enqueue_many
from tests.bulk import COPY, way_of
from tests.queue_contents import Base, User, clock_of, queued, queued_ids, run_due

pytestmark = pytest.mark.async_drivers

LATER = dt.datetime(2090, 1, 1, tzinfo=dt.UTC)
MANY = 12_000
"""More rows than a statement of 65 535 parameters could take."""
CHUNK = 1000
"""Rows that are inserted together."""


def rows(count: int, **options: Any) -> list[dict[str, Any]]:
    """Return rows of which the payloads count up."""
    return [{"job_type": "tick", "payload": number, **options} for number in range(count)]


def inserts(engine: sa.Engine) -> list[str]:
    """Return a list that grows with each INSERT or COPY that an engine sends."""
    sent: list[str] = []

    def note(*arguments: Any) -> None:
        if arguments[2].lstrip().upper().startswith(("INSERT", "COPY")):
            sent.append(arguments[2])

    sa.event.listen(engine, "before_cursor_execute", note)
    return sent


def test_a_sequence_returns_its_ids_in_order(queue_engine: sa.Engine):
    """Ids come back in the order of the rows, and the jobs run in that order."""
    with Session(queue_engine) as session, session.begin():
        ids = enqueue_many(session, rows(25))

    jobs = run_due(queue_engine)
    assert ids == [job.job_id for job in jobs]
    assert list(range(25)) == [job.payload for job in jobs]


def test_more_rows_than_parameters(queue_engine: sa.Engine):
    """Bulk enqueue: thousands of rows go in one call and one transaction, in chunks, in order, each due after the one before."""
    sent = inserts(queue_engine)
    before = clock_of(queue_engine)
    with queue_engine.begin() as connection:
        ids = enqueue_many(connection, rows(MANY))
        assert MANY == len(queued(connection))
    after = clock_of(queue_engine)

    stored = queued(queue_engine)
    assert ids == [row.job_id for row in stored]
    times = [row.process_at for row in stored]
    assert MANY == len(set(times))
    assert before <= times[0]
    assert times[-1] <= after + dt.timedelta(microseconds=MANY)
    # One call to the driver per chunk, which the driver may split; all in one COPY.
    assert (1 if way_of(sent[0]) == COPY else MANY // CHUNK) == len(sent)


def test_every_collection_of_rows(queue_engine: sa.Engine):
    """Lists, tuples and other sequences return ids, iterators a count, empty ones included."""
    with queue_engine.begin() as connection:
        assert 2 == len(enqueue_many(connection, tuple(rows(2))))
        assert 2 == len(enqueue_many(connection, deque(rows(2))))
        assert 2 == enqueue_many(connection, iter(rows(2)))
        assert 2 == enqueue_many(connection, (row for row in rows(2)))
        assert [] == enqueue_many(connection, [])
        assert 0 == enqueue_many(connection, iter([]))

    assert 8 == len(queued(queue_engine))


def test_each_row_has_options_of_its_own(queue_engine: sa.Engine):
    """Rows take the options of `enqueue`, each its own."""
    mine = uuid.uuid4()
    before = clock_of(queue_engine)
    with queue_engine.begin() as connection:
        enqueue_many(
            connection,
            [
                {"job_type": "plain"},
                {"job_type": "later", "process_in": 60, "queue": "other"},
                {"job_type": "fixed", "process_at": LATER, "process_in": 5, "job_id": mine},
                {"job_type": "past", "process_at": before - dt.timedelta(days=1), "payload": None},
            ],
        )
    stored = {row.job_type: row for row in queued(queue_engine)}

    minute = dt.timedelta(minutes=1)
    assert before <= stored["plain"].process_at < stored["past"].process_at <= clock_of(queue_engine)
    assert before + minute <= stored["later"].process_at <= clock_of(queue_engine) + minute
    assert ("other", "default") == (stored["later"].queue, stored["fixed"].queue)
    assert (LATER, mine) == (stored["fixed"].process_at, stored["fixed"].job_id)
    assert {stored["plain"].enqueued_at} == {row.enqueued_at for row in stored.values()}


BAD_ROWS: list[tuple[Any, type[Exception], str]] = [
    ({"job_type": "tick", "payload": object()}, TypeError, "object"),
    ({"job_type": "tick", "payload": float("inf")}, ValueError, "inf"),
    ({"job_type": " tick"}, ValueError, "white space at an end"),
    ({"job_type": "tick", "process_at": dt.datetime(2030, 1, 1)}, ValueError, "is naive"),  # noqa: DTZ001 - the point
    ({"job_type": "tick", "process_in": "soon"}, TypeError, "not a duration"),
    ({"job_type": "tick", "job_id": "7"}, TypeError, "job_id must be"),
    ({"job_type": "tick", "delay": 5}, TypeError, "a row takes the keys job_id, job_type, payload, process_at, process_in, queue"),
    ({"payload": 5}, TypeError, "needs job_type"),
    ("tick", TypeError, "a row must be a mapping with a job_type, not str"),
]


def test_a_bad_row_fails_before_the_first_insert(queue_engine: sa.Engine):
    """Bulk enqueue: a sequence is checked whole first; the error names the row, nothing was sent, and the session stays usable."""
    Base.metadata.create_all(queue_engine)
    sent = inserts(queue_engine)
    with Session(queue_engine) as session:
        for bad, error, message in BAD_ROWS:
            with pytest.raises(error, match=rf"^rows\[1500\]: .*{message}"):
                enqueue_many(session, [*rows(1500), bad, *rows(5)])
        assert [] == sent
        session.add(User(name="after a refusal"))
        kept = enqueue(session, "kept")
        session.commit()

    assert {kept} == queued_ids(queue_engine)


def test_a_bad_row_of_an_iterator_takes_back_those_before_it(queue_engine: sa.Engine):
    """An iterator's savepoint takes back what was inserted; what the caller did before stays."""
    Base.metadata.create_all(queue_engine)
    with Session(queue_engine) as session:
        kept = {enqueue(session, "kept")}
        session.flush()
        for bad, error, message in BAD_ROWS[:3]:
            with pytest.raises(error, match=rf"^rows\[1500\]: .*{message}"):
                enqueue_many(session, iter([*rows(1500), bad]))
        session.add(User(name="after a refusal"))
        kept.add(enqueue(session, "kept"))
        session.commit()
    with queue_engine.begin() as connection, pytest.raises(TypeError):
        enqueue_many(connection, iter([*rows(1500), BAD_ROWS[0][0]]))

    assert kept == queued_ids(queue_engine)


def test_an_error_of_the_iterator_takes_its_rows_back(queue_engine: sa.Engine):
    """If the application's own iterator fails, its error travels and none of its rows stays."""

    def failing() -> Iterator[dict[str, Any]]:
        yield from rows(1500)
        raise ZeroDivisionError

    with queue_engine.begin() as connection:
        kept = enqueue(connection, "kept")
        with pytest.raises(ZeroDivisionError):
            enqueue_many(connection, failing())

    assert {kept} == queued_ids(queue_engine)


def test_an_iterator_as_the_first_statement(queue_engine: sa.Engine):
    """An iterator with which a transaction begins is rolled back with it, though its savepoint was released."""
    with Session(queue_engine) as session:
        assert 2 == enqueue_many(session, iter(rows(2)))
        session.rollback()
    with queue_engine.connect() as connection:
        assert 2 == enqueue_many(connection, iter(rows(2)))
        connection.rollback()

    assert set() == queued_ids(queue_engine)


def test_an_iterator_streams(queue_engine: sa.Engine):
    """Bulk enqueue: an iterator is read a chunk at a time, by rows and by bytes: never more than that lies in memory."""
    sent = inserts(queue_engine)
    waiting = 0
    most = {"rows": 0, "bytes": 0}

    def stream(count: int, size: int) -> Iterator[dict[str, Any]]:
        nonlocal waiting
        seen, waiting = len(sent), 0
        for _ in range(count):
            if len(sent) > seen:
                seen, waiting = len(sent), 0
            waiting += 1
            most["rows"] = max(most["rows"], waiting)
            most["bytes"] = max(most["bytes"], waiting * size)
            yield {"job_type": "tick", "payload": "x" * size}

    with queue_engine.begin() as connection:
        assert 3500 == enqueue_many(connection, stream(3500, 1))
        assert CHUNK == most["rows"]
        assert 40 == enqueue_many(connection, stream(40, 100_000))

    assert 100_000 <= most["bytes"] <= 2**20 + 100_000
    assert 3540 == len(queued(queue_engine))


def test_what_is_no_collection_of_rows_is_refused(queue_engine: sa.Engine):
    """A mapping, a set or nothing at all is refused with an example."""
    with queue_engine.begin() as connection:
        for bad in ({"job_type": "tick"}, {"tick"}, None, 5):
            with pytest.raises(TypeError, match="rows must be a sequence or an iterator of mappings"):
                enqueue_many(connection, bad)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"rows\[0\]: a row must be a mapping"):
            enqueue_many(connection, "tick")  # type: ignore[call-overload]


class Strict:
    """A serializer whose errors are of a class that takes more than a message."""

    def encode(self, value: Any) -> str:
        return str(value.encode("ascii"))

    def decode(self, text: str) -> Any:
        return text


def test_any_error_of_a_serializer_names_the_row(queue_engine: sa.Engine):
    """The row's number is told also with errors that cannot be made from a message, and they stay what they are."""
    tables = JobTables(serializer=Strict())
    with queue_engine.begin() as connection, pytest.raises(ValueError, match=r"rows\[1\]: 'ascii' codec can't encode") as caught:
        enqueue_many(connection, [{"job_type": "tick", "payload": "a"}, {"job_type": "tick", "payload": "é"}], tables=tables)

    assert isinstance(caught.value.__cause__, UnicodeEncodeError)


@pytest.mark.parametrize("as_iterator", [False, True], ids=["sequence", "iterator"])
def test_jobs_due_together_keep_their_order(engine: sa.Engine, as_iterator: bool):
    """Jobs that would be due at the same moment are due a microsecond apart, in order, over all chunks."""
    tables = JobTables(clock=ManualClock(dt.datetime(2030, 1, 1, tzinfo=dt.UTC)))
    create_all(engine, tables=tables)
    count = CHUNK + 200
    for given in ({}, {"process_in": 60}, {"process_at": LATER}):
        with engine.connect() as connection:
            wanted = rows(count, **given)
            enqueue_many(connection, iter(wanted) if as_iterator else wanted, tables=tables)
            stored = queued(connection, tables)

        first = stored[0].process_at
        assert [str(number) for number in range(count)] == [row.payload for row in stored]
        assert [first + dt.timedelta(microseconds=number) for number in range(count)] == [row.process_at for row in stored]


def test_the_last_moment_takes_any_number_of_jobs(queue_engine: sa.Engine):
    """At the end of year 9999 there is no microsecond left to move to."""
    last = dt.datetime.max.replace(tzinfo=dt.UTC)
    with queue_engine.begin() as connection:
        enqueue_many(connection, rows(3, process_at=last))

    assert [last] * 3 == [row.process_at for row in queued(queue_engine)]
