"""Enqueueing one job: the ORM way and the call are the same act, in the caller's transaction."""

import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from proletarian_sa import DatabaseNotSupported, Job, JobTables, UUIDv4, enqueue, enqueue_many
from tests.queue_contents import Base, User, archived, clock_of, queued, queued_ids, run_due

pytestmark = pytest.mark.async_drivers

LATER = dt.datetime(2090, 5, 4, 3, 2, 1, 123456, tzinfo=dt.UTC)
RICH = {
    "text": "жук 🐞",
    1: (1, 2.5, None),
    "when": dt.datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC),
    "day": dt.date(2030, 1, 2),
    "wait": dt.timedelta(days=-1, microseconds=7),
    "id": uuid.UUID(int=7),
    "bytes": b"\x00\xff",
    "set": frozenset({1, 2}),
    "big": 10**30,
    "tags": {"a", "b"},
}

Way = Callable[..., uuid.UUID]


def by_add(engine: sa.Engine, job_type: str, payload: Any = None, **options: Any) -> uuid.UUID:
    """Add a model to a session."""
    with Session(engine) as session, session.begin():
        job = Job(job_type=job_type, payload=payload, **options)
        session.add(job)
        return job.job_id


def by_session(engine: sa.Engine, *arguments: Any, **options: Any) -> uuid.UUID:
    """Call with a session."""
    with Session(engine) as session, session.begin():
        return enqueue(session, *arguments, **options)


def by_scoped_session(engine: sa.Engine, *arguments: Any, **options: Any) -> uuid.UUID:
    """Call with a scoped_session."""
    session = scoped_session(sessionmaker(engine))
    job_id = enqueue(session, *arguments, **options)
    session.commit()
    session.remove()
    return job_id


def by_connection(engine: sa.Engine, *arguments: Any, **options: Any) -> uuid.UUID:
    """Call with a connection."""
    with engine.begin() as connection:
        return enqueue(connection, *arguments, **options)


def by_many(engine: sa.Engine, job_type: str, payload: Any = None, **options: Any) -> uuid.UUID:
    """Enqueue a sequence of one."""
    with engine.begin() as connection:
        return enqueue_many(connection, [{"job_type": job_type, "payload": payload, **options}])[0]


WAYS: list[Way] = [by_add, by_session, by_scoped_session, by_connection, by_many]


def due(engine: sa.Engine, job_id: uuid.UUID) -> dt.datetime:
    """Return when a job is due."""
    return next(row.process_at for row in queued(engine) if row.job_id == job_id)


def test_every_way_stores_the_same_row(queue_engine: sa.Engine):
    """`enqueue!`: `session.add(Job(…))`, `enqueue` and `enqueue_many` store the same row."""
    given = {"queue": "mail", "process_at": LATER}
    ids = [way(queue_engine, "send-email", {"to": "a@b.c"}, **given) for way in WAYS]

    rows = queued(queue_engine)
    expected = ("mail", "send-email", '{"to":"a@b.c"}', 0, LATER, *(None,) * 6)
    assert set(ids) == {row.job_id for row in rows}
    for row in rows:
        nullable = (row.claimed_by, row.lease_until, row.crashes, row.last_error, row.unique_key, row.headers)
        assert expected == (row.queue, row.job_type, row.payload, row.attempts, row.process_at, *nullable)


def test_defaults_are_the_default_queue_now_and_no_payload(queue_engine: sa.Engine):
    """`:queue`: a job type alone means the queue `default`, no payload, and due now by the database's clock."""
    for way in WAYS:
        before = clock_of(queue_engine)
        job_id = way(queue_engine, "tick")
        after = clock_of(queue_engine)

        (row,) = (row for row in queued(queue_engine) if row.job_id == job_id)
        assert ("default", "null") == (row.queue, row.payload)
        assert before <= row.enqueued_at <= row.process_at <= after


def test_a_payload_reaches_the_handler_with_type_and_value(queue_engine: sa.Engine):
    """`:serializer`: what a handler is given equals what was enqueued, in type and value."""
    ids = [way(queue_engine, "rich", RICH) for way in WAYS]

    jobs = run_due(queue_engine)
    assert ids == [job.job_id for job in jobs]
    for job in jobs:
        assert RICH == job.payload
        assert [type(value) for value in RICH.values()] == [type(value) for value in job.payload.values()]
        assert list(RICH) == list(job.payload)


def test_process_at_wins_over_process_in(queue_engine: sa.Engine):
    """`:process-at`, `:process-in`: `process_at` wins; `process_in` counts from now; a past time and a negative delay mean now."""
    hour, none = dt.timedelta(hours=1), dt.timedelta()
    delays = [({}, none), ({"process_in": hour}, hour), ({"process_in": 3600}, hour), ({"process_in": -5.5}, none)]
    past = dt.datetime(1999, 1, 1, tzinfo=dt.UTC)
    delays += [({"process_at": past}, none), ({"process_at": past, "process_in": hour}, none)]
    for way in WAYS:
        for options, delay in delays:
            before = clock_of(queue_engine)
            job_id = way(queue_engine, "tick", **options)
            after = clock_of(queue_engine)

            assert before + delay <= due(queue_engine, job_id) <= after + delay
        for delay in (hour, -5.5):
            assert LATER == due(queue_engine, way(queue_engine, "tick", process_at=LATER, process_in=delay))


def test_options_never_mix_with_the_payload(queue_engine: sa.Engine):
    """Options in the wrong path: a payload may have keys named like every option, and a value like any of them."""
    payload = {
        "queue": "q",
        "payload": 1,
        "session": "s",
        "bind": "b",
        "process_at": LATER,
        "process_in": 5,
        "tables": None,
        "job_id": 3,
    }
    for way in WAYS:
        way(queue_engine, "mixed", payload)

    assert [("default", payload)] * len(WAYS) == [(job.queue, job.payload) for job in run_due(queue_engine)]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"process_at": dt.datetime(2030, 1, 1)}, ValueError, "process_at=.* is naive"),  # noqa: DTZ001 - the point
    ({"process_at": dt.date(2030, 1, 1)}, TypeError, "process_at=.* is a date"),
    ({"process_at": 5}, TypeError, "process_at=5 .* not a datetime"),
    ({"process_in": "5"}, TypeError, "process_in='5' .* not a duration"),
    ({"process_in": float("nan")}, ValueError, "process_in=nan is not finite"),
    ({"process_in": dt.timedelta(days=366_001)}, ValueError, "process_in=.* is more than"),
    ({"queue": ""}, ValueError, "queue must have 1 to 255 characters"),
    ({"queue": None}, TypeError, "queue must be a string"),
    ({"payload": object()}, TypeError, "object"),
    ({"payload": float("nan")}, ValueError, "nan"),
]


def test_a_refusal_leaves_nothing_behind(queue_engine: sa.Engine):
    """A wrong argument is refused by the call itself, with its name, before anything is added, whichever way is taken."""
    for way in WAYS:
        for options, error, message in REFUSED:
            with pytest.raises(error, match=message):
                way(queue_engine, "tick", **options)

    assert [] == queued(queue_engine)


def test_a_refused_job_does_not_hurt_the_session(queue_engine: sa.Engine):
    """After a refusal the session is clean and goes on: nothing was added to it, its own rows commit."""
    Base.metadata.create_all(queue_engine)
    with Session(queue_engine) as session:
        session.add(User(name="Ada"))
        session.flush()
        with pytest.raises(TypeError):
            enqueue(session, "welcome", object())
        assert [] == list(session.new)
        job_id = enqueue(session, "welcome", "Ada")
        session.add(User(name="Bob"))
        session.commit()

        assert ["Ada", "Bob"] == session.scalars(sa.select(User.name).order_by(User.id)).all()
    assert {job_id} == queued_ids(queue_engine)


def test_the_payload_is_a_snapshot(queue_engine: sa.Engine):
    """A payload that is changed after the call, and before the flush, is stored as it was."""
    payload = {"names": ["Ada"]}
    with Session(queue_engine) as session, session.begin():
        enqueue(session, "welcome", payload)
        job = Job(job_type="welcome", payload=payload)
        session.add(job)
        payload["names"].append("Bob")
        assert {"names": ["Ada"]} == job.payload

    assert [{"names": ["Ada"]}] * 2 == [job.payload for job in run_due(queue_engine)]


def test_a_new_job_knows_what_the_caller_gave():
    """Before the flush a job has id, names, payload and given times; what the database's clock will say is None."""
    job = Job(job_type="tick", payload=(1, 2), process_at=LATER.astimezone(dt.timezone(dt.timedelta(hours=5))))
    now = Job(job_type="tick", queue="other")

    assert isinstance(job.job_id, uuid.UUID)
    assert ("default", "tick", (1, 2), 0) == (job.queue, job.job_type, job.payload, job.attempts)
    assert LATER == job.process_at
    assert dt.UTC is job.process_at.tzinfo
    assert (None, None, "other") == (now.enqueued_at, now.process_at, now.queue)
    assert "Job(job_id=" in repr(now)
    assert "job_type='tick', queue='other'" in repr(now)


def test_what_the_database_decides_is_read_when_it_is_looked_at(queue_engine: sa.Engine):
    """A job is one INSERT that returns nothing; the times that it was given come with one SELECT, if somebody wants them."""
    with Session(queue_engine) as session, session.begin():
        statements: list[str] = []
        sa.event.listen(queue_engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
        job = Job(job_type="tick")
        session.add(job)
        session.flush()
        insert, *others = statements
        assert insert.startswith("INSERT INTO ")
        assert "RETURNING" not in insert
        assert [] == others
        assert job.enqueued_at <= job.process_at
        assert ["SELECT"] == [statement.split()[0] for statement in statements[1:]] or queue_engine.dialect.name == "sqlite"
        known = job.job_id, job.process_at

    assert [known] == [(row.job_id, row.process_at) for row in queued(queue_engine)]


def test_an_id_of_ones_own_is_kept(queue_engine: sa.Engine):
    """A caller may give the id, through the model and through `enqueue_many`."""
    mine, other = uuid.uuid4(), uuid.UUID("00000000-0000-c000-0000-000000000001")
    with Session(queue_engine) as session, session.begin():
        session.add(Job(job_type="tick", job_id=mine))
        ids = enqueue_many(session, [{"job_type": "tick", "job_id": other}])

    assert [other] == ids
    assert {mine, other} == queued_ids(queue_engine)
    run_due(queue_engine)
    assert {mine, other} == {row.job_id for row in archived(queue_engine)}


def test_an_id_of_another_type_is_refused(queue_engine: sa.Engine):
    """An id that is no UUID is refused by the call, on every database, before anything is inserted."""
    for job_id in ("5b0f6bd0-6a51-4b4a-8a49-6f0f5d1f0a11", 7, b"0123456789abcdef"):
        with pytest.raises(TypeError, match=r"job_id must be a uuid\.UUID"):
            Job(job_type="tick", job_id=cast("uuid.UUID", job_id))
        with queue_engine.begin() as connection, pytest.raises(TypeError, match=r"rows\[1\]: job_id must be a uuid\.UUID"):
            enqueue_many(connection, [{"job_type": "tick"}, {"job_type": "tick", "job_id": job_id}])

    assert [] == queued(queue_engine)


def test_ids_come_from_the_tables():
    """The id strategy of the tables makes the ids: version 7 by default, in order; version 4 where wanted."""
    tables = JobTables(job_ids=UUIDv4())
    ids = [Job(job_type="tick").job_id for _ in range(50)]
    random = [tables.Job(job_type="tick").job_id for _ in range(50)]

    assert sorted(ids) == ids
    assert {7} == {job_id.version for job_id in ids}
    assert {4} == {job_id.version for job_id in random}


def test_jobs_are_queried_like_any_model(queue_engine: sa.Engine):
    """`Job` takes part in queries: by column, by id, with filters and counts."""
    with Session(queue_engine) as session, session.begin():
        ids = [enqueue(session, "tick", n, queue=f"q{n % 2}", process_at=LATER + dt.timedelta(seconds=n)) for n in range(4)]
    with Session(queue_engine) as session:
        loaded = session.get_one(Job, ids[2])
        odd = session.scalars(sa.select(Job.job_id).where(Job.queue == "q1").order_by(Job.process_at)).all()

        assert (2, LATER + dt.timedelta(seconds=2)) == (loaded.payload, loaded.process_at)
        assert [ids[1], ids[3]] == odd
        assert [ids[3]] == session.scalars(sa.select(Job.job_id).where(Job.process_at == LATER + dt.timedelta(seconds=3))).all()
        assert 4 == session.scalar(sa.select(sa.func.count()).select_from(Job))


@pytest.mark.parametrize("function", [enqueue, enqueue_many])
def test_what_has_no_transaction_is_refused(function: Any):
    """An engine, a sessionmaker or nothing has no transaction of the caller's to join: a TypeError shows what to give."""
    argument: Any = "tick" if function is enqueue else [{"job_type": "tick"}]
    engine = sa.create_engine("sqlite://")
    for bind in (engine, sessionmaker(engine), None):
        with pytest.raises(TypeError, match=f"{function.__name__} needs a Session or a Connection of yours"):
            function(bind, argument)


@pytest.mark.parametrize("function", [enqueue, enqueue_many])
def test_other_databases_are_refused_by_name(function: Any):
    """A dialect that is not supported is refused with the list of those that are."""
    argument: Any = "tick" if function is enqueue else [{"job_type": "tick"}]
    engine = sa.create_engine("sqlite://")
    engine.dialect.name = "oracle"
    with engine.connect() as connection, pytest.raises(DatabaseNotSupported, match="MySQL, MariaDB and SQLite, not on 'oracle'"):
        function(connection, argument)
    engine.dispose()
