"""Roles for real: what the printed rights allow, and what the server refuses to those who have fewer."""

import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import (
    DatabaseIds,
    Job,
    JobTables,
    RetryStrategy,
    RightsMissing,
    create_all,
    default_tables,
    drop_all,
    enqueue,
    enqueue_many,
    events,
    process_next_job,
)
from tests.observing import add, claim, lapse
from tests.queue_contents import User, archived, queued, queued_ids
from tests.roles import account, bare_role, printed, quoted, role_with, run

DENIED = r"denied|must be owner"
JOB, ARCHIVED_JOB = default_tables.job, default_tables.archived_job


def refuse(engine: sa.Engine, statement: sa.Executable) -> None:
    """Expect the server to refuse a statement for want of a right."""
    with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError, match=DENIED):
        connection.execute(statement)


@pytest.mark.parametrize("claimed", ["leased", "held"])
def test_a_worker_with_the_run_time_rights(database, app_engine, work, claimed):
    """The printed rights are enough for success, retry, failure, a replaced archive row, a lapsed lease, and `job.session`."""
    database.require("roles", "row_locks")
    role = role_with(database, "--role")
    with app_engine.begin() as connection:
        connection.exec_driver_sql(f"GRANT INSERT ON users TO {account(role)}")

    def handle(job):
        if job.job_type == "write":
            job.session.add(User(id=1, name="Ada"))
            enqueue(job.session, "ok")
        elif job.job_type != "ok" and not (job.job_type == "once" and job.attempts > 1):
            raise LookupError(job.job_type)

    twice = uuid.uuid4()
    with Session(role) as session, session.begin():
        session.add(Job(job_type="ok", job_id=twice))
        enqueue_many(session, [{"job_type": "once"}, {"job_type": "always"}, {"job_type": "write"}])
    lost = add(role, "ok", queue="lost")
    assert [lost] == [job.job_id for job in claim(role, "of a dead worker", queue="lost")]
    lapse(app_engine, lost)
    worker, seen = work(handle, role, claim=claimed, retry=RetryStrategy(retries=1, delays=[0]), worker_threads=2)
    other, lost_seen = work(handle, role, claim=claimed, queue="lost")
    worker.start()
    other.start()
    seen.wait_for(events.JobSucceeded, count=4)
    seen.wait_for(events.JobFailed, job_type="always")
    insert_again(role, twice)
    seen.wait_for(events.ArchiveRowReplaced, job_id=twice)
    seen.wait_for(events.JobSucceeded, count=5)
    lost_seen.wait_for(events.JobSucceeded, job_id=lost)
    assert ([], []) == (worker.stop(), other.stop())

    assert (None, None) == (worker.error, other.error)
    assert [] == queued(app_engine)
    assert ["failure", *["success"] * 5] == sorted(row.status for row in archived(app_engine))
    with Session(app_engine) as session:
        assert "Ada" == session.scalars(sa.select(User.name)).one()


def insert_again(engine: sa.Engine, job_id: uuid.UUID) -> None:
    """Enqueue a job under an id that is in the archive."""
    with Session(engine) as session, session.begin():
        session.add(Job(job_type="ok", job_id=job_id))


def test_no_ddl_for_the_run_time_role(database, queue_engine):
    """The run-time role cannot create, alter, drop, index or empty a table; the rows are as they were."""
    role = role_with(database, "--role")
    job_id = add(queue_engine)
    job, archived_job = quoted(role, JOB), quoted(role, ARCHIVED_JOB)
    place = job.rpartition(".")[0]
    new = f"{place}.new_table" if place else "new_table"

    for table in (job, archived_job):
        for statement in (
            f"TRUNCATE TABLE {table}",
            f"DROP TABLE {table}",
            f"ALTER TABLE {table} ADD COLUMN more INTEGER",
            f"CREATE INDEX more ON {table} (attempts)",
        ):
            refuse(role, sa.text(statement))
    refuse(role, sa.text(f"CREATE TABLE {new} (id INTEGER)"))
    assert {job_id} == queued_ids(role)


def test_an_enqueue_only_role_enqueues(database, queue_engine):
    """INSERT and the right to read back ids and times are enough for every way to enqueue."""
    role = role_with(database, "--enqueue-role")
    rows = [{"job_type": "many"}, {"job_type": "many", "process_in": 5}]
    with Session(role) as session:
        job = Job(job_type="added", payload={"to": "a@b.c"})
        session.add_all([job, Job(job_type="added", process_in=5), Job(job_type="added")])
        session.flush()
        assert job.enqueued_at <= job.process_at
        ids = {enqueue(session, "called"), *enqueue_many(session, rows)}
        assert 2 == enqueue_many(session, iter(rows))
        session.commit()
        ids.add(job.job_id)
    with role.begin() as connection:
        ids |= {enqueue(connection, "core"), enqueue(connection, "core", process_in=5), *enqueue_many(connection, rows)}
        assert 2 == enqueue_many(connection, iter(rows))

    assert ids < queued_ids(queue_engine)
    assert 14 == len(queued(queue_engine))


def test_an_enqueue_only_role_with_ids_of_the_database(database, engine):
    """Numbers of the database need no right beside: an identity column is no sequence that must be granted."""
    tables = JobTables(job_ids=DatabaseIds())
    database.require("roles")
    create_all(engine, tables=tables)
    role = role_with(database, "--enqueue-role", use_insertmanyvalues=False)
    with Session(role) as session, session.begin():
        first = enqueue(session, "called", tables=tables)
        many = enqueue_many(session, [{"job_type": "many"}] * 2, tables=tables)
        assert 2 == enqueue_many(session, iter([{"job_type": "many"}] * 2), tables=tables)
        added = tables.Job(job_type="added")
        session.add(added)
        session.flush()
        ids = [first, *many, added.job_id]

    assert sorted(ids) == ids
    assert set(ids) < queued_ids(engine, tables)


def test_an_enqueue_only_role_does_nothing_else(database, queue_engine):
    """The server refuses it to read a payload, to change, delete or empty jobs, and all of the archive."""
    role = role_with(database, "--enqueue-role")
    job_id = add(queue_engine)
    for statement in (
        sa.select(JOB.c.payload),
        sa.select(JOB),
        sa.update(JOB).values(process_at=JOB.c.enqueued_at),
        sa.delete(JOB),
        sa.delete(JOB).where(JOB.c.job_id == job_id),
        sa.text(f"TRUNCATE TABLE {quoted(role, JOB)}"),
        sa.select(ARCHIVED_JOB.c.job_id),
        sa.select(sa.func.count()).select_from(ARCHIVED_JOB),
        sa.insert(ARCHIVED_JOB).from_select(["job_id"], sa.select(JOB.c.job_id)),
        sa.delete(ARCHIVED_JOB),
    ):
        refuse(role, statement)

    assert {job_id} == queued_ids(queue_engine)


def test_a_schema_made_beforehand(database, engine):
    """Who may create tables in a schema, but no schema, creates and drops the tables in the one that an administrator has made."""
    database.require("roles", "schemas")
    schema = database.create_schema()
    postgresql = engine.dialect.name == "postgresql"
    role = bare_role(
        database, f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {{role}}" if postgresql else f"GRANT ALL ON {schema}.* TO {{role}}"
    )
    elsewhere = role if postgresql else database.create_engine_as(str(role.url.username), connect_args={"database": schema})
    tables, other = JobTables(schema=schema), JobTables(schema=f"{schema}_other")
    create_all(elsewhere, tables=tables)
    create_all(elsewhere, tables=tables)
    with elsewhere.begin() as connection:
        job_id = enqueue(connection, "tick", tables=tables)
    assert job_id == process_next_job(elsewhere, lambda *_: None, tables=tables).job_id
    with pytest.raises((sa.exc.DBAPIError, RightsMissing), match=DENIED):
        create_all(elsewhere, tables=other)

    drop_all(elsewhere, tables=tables)
    assert [] == sa.inspect(engine).get_table_names(schema=schema)


def test_revoking(database, queue_engine):
    """After `--revoke` the role can do nothing more with the tables; with `--create-role` it is gone, and nothing hinders that."""
    role = role_with(database, "--role")
    name = str(role.url.username)
    add(role)
    arguments = ("--url", database.url_text, "--role", name, "--revoke")
    run(database, printed(*arguments))
    role.dispose()
    with pytest.raises(sa.exc.DBAPIError, match=DENIED):
        add(role)
    role.dispose()

    run(database, printed("--url", database.url_text, "--role", name))
    run(database, printed(*arguments, "--create-role"))
    with pytest.raises(sa.exc.DBAPIError), role.connect():
        pass
