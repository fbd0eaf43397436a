"""Id strategies: whatever an id is and whoever makes it, a job is enqueued, run, repeated, lost and archived alike."""

import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import (
    ConstantIds,
    DatabaseIds,
    JobTables,
    ManualClock,
    QueueWorker,
    RetryStrategy,
    TablesForeign,
    UUIDv7,
    check_tables,
    create_all,
    enqueue,
    enqueue_many,
    process_next_job,
)
from proletarian_sa.events import ArchiveRowReplaced, JobStarted
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, add, claim, lapse, statements
from tests.queue_contents import archived, queued, run_due
from tests.strategies import STRATEGIES, Ticket, every_tables, own_tables


def add_to(engine: sa.Engine, tables: JobTables, job_type: str = "tick", payload: Any = None) -> Any:
    """Enqueue a job on a session and commit."""
    with Session(engine) as session, session.begin():
        return enqueue(session, job_type, payload, tables=tables)


def failing(*_arguments: Any) -> None:
    """Be a handler that fails."""
    raise LookupError("gone")


def bad_ones_fail(job_type: str, _payload: Any) -> None:
    """Be a handler that fails for one type."""
    if job_type == "bad":
        failing()


def test_an_id_is_what_the_strategy_says(engine: sa.Engine):
    """`enqueue` on a session and on a connection, `enqueue_many` and the model give ids of the strategy's type, all different."""
    for name, tables in every_tables(engine, tuple(STRATEGIES)).items():
        kind = STRATEGIES[name][1]
        with Session(engine) as session, session.begin():
            ids = [enqueue(session, "tick", tables=tables), enqueue(session.connection(), "tick", tables=tables)]
            ids += enqueue_many(session, [{"job_type": "tick"}] * 3, tables=tables)
            job = tables.Job(job_type="tick")
            session.add(job)
            session.flush()
            ids.append(job.job_id)
        stored = [row.job_id for row in queued(engine, tables)]

        assert {kind} == {type(job_id) for job_id in ids}, name
        assert 6 == len(set(ids))
        assert set(ids) == set(stored)
        assert {kind} == {type(job_id) for job_id in stored}


def test_success(engine: sa.Engine):
    """A job runs once under its id, and is archived under it."""
    for name, tables in every_tables(engine).items():
        job_id = add_to(engine, tables, payload=name)
        events = Recorder()
        jobs = []
        outcome = process_next_job(engine, jobs.append, handler_mode="advanced", tables=tables, on_event=events)

        assert outcome is not None
        assert ("succeeded", job_id) == (outcome.status, outcome.job_id), name
        assert [(job_id, name)] == [(job.job_id, job.payload) for job in jobs]
        assert [job_id] == [event.job_id for event in events.of(JobStarted)]
        assert [] == queued(engine, tables)
        assert [(job_id, "success", 1)] == [(row.job_id, row.status, row.attempts) for row in archived(engine, tables)]


def test_success_in_the_handlers_transaction(engine: sa.Engine):
    """A job whose handler writes through `job.session` is archived in that transaction, whatever its id is."""
    for name, tables in every_tables(engine).items():
        job_id = add_to(engine, tables)
        child = []

        def handle(job: Any, tables: JobTables = tables, child: list[Any] = child) -> None:
            child.append(enqueue(job.session, "child", queue="other", tables=tables))

        outcome = process_next_job(engine, handle, handler_mode="advanced", tables=tables)

        assert outcome is not None
        assert "succeeded" == outcome.status, name
        assert [(job_id, "success")] == [(row.job_id, row.status) for row in archived(engine, tables)]
        assert child == [row.job_id for row in queued(engine, tables)]


def test_retry_and_failure(engine: sa.Engine):
    """A job that fails is put back under its id, and archived as failure under it in the end."""
    for name, tables in every_tables(engine).items():
        job_id = add_to(engine, tables)
        retry = RetryStrategy(retries=1)
        first = process_next_job(engine, failing, retry=retry, tables=tables)
        (row,) = queued(engine, tables)
        second = process_next_job(engine, failing, retry=retry, tables=tables)

        assert first is not None
        assert second is not None
        assert [("retrying", job_id), ("failed", job_id)] == [(one.status, one.job_id) for one in (first, second)], name
        assert (job_id, 1, None) == (row.job_id, row.attempts, row.claimed_by)
        assert [(job_id, "failure", 2)] == [(row.job_id, row.status, row.attempts) for row in archived(engine, tables)]


def test_a_lapsed_lease(engine: sa.Engine):
    """A job whose worker has died is run again under its id, and the loss is counted."""
    for name, tables in every_tables(engine).items():
        job_id = add_to(engine, tables)
        (lost,) = claim(engine, "the dead", tables=tables)
        lapse(engine, job_id, tables)
        jobs = run_due(engine, tables=tables)

        assert job_id == lost.job_id, name
        assert [(job_id, 1, 1)] == [(job.job_id, job.attempts, job.crashes) for job in jobs]
        assert [(job_id, "success", 1)] == [(row.job_id, row.status, row.crashes) for row in archived(engine, tables)]


def test_an_archive_row_that_is_there_already(engine: sa.Engine):
    """Where the archive has a row of that id, the newer outcome replaces it, and an event says so."""
    for name, tables in every_tables(engine).items():
        job_id = add_to(engine, tables)
        process_next_job(engine, failing, tables=tables)
        with engine.begin() as connection:
            enqueue_many(connection, [{"job_type": "again", "job_id": job_id}], tables=tables)
        events = Recorder()
        process_next_job(engine, lambda job_type, payload: None, tables=tables, on_event=events)

        assert [(job_id, "again", "success")] == [(row.job_id, row.job_type, row.status) for row in archived(engine, tables)], name
        assert [job_id] == [event.job_id for event in events.of(ArchiveRowReplaced)]


def test_a_stopped_job_goes_back(engine: sa.Engine):
    """A job that is given back keeps its id and loses no attempt."""
    for name, tables in every_tables(engine).items():
        job_id = add_to(engine, tables)
        (claimed,) = claim(engine, "mine", tables=tables)
        with engine.begin() as connection:
            assert statements(engine, tables).release(connection, claimed)

        assert [(job_id, 0, None)] == [(row.job_id, row.attempts, row.claimed_by) for row in queued(engine, tables)], name


@pytest.mark.parametrize("name", ["database", "tickets"])
def test_a_worker_keeps_the_leases_of_its_jobs(engine: sa.Engine, work: Callable[..., Any], name: str):
    """A worker with several threads prolongs the leases of all jobs in hand, by their ids, and finishes each once."""
    tables = every_tables(engine, (name,))[name]
    with engine.begin() as connection:
        ids = enqueue_many(connection, [{"job_type": "tick"}] * 5, tables=tables)
    gate = Gate()
    worker, events = work(gate, engine, tables=tables, worker_threads=2, lease=0.5)
    worker.start()
    begun = [gate.begun.get(timeout=PATIENCE), gate.begun.get(timeout=PATIENCE)]

    def leases() -> dict[Any, Any]:
        return {row.job_id: row.lease_until for row in queued(engine, tables) if row.lease_until}

    before = leases()
    wait_until(lambda: all(leases()[job.job_id] > before[job.job_id] for job in begun))
    gate.open.set()
    wait_until(lambda: len(archived(engine, tables)) == 5)
    worker.stop()

    assert set(ids) == {row.job_id for row in archived(engine, tables)}
    assert sorted(map(repr, ids)) == sorted(repr(event.job_id) for event in events.of(JobStarted))


def test_a_constant_id(engine: sa.Engine):
    """`:job-id-strategy`, constant: one id for every job: a second is refused while the first is queued, and taken afterwards."""
    for job_id in (uuid.UUID(int=7), 7, "seven"):
        tables = own_tables(f"constant_{type(job_id).__name__}", ConstantIds(job_id))
        create_all(engine, tables=tables)
        first = add_to(engine, tables, "first")
        with pytest.raises(sa.exc.IntegrityError):
            add_to(engine, tables, "second")
        with pytest.raises(sa.exc.IntegrityError):
            add(engine, "second", tables=tables)
        run_due(engine, tables=tables)
        again = add(engine, "third", tables=tables)

        assert [job_id, job_id] == [first, again]
        assert ["third"] == [row.job_type for row in queued(engine, tables)]
        assert ["first"] == [row.job_type for row in archived(engine, tables)]


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in ("database", "some")])
def test_ids_of_the_applications_are_known_at_once(name: str):
    """An id that the application makes is known before anything is inserted."""
    job = own_tables(name, STRATEGIES[name][0]()).Job(job_type="tick")

    assert STRATEGIES[name][1] is type(job.job_id)


def test_an_id_of_ones_own_is_kept(engine: sa.Engine):
    """An id that the caller gives is taken in place of the strategy's, if its type fits."""
    own: dict[str, Any] = {"database": -5, "words": "JOB-mine", "octets": b"\0\xff\0'\\\n% ", "tickets": Ticket(999)}
    for name, tables in every_tables(engine, tuple(own)).items():
        with Session(engine) as session, session.begin():
            session.add(tables.Job(job_type="tick", job_id=own[name]))
        run_due(engine, tables=tables)

        assert [own[name]] == [row.job_id for row in archived(engine, tables)], name


REFUSED: list[tuple[str, Any, type[Exception], str]] = [
    ("v7", 5, TypeError, r"job_id must be a uuid\.UUID, not 5 \(int\)"),
    ("only_new", "5b0f6bd0-6a51-4b4a-8a49-6f0f5d1f0a11", TypeError, r"job_id must be a uuid\.UUID, not '5b0f"),
    ("database", uuid.UUID(int=5), TypeError, r"job_id must be an int, not UUID\("),
    ("database", "5", TypeError, r"job_id must be an int, not '5' \(str\)\. Give a number"),
    ("database", True, TypeError, r"job_id must be an int, not True \(bool\)"),
    ("database", 0, ValueError, "job_id must not be 0: MySQL takes that for the next number"),
    ("database", 2**63, ValueError, "job_id must be an int of 64 bits, not 9223372036854775808"),
    ("numbers", 5.0, TypeError, r"job_id must be an int, not 5\.0 \(float\)"),
    ("numbers", -(2**63) - 1, ValueError, "job_id must be an int of 64 bits"),
    ("octets", "12345678", TypeError, r"job_id must be a bytes, not '12345678' \(str\), as column_type says"),
    ("words", 5, TypeError, "job_id must be a word, not 5"),
    ("words", "other", ValueError, "job_id must begin with JOB-, and 'other' does not"),
]


@pytest.mark.parametrize(("name", "job_id", "error", "message"), REFUSED)
def test_an_id_that_does_not_fit_is_refused(name: str, job_id: Any, error: type[Exception], message: str):
    """An id of the caller's of another type, or one that the strategy's `check` refuses, is refused by the call itself."""
    tables = own_tables(name, STRATEGIES[name][0]())
    engine = sa.create_engine("sqlite://")
    with pytest.raises(error, match=f"^{message}"):
        tables.Job(job_type="tick", job_id=job_id)
    with engine.connect() as connection, pytest.raises(error, match=rf"^rows\[1\]: {message}"):
        enqueue_many(connection, [{"job_type": "tick"}, {"job_type": "tick", "job_id": job_id}], tables=tables)
    engine.dispose()


class Broken:
    """A strategy that returns what its tables cannot hold."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def new(self) -> Any:
        return self.made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (7, r"job_id must be a uuid\.UUID, not 7 \(int\).* ids of another type: JobTables\(job_ids=…\) with a column_type"),
        (None, r"Broken\.new\(\) returned None, no id\. Where the database makes them: job_ids=DatabaseIds\(\)"),
    ],
)
def test_a_strategy_that_returns_something_else_is_refused(made: Any, message: str):
    """What a strategy returns is checked as well, before anything is inserted."""
    tables = JobTables(job_ids=Broken(made))
    with pytest.raises(TypeError, match=message):
        tables.Job(job_type="tick")


def test_what_is_no_strategy_is_refused():
    """Strategies without `new`, with a column type that is none, and constants of other types are refused with an example."""

    class NoType(Broken):
        column_type = "bigint"

    with pytest.raises(TypeError, match=r"has no new: job_ids=UUIDv7\(\)"):
        JobTables(job_ids=uuid.uuid4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"UUIDv7 is a class; give an object: job_ids=UUIDv7\(\)"):
        JobTables(job_ids=UUIDv7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"column_type of NoType must be a SQLAlchemy type, not 'bigint': sa\.String\(26\)"):
        JobTables(job_ids=NoType(7))
    for job_id in (True, 1.5, None, b"seven"):
        with pytest.raises(TypeError, match=r"ConstantIds takes a uuid\.UUID, an int or a str, not .*: ConstantIds\(7\)"):
            ConstantIds(job_id)  # type: ignore[arg-type]


def test_two_strategies_in_one_database(engine: sa.Engine):
    """Tables of different strategies lie side by side, in one transaction and in one process, and take nothing from each other."""
    made = every_tables(engine, ("v7", "database", "words"))
    with Session(engine) as session, session.begin():
        ids = {name: enqueue(session, name, tables=tables) for name, tables in made.items()}
    ran = {name: [job.job_id for job in run_due(engine, tables=tables)] for name, tables in made.items()}

    assert {name: [job_id] for name, job_id in ids.items()} == ran
    assert {name: [job_id] for name, job_id in ids.items()} == {
        name: [row.job_id for row in archived(engine, tables)] for name, tables in made.items()
    }


def test_under_a_clock_of_the_tests(engine: sa.Engine):
    """An injected clock and a strategy of one's own go together."""
    clock = ManualClock(dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
    tables = own_tables("clocked", DatabaseIds(), clock=clock)
    create_all(engine, tables=tables)
    job_id = add(engine, tables=tables, process_in=60)
    early = run_due(engine, tables=tables)
    clock.tick(60)

    assert [] == early
    assert [job_id] == [job.job_id for job in run_due(engine, tables=tables)]


@pytest.mark.parametrize(("created", "wanted", "needs"), [("v7", "database", "int"), ("database", "v7", "UUID")])
def test_tables_that_were_created_with_other_ids_are_refused(engine: sa.Engine, created: str, wanted: str, needs: str):
    """Tables in the database whose ids are of another kind than the strategy's are refused, at the start of a worker too."""
    create_all(engine, tables=JobTables(job_ids=STRATEGIES[created][0]()))
    tables = JobTables(job_ids=STRATEGIES[wanted][0]())
    message = rf"The ids in the table .*job are .*, but {type(tables.job_ids).__name__} needs a column of {needs}"
    for check in (check_tables, create_all):
        with pytest.raises(TablesForeign, match=message):
            check(engine, tables=tables)
    with pytest.raises(TablesForeign, match=message):
        QueueWorker(engine, failing, tables=tables).start()


def test_held_claims(engine: sa.Engine, database: Any):
    """A job that is held by its row's lock succeeds, is repeated and fails under its id, whatever that is."""
    database.require("row_locks")
    for name, tables in every_tables(engine).items():
        good, bad = add_to(engine, tables, "good"), add_to(engine, tables, "bad")
        options: dict[str, Any] = {"tables": tables, "claim": "held", "retry": RetryStrategy(retries=1)}
        outcomes = [process_next_job(engine, bad_ones_fail, **options) for _ in range(3)]
        told = [(outcome.status, outcome.job_id) for outcome in outcomes if outcome is not None]

        assert [("succeeded", good), ("retrying", bad), ("failed", bad)] == told, name
        assert {(good, "success", 1), (bad, "failure", 2)} == {
            (row.job_id, row.status, row.attempts) for row in archived(engine, tables)
        }
