"""Foreign keys to the tables of jobs: finishing a job deletes its row, which a foreign key may forbid."""

import datetime as dt
import logging
import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from proletarian_sa import ArchivedJobMixin, JobMixin, JobTables, RetryStrategy, create_all, events, process_next_job
from proletarian_sa.log import log_event
from proletarian_sa.types import uuid_type
from tests.observing import Recorder, add, lapse
from tests.queue_contents import archived, clock_of, queued, queued_ids, run_due

ADVICE = "A foreign key that refers to 'job' must be ON DELETE SET NULL or ON DELETE CASCADE, or be left out"
FORBIDDING: dict[str, dict[str, Any]] = {
    "plain": {},
    "restrict": {"ondelete": "RESTRICT"},
    "deferred": {"deferrable": True, "initially": "DEFERRED"},
}
TABLES = JobTables(schema=None)
"""In the application's own schema: on SQLite, SQLAlchemy leaves out a foreign key from one schema to another."""

LEASE = 3600
"""Seconds: no test waits for it."""


def enforce_foreign_keys(engine: sa.Engine) -> None:
    """Let SQLite look at foreign keys, as applications that have some do."""
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", lambda raw, _record: raw.execute("PRAGMA foreign_keys=ON"))
        engine.dispose()


@pytest.fixture
def jobs_engine(engine: sa.Engine) -> sa.Engine:
    """Return an engine that enforces foreign keys, on a database with these tables."""
    enforce_foreign_keys(engine)
    create_all(engine, tables=TABLES)
    return engine


def receipts(engine: sa.Engine, rule: str) -> sa.Table:
    """Create a table of the application's that refers to jobs."""
    if rule == "deferred" and engine.dialect.name in ("mysql", "mariadb"):
        pytest.skip("no deferrable constraints")
    options = FORBIDDING.get(rule, {"ondelete": rule})
    table = sa.Table(
        "receipt",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("job_id", uuid_type(), sa.ForeignKey(TABLES.job.c.job_id, **options)),
    )
    table.create(engine)
    return table


def add_with_receipt(engine: sa.Engine, receipt: sa.Table) -> uuid.UUID:
    """Enqueue a job to which a row of the application's refers."""
    job_id = add(engine, tables=TABLES)
    with engine.begin() as connection:
        connection.execute(sa.insert(receipt), {"job_id": job_id})
    return job_id


def receipts_left(engine: sa.Engine, receipt: sa.Table) -> list[uuid.UUID | None]:
    """Return what the application's rows refer to."""
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(receipt.c.job_id)))


@pytest.mark.parametrize(("rule", "left"), [("SET NULL", [None, None]), ("CASCADE", [])])
def test_rules_that_let_jobs_go(jobs_engine: sa.Engine, rule: str, left: list[None]):
    """A foreign key that is ON DELETE SET NULL or CASCADE is in nobody's way, whether or not the handler uses its session."""
    receipt = receipts(jobs_engine, rule)
    first, second = add_with_receipt(jobs_engine, receipt), add_with_receipt(jobs_engine, receipt)
    assert {first, second} == set(receipts_left(jobs_engine, receipt))

    for handler in (lambda _job: None, lambda job: job.session.execute(sa.select(1))):
        outcome = process_next_job(jobs_engine, handler, handler_mode="advanced", tables=TABLES)
        assert "succeeded" == outcome.status
    assert [first, second] == [row.job_id for row in archived(jobs_engine, TABLES)]
    assert left == receipts_left(jobs_engine, receipt)


def test_a_relationship_to_a_job_expires(engine: sa.Engine):
    """A job that only the relationship of an expired object has kept in memory is forgotten without an error."""

    class Base(DeclarativeBase):
        pass

    class Task(JobMixin, Base):
        __job_schema__ = None

    class DoneTask(ArchivedJobMixin, Base):
        __job_schema__ = None

    class Receipt(Base):
        __tablename__ = "receipt"
        id: Mapped[int] = mapped_column(primary_key=True)
        job_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey(Task.job_id, ondelete="SET NULL"))
        job: Mapped[Task | None] = relationship()

    JobTables(job=Task, archived_job=DoneTask)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Receipt(job=Task(job_type="work")))
    with Session(engine) as session:
        receipt = session.scalars(sa.select(Receipt)).one()
        assert "work" == receipt.job.job_type
        session.expire_all()  # the receipt first, and with it the last reference to its job

        assert "work" == receipt.job.job_type


CLAIMS: Any = pytest.mark.parametrize("claim", ["leased", "held"])


@CLAIMS
@pytest.mark.parametrize("rule", FORBIDDING)
def test_a_foreign_key_that_forbids_the_finish(
    jobs_engine: sa.Engine, database: Any, rule: str, claim: str, caplog: pytest.LogCaptureFixture
):
    """The job is not lost and not run again at once, the log says what to do, and the next run after it is done succeeds."""
    if claim == "held":
        database.require("row_locks")
    receipt = receipts(jobs_engine, rule)
    job_id = add_with_receipt(jobs_engine, receipt)
    ran: list[Any] = []
    recorder = Recorder()

    def run() -> Any:
        return process_next_job(
            jobs_engine, ran.append, handler_mode="advanced", tables=TABLES, lease=LEASE, claim=claim, on_event=recorder
        )

    assert "lost" == run().status
    assert [] == archived(jobs_engine, TABLES)
    (row,) = queued(jobs_engine, TABLES)
    assert (job_id, 1, None) == (row.job_id, row.attempts, row.crashes)
    assert row.lease_until > clock_of(jobs_engine)
    assert None is run()
    (refused,) = recorder.of(events.OutcomeNotRecorded)
    with caplog.at_level(logging.ERROR, "proletarian_sa"):
        log_event(refused)
    assert ADVICE in caplog.messages[0]

    with jobs_engine.begin() as connection:
        connection.execute(sa.update(receipt).values(job_id=None))
    lapse(jobs_engine, job_id, TABLES)
    assert "succeeded" == run().status
    assert [job_id] == [row.job_id for row in archived(jobs_engine, TABLES)]
    assert 2 == len(ran)


def test_a_refused_job_is_run_rarely_and_then_no_more(jobs_engine: sa.Engine):
    """Each refusal keeps the job for longer, up to an hour; beyond the crash limit its handler is not called again."""
    receipt = receipts(jobs_engine, "plain")
    job_id = add_with_receipt(jobs_engine, receipt)
    ran: list[Any] = []
    kept = []
    for _ in range(8):
        outcome = process_next_job(
            jobs_engine, ran.append, handler_mode="advanced", tables=TABLES, lease=300, max_crashes=2, on_event=lambda _event: None
        )
        assert "lost" == outcome.status
        (row,) = queued(jobs_engine, TABLES)
        kept.append(round((row.lease_until - clock_of(jobs_engine)) / dt.timedelta(minutes=5)))
        lapse(jobs_engine, job_id, TABLES)

    assert [1, 2, 4, 8, 12, 12, 12, 12] == kept
    assert 3 == len(ran)
    with jobs_engine.begin() as connection:
        connection.execute(sa.delete(receipt))
    process_next_job(jobs_engine, ran.append, handler_mode="advanced", tables=TABLES, max_crashes=2)
    assert [("failure", job_id)] == [(row.status, row.job_id) for row in archived(jobs_engine, TABLES)]


@CLAIMS
@pytest.mark.parametrize("rule", FORBIDDING)
def test_a_handler_that_refers_to_its_own_job(jobs_engine: sa.Engine, database: Any, rule: str, claim: str):
    """A row written through `job.session` that forbids the finish is a failed attempt: rolled back, retried, explained."""
    if claim == "held":
        database.require("row_locks")
    options: dict[str, Any] = {"handler_mode": "advanced", "tables": TABLES, "claim": claim}
    receipt = receipts(jobs_engine, rule)
    job_id = add(jobs_engine, tables=TABLES)
    recorder = Recorder()

    def handler(job: Any) -> None:
        job.session.execute(sa.insert(receipt), {"job_id": job.job_id})

    for status in ("retrying", "failed"):
        outcome = process_next_job(jobs_engine, handler, retry=RetryStrategy(retries=1), on_event=recorder, **options)
        assert (status, sa.exc.IntegrityError) == (outcome.status, type(outcome.exception))
        assert [] == receipts_left(jobs_engine, receipt)

    assert None is process_next_job(jobs_engine, handler, **options)
    assert [] == recorder.of(events.JobTransactionDied)
    (row,) = archived(jobs_engine, TABLES)
    assert (job_id, "failure", 2) == (row.job_id, row.status, row.attempts)
    assert ADVICE in row.last_error


@CLAIMS
def test_other_jobs_are_not_spoiled(jobs_engine: sa.Engine, database: Any, work: Any, claim: str):
    """A worker goes on: jobs that a foreign key keeps stop neither it nor the jobs beside and behind them."""
    if claim == "held":
        database.require("row_locks")
    receipt = receipts(jobs_engine, "plain")
    bad = {add_with_receipt(jobs_engine, receipt) for _ in range(5)}
    good = {add(jobs_engine, tables=TABLES) for _ in range(5)}
    bad |= {add_with_receipt(jobs_engine, receipt) for _ in range(5)}
    worker, recorder = work(lambda _job: None, engine=jobs_engine, tables=TABLES, lease=LEASE, claim=claim)
    with worker:
        recorder.wait_for(events.OutcomeNotRecorded, count=10)
        recorder.wait_for(events.JobSucceeded, count=5)
        late = add(jobs_engine, tables=TABLES)
        recorder.wait_for(events.JobSucceeded, count=6)
        assert worker.is_running

    assert bad == queued_ids(jobs_engine, TABLES)
    assert good | {late} == {row.job_id for row in archived(jobs_engine, TABLES)}
    assert 10 == len(recorder.of(events.OutcomeNotRecorded))


class AppBase(DeclarativeBase):
    """An application whose archive refers to its customers."""


class Customer(AppBase):
    __tablename__ = "customer"

    id: Mapped[int] = mapped_column(primary_key=True)


class Task(JobMixin, AppBase):
    __tablename__ = "task"
    __job_schema__ = None

    customer_id: Mapped[int | None]


class DoneTask(ArchivedJobMixin, AppBase):
    __tablename__ = "done_task"
    __job_schema__ = None

    customer_id: Mapped[int | None] = mapped_column(sa.ForeignKey("customer.id"))


TASKS = JobTables(job=Task, archived_job=DoneTask)


@pytest.mark.parametrize("with_session", [False, True], ids=["by the worker", "in job.session"])
def test_an_archive_that_refers_to_what_is_gone(engine: sa.Engine, with_session: bool):
    """A foreign key of the archive that forbids the copy loses no job either, and the message says what must not be."""
    enforce_foreign_keys(engine)
    Customer.__table__.create(engine)
    create_all(engine, tables=TASKS)
    with Session(engine) as session, session.begin():
        session.add(Customer(id=1))
        session.add_all([Task(job_type="bill", customer_id=number) for number in (1, 2)])
    recorder = Recorder()

    def handler(job: Any) -> None:
        if with_session:
            job.session.execute(sa.select(1))

    while process_next_job(engine, handler, handler_mode="advanced", tables=TASKS, on_event=recorder, lease=LEASE):
        pass

    assert [1] == [row.customer_id for row in archived(engine, TASKS)]
    assert [2] == [row.customer_id for row in queued(engine, TASKS)]
    (refused,) = recorder.of(events.OutcomeNotRecorded)
    assert "'done_task' must not refer to rows that may be gone" in str(refused.exception.__notes__)


REFUSE = {
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$",
        "CREATE TRIGGER refusal BEFORE INSERT ON done_task FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
    "sqlite": ["CREATE TRIGGER refusal BEFORE INSERT ON done_task BEGIN SELECT RAISE(ABORT, 'not today'); END"],
}
SIGNAL = ["CREATE TRIGGER refusal BEFORE INSERT ON done_task FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not today'"]


def test_a_trigger_that_refuses(engine: sa.Engine):
    """A trigger of the archive that raises keeps its job in the queue, owned for a while; once it is gone the job is archived."""
    Customer.__table__.create(engine)
    create_all(engine, tables=TASKS)
    job_id = add(engine, tables=TASKS)
    with engine.begin() as connection:
        for statement in REFUSE.get(engine.dialect.name, SIGNAL):
            connection.exec_driver_sql(statement)
    recorder = Recorder()
    outcome = process_next_job(engine, lambda *_job: None, tables=TASKS, on_event=recorder, lease=LEASE)
    assert "lost" == outcome.status
    assert "not today" in str(recorder.of(events.OutcomeNotRecorded)[0].exception)
    assert [] == run_due(engine, tables=TASKS)
    assert {job_id} == queued_ids(engine, TASKS)

    with engine.begin() as connection:
        drop = "DROP TRIGGER refusal" + (" ON done_task" if engine.dialect.name == "postgresql" else "")
        connection.exec_driver_sql(drop)
    lapse(engine, job_id, TASKS)
    assert 1 == len(run_due(engine, tables=TASKS))
    assert [job_id] == [row.job_id for row in archived(engine, TASKS)]
