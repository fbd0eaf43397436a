"""Payloads of any size and type: whole and unchanged, or refused before anything is enqueued."""

import collections
import datetime as dt
import enum
import math
import pathlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

from proletarian_sa import Job, JobTables, PayloadTooLarge, enqueue, enqueue_many
from tests.observing import add
from tests.queue_contents import User, archived, queued, run_due

MIB = 2**20
ROOMY = 128 * MIB


class Enumeration(enum.Enum):
    ONE = 1


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


class Point(NamedTuple):
    x: int
    y: int


def by_add(session: Session, job_type: str, payload: Any = None, **options: Any) -> uuid.UUID:
    """Add a model to the session."""
    job = Job(job_type=job_type, payload=payload, **options)
    session.add(job)
    return job.job_id


def by_connection(session: Session, *arguments: Any, **options: Any) -> uuid.UUID:
    """Call with the session's connection."""
    return enqueue(session.connection(), *arguments, **options)


def by_sequence(session: Session, job_type: str, payload: Any = None, **options: Any) -> uuid.UUID:
    """Enqueue a list of one."""
    return enqueue_many(session, [{"job_type": job_type, "payload": payload, **options}])[0]


def by_iterator(session: Session, job_type: str, payload: Any = None, **options: Any) -> None:
    """Enqueue an iterator of one."""
    assert 1 == enqueue_many(session, iter([{"job_type": job_type, "payload": payload, **options}]))


WAYS: list[Callable[..., Any]] = [by_add, enqueue, by_connection, by_sequence, by_iterator]


def roomy() -> JobTables:
    """Return the default tables with a higher cap."""
    return JobTables(max_payload=ROOMY)


def lax(database: Any) -> sa.Engine:
    """Return an engine whose sessions, where the server has such a mode, cut silently what is too long."""
    engine = database.create_engine()
    if engine.dialect.name in ("mysql", "mariadb"):
        sa.event.listen(engine, "connect", lambda raw, _record: raw.cursor().execute("SET SESSION sql_mode = ''"))
    return engine


def packet_limit(engine: sa.Engine) -> int | None:
    """Return how many bytes the server takes in one statement, where it says so."""
    if engine.dialect.name not in ("mysql", "mariadb"):
        return None
    with engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())


@pytest.mark.parametrize("size", [60_000, 70_000, MIB, 20 * MIB])
def test_a_large_payload_is_whole_or_refused(database: Any, app_engine: sa.Engine, size: int) -> None:
    """Large payloads: stored, run and archived character by character, or refused with nothing stored; never cut."""
    engine, tables = lax(database), roomy()
    payload = "начало " + "x" * (size - 12) + "!"
    limit = packet_limit(engine)
    refused = limit is not None and size > limit
    with Session(engine) as session:
        enqueue(session, "large", payload, tables=tables)
        with (
            pytest.raises(exc.DBAPIError, match=r"max_allowed_packet|Broken pipe|Lost connection|gone away")
            if refused
            else nullcontext()
        ):
            session.flush()
        if refused:
            session.rollback()
        session.add(User(name="after"))
        session.commit()
    if refused:
        assert [] == queued(engine)
        return
    (before,) = queued(engine)
    (ran,) = run_due(engine, tables=tables)

    assert payload == ran.payload
    assert [before.payload] == [row.payload for row in archived(engine)]
    assert tables.encode(payload) == before.payload


def test_what_exceeds_the_cap_is_refused_alike(app_engine: sa.Engine) -> None:
    """Large payloads: beyond the cap every way refuses with the same words, before anything is added; the session goes on."""
    payload = "x" * (20 * MIB)
    with Session(app_engine) as session:
        for way in WAYS:
            with pytest.raises(PayloadTooLarge, match=f"The payload has {20 * MIB + 2} bytes encoded; at most {4 * MIB} are"):
                way(session, "large", payload)
            session.add(User(name="after a refusal"))
            session.flush()
        session.commit()
        assert len(WAYS) == session.scalar(sa.select(sa.func.count()).select_from(User))

    assert [] == queued(app_engine)


BERLIN = ZoneInfo("Europe/Berlin")
KEPT: list[Any] = [
    {1: "a"},
    {(1, 2): 3},
    {None: 1},
    {True: 1, 2: 2},
    {1.5: "float key", b"k": "bytes key"},
    (1, (2, [3, (4,)])),
    [(), {"nested": ({1: (2,)},)}],
    frozenset({1, (2, 3)}),
    dt.date(2030, 1, 31),
    dt.time(1, 2, 3, 4),
    dt.time(1, 2, 3, 4, fold=1),
    dt.datetime(2030, 1, 31, 1, 2, 3, 456789),  # noqa: DTZ001 - naive ones are payloads too
    dt.datetime(2030, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
    dt.datetime(2030, 1, 31, tzinfo=dt.UTC),
    dt.datetime(2030, 1, 31, tzinfo=dt.timezone(dt.timedelta(hours=-3, minutes=-30))),
    dt.timedelta(days=-1, microseconds=1),
    uuid.UUID(int=7),
    Decimal("1.10"),
    Decimal("-0E-10"),
    b"\x00\xff",
    {1, "a", None},
    2**53 + 1,
    -(2**70),
    -0.0,
    5e-324,
]
"""Values that other queues change on the way."""

REFUSED: list[Any] = [
    Enumeration.ONE,
    Number.ONE,
    Text("a"),
    Point(1, 2),
    collections.defaultdict(list),
    collections.OrderedDict(a=1),
    {Number.ONE: "as key"},
    [{"deep": (Text("a"),)}],
    Decimal("NaN"),
    math.nan,
    math.inf,
    pathlib.PurePosixPath("/tmp"),  # noqa: S108 - not used
    User(name="an ORM instance"),
    (number for number in [1]),
    lambda: None,
    object(),
    dt.datetime,
]
"""Values that would not come back as what they are."""


def alike(left: Any, right: Any) -> bool:
    """Return whether two values are equal in type, sign and representation, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        left, right = list(left.items()), list(right.items())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, set | frozenset):
        return left == right and {type(one) for one in left} == {type(one) for one in right}
    return repr(left) == repr(right)


def test_rich_values_come_back_in_type_and_value(queue_engine: sa.Engine) -> None:
    """Silent type changes, common rich types: what is accepted comes out of the queue as the same type and value."""
    with Session(queue_engine) as session, session.begin():
        for value in KEPT:
            enqueue(session, "rich", value)

    jobs = sorted(run_due(queue_engine), key=lambda job: job.job_id)
    assert [] == [(value, job.payload) for value, job in zip(KEPT, jobs, strict=True) if not alike(value, job.payload)]


def test_values_that_would_change_are_refused_at_once(app_engine: sa.Engine) -> None:
    """Silent type changes, common rich types: others are refused by the call that enqueues, and nothing is added."""
    with Session(app_engine) as session:
        for value in REFUSED:
            for way in WAYS:
                with pytest.raises((TypeError, ValueError), match="payload"):
                    way(session, "rich", value)
                assert not session.new, value
        session.add(User(name="after"))
        session.commit()

    assert [] == queued(app_engine)


LATER = dt.datetime(2090, 5, 4, 3, 2, 1, 123456, tzinfo=dt.UTC)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"queue": "mail"},
    {"process_at": LATER},
    {"process_at": LATER.astimezone(BERLIN)},
    {"process_at": LATER.astimezone(dt.timezone(dt.timedelta(hours=14)))},
    {"process_at": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)},
    {"process_at": None, "process_in": None},
    {"process_in": 5},
    {"process_in": 0.25},
    {"process_in": Decimal("1.5")},
    {"process_in": dt.timedelta(hours=1)},
    {"process_in": -1},
    {"process_at": LATER, "process_in": dt.timedelta(hours=1)},
]
NAMES = ("bind", "session", "job_type", "payload", "queue", "process_at", "process_in", "tables", "job_id", "rows", "self")


def option_cases() -> Iterator[tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]]:
    """Return every way with every option, and a payload that has the options' names for keys and their values for values."""
    for way in WAYS:
        for options in OPTIONS:
            storable = {name: value for name, value in options.items() if name != "payload"}
            yield way, options, {**dict.fromkeys(NAMES, "a key, no option"), **storable}


def test_options_are_no_payload(queue_engine: sa.Engine) -> None:
    """Options in the wrong path: every option takes every documented type, whatever keys and values the payload has."""
    given = []
    with Session(queue_engine) as session, session.begin():
        for number, (way, options, payload) in enumerate(option_cases()):
            way(session, f"{number}", payload, **options)
            given.append((options, payload))
        session.flush()
        rows = {int(job.job_type): job for job in session.scalars(sa.select(Job))}
        assert len(given) == len(rows)
        for number, (options, payload) in enumerate(given):
            job = rows[number]
            assert alike(payload, job.payload), options
            assert options.get("queue", "default") == job.queue
            assert 0 <= (job.process_at - expected_due(job, options)) / dt.timedelta(microseconds=1) <= 1, options


def expected_due(job: Job, options: dict[str, Any]) -> dt.datetime:
    """Return when a job of these options is due, by what its own row says of now."""
    if (process_at := options.get("process_at")) is not None:
        return max(process_at, job.enqueued_at)
    delay = options.get("process_in") or 0
    seconds = delay if isinstance(delay, dt.timedelta) else dt.timedelta(seconds=float(delay))
    return job.enqueued_at + max(seconds, dt.timedelta())


def test_wrong_options_name_themselves_and_not_the_payload(queue_engine: sa.Engine) -> None:
    """Options in the wrong path: an option of a wrong type is refused as that option."""
    wrong = {"process_in": "5", "process_at": "2030-01-01", "queue": 5}
    with Session(queue_engine) as session:
        for name, value in wrong.items():
            for way in WAYS:
                with pytest.raises(TypeError, match=rf"(^|: ){name}\b"):
                    way(session, "work", {name: value}, **{name: value})
        session.commit()

    assert [] == queued(queue_engine)


def test_the_payload_is_what_it_was_when_it_was_enqueued(queue_engine: sa.Engine) -> None:
    """Changed after the call: the handler gets the payload of the time of the call, and may change its own copy."""
    with Session(queue_engine) as session, session.begin():
        for way in WAYS:
            payload: dict[str, Any] = {"list": [1]}
            way(session, "work", payload)
            payload["list"].append(2)
            payload["more"] = object()
    add(queue_engine, "work", {"list": [1]})

    assert [{"list": [1]}] * (len(WAYS) + 1) == [job.payload for job in run_due(queue_engine)]
