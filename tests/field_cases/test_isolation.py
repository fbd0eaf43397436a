"""Stricter isolation than the library's own, set by the application or its database: quietly none of a worker's business."""

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from proletarian_sa import enqueue, enqueue_many, events, process_next_job
from tests.helpers import scaled, wait_until
from tests.observing import PATIENCE, Recorder, add
from tests.queue_contents import User, archived, queued

WORKERS = 8
LEVELS = ["serializable", "repeatable read"]


def set_default(database, engine: sa.Engine, level: str) -> None:
    """Give the throw-away database this default."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {database.url.database} SET default_transaction_isolation = '{level}'")
    engine.dispose()


def run_a_load(app_engine, engines, work, **options) -> Recorder:
    """Let eight workers run short jobs with effects while the application enqueues more; check that all went well."""
    backlog, later = scaled(40), scaled(10)
    seen = Recorder()

    def handler(job):
        job.session.add(User(name=str(job.job_id)))
        job.session.scalar(sa.select(sa.func.count()).select_from(User))

    with app_engine.begin() as connection:
        ids = set(enqueue_many(connection, [{"job_type": "work"}] * backlog))
    for engine in engines:
        work(handler, engine, on_event=seen, **options)[0].start()
    for number in range(later):
        with Session(app_engine) as session, session.begin():
            session.add(User(name=f"customer {number}"))
            ids.add(enqueue(session, "work"))
    seen.wait_for(events.JobSucceeded, count=len(ids), timeout=2 * PATIENCE)
    wait_until(lambda: queued(app_engine) == [], PATIENCE)

    with app_engine.connect() as connection:
        names = connection.scalars(sa.select(User.name).where(User.name.not_like("customer%"))).all()
    assert sorted(map(str, ids)) == sorted(names)
    assert sorted(ids) == sorted(row.job_id for row in archived(app_engine))
    assert {("success", 1, None)} == {(row.status, row.attempts, row.crashes) for row in archived(app_engine)}
    return seen


def assert_quiet(seen: Recorder) -> None:
    """Hold that no attempt, claim or finish failed for the isolation, however briefly."""
    assert [] == seen.of(events.JobAttemptFailed) + seen.of(events.JobTransactionDied) + seen.of(events.TransientErrorMet)
    assert [] == seen.of(events.OutcomeNotRecorded) + seen.of(events.WorkerFailed) + seen.of(events.JobLeaseLost)


@pytest.mark.parametrize("level", LEVELS)
def test_the_databases_default(database, app_engine, work, level):
    """Serialization failure in the claim: with a stricter default of the database's no claim, job or enqueue fails for it.

    Fifty jobs and eight workers, not 2000.
    """
    database.require("default_isolation")
    set_default(database, app_engine, level)
    seen = run_a_load(app_engine, [database.create_engine() for _ in range(WORKERS)], work)

    assert_quiet(seen)
    with app_engine.connect() as connection:
        assert level == connection.exec_driver_sql("SHOW transaction_isolation").scalar()


@pytest.mark.parametrize(("level", "own_sessions"), [("serializable", True), ("repeatable read", False)])
def test_the_engines_level(database, app_engine, work, level, own_sessions):
    """Serialization failure in the claim: likewise where the application's engine, and its sessions, are stricter."""
    database.require("row_locks")
    engine = database.create_engine(isolation_level=level.upper(), pool_size=5 * WORKERS)
    options = {"session_factory": sessionmaker(engine)} if own_sessions else {}
    seen = run_a_load(app_engine, [engine] * WORKERS, work, **options)

    assert_quiet(seen)
    with engine.connect() as connection:
        assert level.upper() == connection.get_isolation_level()


PLACES = {
    "derived": lambda database, options: database.create_engine(pool_size=5 * WORKERS).execution_options(**options),
    "derived twice": lambda database, options: (
        database.create_engine(pool_size=5 * WORKERS).execution_options(**options).execution_options(compiled_cache={})
    ),
    "at the root": lambda database, options: database.create_engine(pool_size=5 * WORKERS, execution_options=options),
}
"""Where an application may have given its engine options, beside `create_engine(isolation_level=…)`."""


@pytest.mark.parametrize("place", ["derived twice", "at the root"])
def test_a_level_in_execution_options(database, app_engine, work, place):
    """Serialization failure in the claim: likewise where the level stands in the execution options of the engine given."""
    database.require("row_locks")
    engine = PLACES[place](database, {"isolation_level": "SERIALIZABLE"})

    assert_quiet(run_a_load(app_engine, [engine] * WORKERS, work))
    with engine.connect() as connection:
        assert "SERIALIZABLE" == connection.get_isolation_level()


def test_a_read_only_and_deferrable_engine(database, app_engine, work):
    """Serialization failure in the claim: options for read-only, deferrable transactions do not reach a worker's own."""
    database.require("default_isolation")
    set_default(database, app_engine, "serializable")
    options = {"isolation_level": "SERIALIZABLE", "postgresql_readonly": True, "postgresql_deferrable": True}
    engine = PLACES["derived"](database, options)

    assert_quiet(run_a_load(app_engine, [engine] * WORKERS, work))


def test_autocommit_in_execution_options(database, app_engine):
    """A worker has transactions of its own on an engine whose options say AUTOCOMMIT: what a failed handler wrote is gone."""

    def handler(job):
        job.session.add(User(name=job.job_type))
        job.session.flush()
        if job.job_type == "fails":
            raise ValueError

    for place in PLACES.values():
        engine = place(database, {"isolation_level": "AUTOCOMMIT"})
        for job_type in ("fails", "works"):
            add(app_engine, job_type)
            process_next_job(engine, handler, handler_mode="advanced", on_event=Recorder())

    with app_engine.connect() as connection:
        assert ["works"] * len(PLACES) == connection.scalars(sa.select(User.name)).all()
    outcomes = [(row.job_type, row.status) for row in archived(app_engine)]
    assert [("fails", "failure"), ("works", "success")] * len(PLACES) == outcomes
