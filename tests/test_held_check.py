"""Whether a database can hold claims is tried before the first one: refused with the reason, and nothing stays behind."""

import datetime as dt
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from proletarian_sa import (
    ArchivedJobMixin,
    ConstantIds,
    DatabaseIds,
    DatabaseNotSupported,
    JobMixin,
    JobTables,
    ManualClock,
    QueueWorker,
    TablesMissing,
    create_all,
    default_tables,
    enqueue,
    process_next_job,
)
from proletarian_sa.dialects.mysql_held import why_not
from tests.observing import PATIENCE, Gate, Recorder, add
from tests.queue_contents import archived, queued


def start(engine, **options):
    """Start a worker with held claims, and stop it."""
    with QueueWorker(engine, lambda _job: None, **{"handler_mode": "advanced", "claim": "held", "on_event": Recorder()} | options):
        pass


def step(engine, **options):
    """Run the next job with a held claim."""
    return process_next_job(engine, lambda _job: None, **{"handler_mode": "advanced", "claim": "held"} | options)


BOTH = pytest.mark.parametrize("begin", [start, step])


def rewrite(engine, change):
    """Let the server see other statements than those that are sent, on whatever connection of this engine's dialect."""

    def do_execute(cursor, statement, parameters, _context):
        changed = change(statement)
        if changed == statement:
            return None
        cursor.execute(changed, parameters)
        return True

    sa.event.listen(engine, "do_execute", do_execute)


@BOTH
def test_a_database_without_row_locks_is_refused(database, queue_engine, begin):
    """Where rows cannot be locked one by one, held claims are refused with the reason and the way out."""
    if database.row_locks:
        assert begin(queue_engine) is None
        return
    with pytest.raises(DatabaseNotSupported, match=r"cannot hold claims: SQLite locks the whole file.* Use claim='leased'"):
        begin(queue_engine)


@BOTH
def test_skip_locked_that_does_not_lock_is_refused(database, queue_engine, begin):
    """A server that parses SKIP LOCKED and does not lock is refused, and the probe leaves nothing behind."""
    database.require("row_locks")
    rewrite(queue_engine, lambda statement: statement.replace(" FOR UPDATE SKIP LOCKED", ""))
    job_id = add(queue_engine)
    with pytest.raises(DatabaseNotSupported, match=r"cannot hold claims: its SKIP LOCKED does not .*Use claim='leased'"):
        begin(queue_engine)

    assert ([job_id], []) == ([row.job_id for row in queued(queue_engine)], archived(queue_engine))
    assert 0 == queue_engine.pool.checkedout()


@pytest.mark.timeout(20)  # seconds: MySQL would wait for 50
@BOTH
def test_skip_locked_that_waits_is_refused_soon(database, queue_engine, begin):
    """A server that waits for locked rows instead of skipping them is refused too, after about a second."""
    database.require("row_locks")
    rewrite(queue_engine, lambda statement: statement.replace(" SKIP LOCKED", ""))
    with pytest.raises(DatabaseNotSupported, match=r"cannot hold claims: its SKIP LOCKED does not .*Use claim='leased'"):
        begin(queue_engine)

    assert [] == queued(queue_engine)


@pytest.mark.parametrize("kind", ["first", "second"])
def test_a_probe_that_fails_leaves_no_row_behind(database, queue_engine, kind):
    """An error in the middle of the probe travels, and the probe's row is gone all the same."""
    database.require("row_locks")
    claims: list[str] = []

    def fail_at_the_claim(statement):
        if "SKIP LOCKED" not in statement:
            return statement
        claims.append(statement)
        return "SELECT nonsense FROM nowhere" if len(claims) == (1 if kind == "first" else 2) else statement

    rewrite(queue_engine, fail_at_the_claim)
    with pytest.raises(sa.exc.DBAPIError, match="nowhere"):
        start(queue_engine)

    assert ["first", "second"].index(kind) + 1 == len(claims)
    assert [] == queued(queue_engine)
    assert 0 == queue_engine.pool.checkedout()


@BOTH
def test_a_probe_of_a_process_that_was_killed_is_swept(database, queue_engine, begin):
    """A row that a killed process has left is deleted by the next one after an hour, and no other row is."""
    database.require("row_locks")
    now = dt.datetime.now(dt.UTC)
    ages = {"proletarian-sa probe 0123456789abcdef": 61, "proletarian-sa probe fedcba9876543210": 50, "proletarian-sa probes": 61}
    with queue_engine.begin() as connection:
        for queue, minutes in ages.items():
            job_id = enqueue(connection, "probe", queue=queue)
            then = now - dt.timedelta(minutes=minutes)
            job = default_tables.job
            connection.execute(job.update().where(job.c.job_id == job_id).values(enqueued_at=then))
    begin(queue_engine)

    assert ["proletarian-sa probe fedcba9876543210", "proletarian-sa probes"] == sorted(row.queue for row in queued(queue_engine))


def test_workers_that_start_at_once_do_not_disturb_each_other(database, queue_engine):
    """Four workers probe one database at the same time, and all of them start."""
    database.require("row_locks")
    barrier, errors = threading.Barrier(4), []

    def begin():
        try:
            barrier.wait(PATIENCE)
            start(queue_engine)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert [] == errors
    assert [] == queued(queue_engine)


def test_a_worker_starts_beside_jobs_that_are_held(database, queue_engine, work):
    """The probe waits for no job that another worker holds."""
    database.require("row_locks")
    gate = Gate()
    for _ in range(3):
        add(queue_engine)
    worker, _ = work(gate, claim="held", worker_threads=3)
    worker.start()
    for _ in range(3):
        gate.begun.get(timeout=PATIENCE)
    engine = database.create_engine()
    start(engine)
    still_held = queued(queue_engine)
    gate.open.set()

    assert 3 == len(still_held)


def test_the_probe_follows_the_engines_schema(database, engine):
    """Both connections of the probe look where the engine's schema_translate_map leads."""
    database.require("row_locks")
    schema = database.create_schema()
    mapped = engine.execution_options(schema_translate_map={default_tables.job.schema: schema})
    create_all(mapped)
    start(mapped)

    assert step(mapped) is None


TABLES: dict[str, Any] = {
    "numbered": lambda: JobTables(job_ids=DatabaseIds()),
    "constant": lambda: JobTables(job_ids=ConstantIds(7)),
    "named": lambda: JobTables(job_table="order", archived_job_table="done order"),
    "under a clock of its own": lambda: JobTables(clock=ManualClock(dt.datetime(2030, 1, 1, tzinfo=dt.UTC))),
    "under a late clock": lambda: JobTables(clock=ManualClock(dt.datetime(2000, 1, 1, tzinfo=dt.UTC))),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_probe_on_tables_of_ones_own(database, engine, name):
    """The probe works on every pair of tables, with a job in it too."""
    database.require("row_locks")
    tables = TABLES[name]()
    create_all(engine, tables=tables)
    with engine.begin() as connection:
        enqueue(connection, "work", tables=tables)
    start(engine, tables=tables, queue="another")

    assert 1 == len(queued(engine, tables))
    assert "succeeded" == step(engine, tables=tables).status
    assert [] == queued(engine, tables)


class Picky:
    """A serializer that takes nothing but mappings."""

    def encode(self, payload):
        """Refuse everything else."""
        return str(dict(payload))

    def decode(self, text):
        """Return the text."""
        return text


def test_the_probe_needs_no_payload_of_the_applications(database, engine):
    """A serializer that takes payloads of its application only is not asked for another."""
    database.require("row_locks")
    tables = JobTables(serializer=Picky())
    create_all(engine, tables=tables)
    start(engine, tables=tables)

    assert [] == queued(engine, tables)


def test_the_probe_at_the_servers_strictest_isolation(database, queue_engine):
    """The probe's connections are at READ COMMITTED, whatever the engine of the application says."""
    database.require("row_locks")
    for options in ({"isolation_level": "SERIALIZABLE"}, {"execution_options": {"isolation_level": "SERIALIZABLE"}}):
        start(database.create_engine(**options))
    start(database.create_engine(isolation_level="AUTOCOMMIT"))

    assert [] == queued(queue_engine)


def test_a_pool_of_one_connection(database, queue_engine):
    """The probe's second connection does not come from the engine's pool."""
    database.require("row_locks")
    engine = database.create_engine(pool_size=1, max_overflow=0, pool_timeout=2)
    add(queue_engine)

    assert "succeeded" == step(engine).status


ONE_NODE = "a row lock holds on one node only"
GROUP = {"group_replication_group_name": "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"}


@pytest.mark.parametrize(
    ("version", "comment", "variables", "reason"),
    [
        ("8.0.11-TiDB-v7.5.1", "TiDB Server (Apache License 2.0) Community Edition", {}, "it is TiDB"),
        ("8.0.33", "Dolt", {}, "it is Dolt"),
        ("8.0.30-Vitess", "Version: 19.0.4", {}, "it is Vitess"),
        ("10.11.6-MariaDB", "Debian 12", {"wsrep_on": "ON"}, f"Galera cluster (wsrep_on=ON), so {ONE_NODE}"),
        ("8.0.36-28.1", "Percona XtraDB Cluster (GPL)", {"wsrep_on": "1"}, f"Galera cluster (wsrep_on=ON), so {ONE_NODE}"),
        ("8.4.0", "MySQL Community Server - GPL", GROUP | {"group_replication_single_primary_mode": "OFF"}, ONE_NODE),
        ("8.4.0", "MySQL Community Server - GPL", GROUP | {"group_replication_single_primary_mode": "ON"}, None),
        (
            "8.4.0",
            "MySQL Community Server - GPL",
            {"group_replication_group_name": "", "group_replication_single_primary_mode": "OFF"},
            None,
        ),
        ("9.1.0", "MySQL Community Server - GPL", {}, None),
        ("8.0.36-28", "Percona Server (GPL), Release 28", {}, None),
        ("10.11.6-MariaDB-0+deb12u1", "Debian 12", {"wsrep_on": "OFF"}, None),
    ],
)
def test_what_a_server_says_of_itself(version, comment, variables, reason):
    """Servers whose row locks are no sure claim are known by what they say, and others are not taken for them."""
    found = why_not(version, comment, variables)

    if reason is None:
        assert found is None
    else:
        assert reason in found
        assert found.endswith("Use claim='leased'.")


def test_the_probe_on_a_model_that_wants_more_columns(database, engine):
    """Where the application's own columns or constraints refuse the probe's row, held claims work all the same."""
    database.require("row_locks")

    class Base(DeclarativeBase):
        pass

    class Task(JobMixin, Base):
        __job_schema__ = None
        tenant: Mapped[str] = mapped_column(sa.String(10))

    class DoneTask(ArchivedJobMixin, Base):
        __job_schema__ = None
        tenant: Mapped[str] = mapped_column(sa.String(10))

    tables = JobTables(job=Task, archived_job=DoneTask)
    create_all(engine, tables=tables)
    with Session(engine) as session, session.begin():
        session.add(Task(job_type="work", tenant="a"))
    start(engine, tables=tables, queue="another")

    assert "succeeded" == step(engine, tables=tables).status
    assert 0 == engine.pool.checkedout()


def test_a_step_without_tables_says_what_to_type(database, engine):
    """The probe comes before the first claim, and explains missing tables as that does."""
    database.require("row_locks")
    with pytest.raises(TablesMissing, match="proletarian-sa revision"):
        step(engine)
