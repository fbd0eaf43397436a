"""Locks between workers and everybody else, first known from MySQL and MariaDB: producers never pay, workers never stop."""

import contextlib
import datetime as dt
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import Job, enqueue, enqueue_many, events
from proletarian_sa.dialects import statements_for
from proletarian_sa.models import default_tables as tables
from tests.field_cases.deadlocks import Rival, impatient_engine
from tests.field_cases.watching import polls_of
from tests.helpers import scaled, wait_until
from tests.observing import PATIENCE, Gate, Recorder, add
from tests.plans import analyze, fill, forget_statistics
from tests.queue_contents import User, archived, queued
from tests.test_row_locks import STATISTICS, count_locks

LEASE = dt.timedelta(minutes=1)
PRODUCERS = 8


class Business:
    """The application's transactions, each a row of its own and one to five jobs; nothing is tried twice."""

    def __init__(self, engine: sa.Engine):
        self.engine, self.engines = engine, threading.local()
        self.done: set[uuid.UUID] = set()
        self.news = threading.Condition()
        self.errors: list[BaseException] = []

    def ran(self, job):
        """Handle a job."""
        with self.news:
            self.done.add(job.job_id)
            self.news.notify_all()

    def produce(self, producer: int, transactions: int) -> set[uuid.UUID]:
        """Enqueue, and wait until it has been done: the queue is nearly empty all the time."""
        ids: set[uuid.UUID] = set()
        try:
            for number in range(transactions):
                new = self._commit(producer, number)
                ids |= new
                with self.news:
                    assert self.news.wait_for(lambda new=new: new <= self.done, PATIENCE)
        except BaseException as error:
            self.errors.append(error)
            raise
        return ids

    def _commit(self, producer: int, number: int) -> set[uuid.UUID]:
        count = 1 + (producer + number) % 5
        with Session(self.engine) as session, session.begin():
            session.add(User(name=f"customer of {producer}"))
            if number % 3 == 0:
                session.flush()
            if number % 2:
                return {enqueue(session, "work", number) for _ in range(count)}
            return {enqueue(session, "work"), *enqueue_many(session, [{"job_type": "work"}] * (count - 1))}


def test_producers_on_a_nearly_empty_queue(database, app_engine, work):
    """Deadlock enqueue against claim: eight producers on a nearly empty queue never meet a deadlock or a lock wait time-out.

    Eight transactions each, not three minutes; two workers of four threads at the server's own isolation.
    """
    database.require("row_locks")
    business, seen = Business(impatient_engine(database, PRODUCERS)), Recorder()
    workers = [work(business.ran, database.create_engine(pool_size=8), worker_threads=4, on_event=seen)[0] for _ in range(2)]
    for worker in workers:
        worker.start()
    with ThreadPoolExecutor(PRODUCERS) as pool:
        produced = list(pool.map(lambda producer: business.produce(producer, scaled(8)), range(PRODUCERS)))
    ids = set().union(*produced)
    wait_until(lambda: len(archived(app_engine)) == len(ids), PATIENCE)

    assert [] == business.errors
    assert ids == {row.job_id for row in archived(app_engine)}
    assert {("success", 1, None)} == {(row.status, row.attempts, row.crashes) for row in archived(app_engine)}
    assert len(ids) == len(seen.of(events.JobStarted))
    assert [] == seen.of(events.TransientErrorMet) + seen.of(events.WorkerFailed) + seen.of(events.OutcomeNotRecorded)


@pytest.mark.parametrize(("rows", "statistics"), [(20, "stale"), (2000, "stale"), (2000, "fresh")])
def test_two_queues_in_one_table(database, queue_engine, statistics, rows):
    """SKIP LOCKED serialises: with two queues mixed in the table each claim gets its job, and locks about one row."""
    database.require("row_locks")
    mixed(queue_engine, rows, analyzed=STATISTICS[statistics])
    statements = statements_for(queue_engine.dialect, tables)
    with queue_engine.connect() as connection:
        own = queue_engine.execution_options(**statements.own_options(connection))
    taken, locks = [], []
    with contextlib.ExitStack() as claims, queue_engine.connect() as observer:
        for number in range(4):
            worker = claims.enter_context(own.connect())
            queue = ("default", "other")[number % 2]
            taken += [(job.queue, job.job_id) for job in claim(statements, worker, queue)]
            if database.lock_table:
                locks.append(count_locks(observer, worker.exec_driver_sql("SELECT connection_id()").scalar_one()))
        left = rows // 2 - 2  # to ask for more would let MariaDB lock the first row behind the queue's end
        others = [len(claim(statements, claims.enter_context(own.connect()), queue, left)) for queue in ("default", "other")]

    assert ["default", "other"] * 2 == [queue for queue, _ in taken]
    assert 4 == len(set(taken))
    assert [left] * 2 == others
    assert all(count <= 4 for count in locks), locks


def mixed(engine: sa.Engine, rows: int, *, analyzed: bool) -> None:
    """Fill the table with due jobs, every other one in another queue."""
    with engine.begin() as connection:
        forget_statistics(connection)
    with engine.begin() as connection:
        fill(connection, rows, 100)
        ids = connection.scalars(sa.select(tables.job.c.job_id).order_by(tables.job.c.process_at)).all()
        connection.execute(sa.update(tables.job).where(tables.job.c.job_id.in_(ids[::2])).values(queue="other"))
    if analyzed:
        with engine.begin() as connection:
            analyze(connection)


def claim(statements, connection, queue, limit=1):
    """Claim jobs, and leave the transaction open."""
    return statements.claim(connection, queue=queue, token=uuid.uuid4().hex, lease=LEASE, limit=limit)


def test_two_queues_run_at_the_same_time(database, queue_engine, work):
    """SKIP LOCKED serialises: four workers on two queues run four long jobs at once, while as many again wait."""
    database.require("row_locks")
    gate = Gate()
    mixed(queue_engine, 20, analyzed=False)
    for number in range(4):
        work(gate, database.create_engine(), queue=("default", "other")[number % 2])[0].start()
    try:
        running = [gate.begun.get(timeout=PATIENCE) for _ in range(4)]
    finally:
        gate.open.set()

    assert ["default", "default", "other", "other"] == sorted(job.queue for job in running)
    assert 4 == len({job.job_id for job in running})


DEADLOCKS = {"postgresql": "40P01", "mysql": 1213, "mariadb": 1213}


def code_of(engine: sa.Engine, error: BaseException | None) -> object:
    """Return the server's number of an error."""
    orig = getattr(error, "orig", None)
    return getattr(orig, "sqlstate", None) if engine.dialect.name == "postgresql" else getattr(orig, "args", [None])[0]


def add_model(session: Session, job_id: uuid.UUID) -> None:
    """Enqueue with the session's own flush."""
    session.add(Job(job_type="mine", job_id=job_id))
    session.flush()


def stream(session: Session, job_id: uuid.UUID) -> None:
    """Enqueue an iterator, for which the library sets a savepoint of its own."""
    enqueue_many(session, iter([{"job_type": "mine", "job_id": job_id}]))


@pytest.mark.parametrize("way", [add_model, stream])
def test_the_application_sees_its_deadlock(database, app_engine, way):
    """Deadlock inside a savepoint: the application sees the database's deadlock error, whichever way it enqueued."""
    database.require("row_locks")
    job_id = uuid.uuid4()
    rival = Rival(app_engine, job_id)
    with Session(app_engine) as session:
        rival.prepare(session.connection())
        with pytest.raises(sa.exc.OperationalError) as caught:
            way(session, job_id)
        session.rollback()
        kept = enqueue(session, "kept")
        session.commit()
    rival.thread.join(PATIENCE)

    assert DEADLOCKS[app_engine.dialect.name] == code_of(app_engine, caught.value)
    assert statements_for(app_engine.dialect, tables).is_transient(caught.value)
    assert [kept] == [row.job_id for row in queued(app_engine)]


@pytest.mark.parametrize("way", [add_model, stream])
def test_the_application_sees_its_deadlock_inside_its_savepoint(database, app_engine, way):
    """Deadlock inside the application's own `begin_nested`: it sees the deadlock, and goes on after its rollback.

    What a flush of SQLAlchemy's makes of it on the MySQL family, where the savepoint is gone, still tells of the deadlock.
    """
    database.require("row_locks")
    job_id = uuid.uuid4()
    rival = Rival(app_engine, job_id)
    with Session(app_engine) as session:
        rival.prepare(session.connection())
        with contextlib.suppress(sa.exc.DBAPIError), session.begin_nested():
            with pytest.raises(sa.exc.OperationalError) as caught:
                way(session, job_id)
            raise caught.value
        session.rollback()
        kept = enqueue(session, "kept")
        session.commit()
    rival.thread.join(PATIENCE)
    errors = [caught.value] if way is not add_model else [caught.value, caught.value.__context__]

    assert DEADLOCKS[app_engine.dialect.name] in [code_of(app_engine, error) for error in errors]
    assert [kept] == [row.job_id for row in queued(app_engine)]


def test_a_stale_snapshot_hides_no_job_from_a_worker(database, app_engine, work):
    """Stale snapshot: a worker that started on an empty queue takes a job at its next poll, on an engine at REPEATABLE READ too.

    Ten polls of an empty queue, not a minute.
    """
    options = {"isolation_level": "REPEATABLE READ"} if database.row_locks else {}
    engine = database.create_engine(**options)
    polls = polls_of(engine)
    worker, seen = work(lambda job: job.session.execute(sa.select(User)), engine)
    worker.start()
    wait_until(lambda: len(polls) >= 10, PATIENCE)
    job_id = add(app_engine)

    seen.wait_for(events.JobSucceeded, job_id=job_id)


def test_a_long_lived_reader(database, app_engine, work):
    """Stale snapshot: reading joins the caller's transaction, and is current in the next; a job enqueued from an old one is run."""
    options = {"isolation_level": "REPEATABLE READ"} if database.row_locks else {}
    count = sa.select(sa.func.count()).select_from(Job)
    worker, seen = work(lambda _job: None)
    with Session(database.create_engine(**options)) as reader:
        before = [reader.scalar(count) for _ in range(2)]
        waiting = [add(app_engine, process_in=3600) for _ in range(3)]
        worker.start()
        seen.wait_for(events.JobSucceeded, job_id=add(app_engine))
        inside = reader.scalar(count)
        late = enqueue(reader, "from an old snapshot")
        reader.commit()
        seen.wait_for(events.JobSucceeded, job_id=late)
        after = [reader.scalar(count) for _ in range(2)]

    assert [0, 0] == before
    assert inside == (0 if database.row_locks else len(waiting))
    assert [len(waiting)] * 2 == after
