"""Rights that are missing are found at the start of a worker, and explained; nothing else keeps it from starting."""

import shlex
import threading

import pytest
from click.testing import CliRunner

from proletarian_sa import JobTables, QueueWorker, RightsMissing, TablesMissing, check_tables, default_tables, events
from proletarian_sa.cli import main
from tests.observing import PATIENCE, add
from tests.roles import account, bare_role, printed, quoted, role_with, run

JOB, ARCHIVED_JOB = default_tables.job, default_tables.archived_job


def test_a_worker_without_the_rights_does_not_start(database, queue_engine, work):
    """`start` raises, naming the right, the server's reason and the command; its output run by an administrator is the cure."""
    role = role_with(database, "--enqueue-role")
    job_id = add(role)
    worker, seen = work(lambda job: None, role)
    with pytest.raises(RightsMissing, match=r"lacks a right.*job.*denied.*an administrator runs what this prints:") as caught:
        worker.start()
    assert not worker.is_running
    assert ":role@" not in str(caught.value)

    command = str(caught.value).partition("what this prints: proletarian-sa ")[2].partition(". An application")[0]
    printed_text = CliRunner().invoke(main, shlex.split(command)).output
    run(database, printed_text)
    with worker:
        check_tables(role)
        seen.wait_for(events.JobSucceeded, job_id=job_id)


RIGHTS = [(JOB, right) for right in ("SELECT", "UPDATE", "DELETE")]
RIGHTS += [(ARCHIVED_JOB, right) for right in ("SELECT", "INSERT", "UPDATE", "DELETE")]


def test_each_missing_right_is_found_at_the_start(database, queue_engine):
    """A worker that lacks a single right does not start, to fail when a job needs it: the message names right and table."""
    role = role_with(database, "--role")
    given = printed("--url", database.url_text, "--role", str(role.url.username))
    worker = QueueWorker(role, lambda *_: None, polling_interval=3600)
    found = []
    for table, right in RIGHTS:
        line = next(line for line in given.splitlines() if line.startswith("GRANT") and f"{table.name} TO" in line)
        if right not in line:
            continue
        with queue_engine.begin() as connection:
            connection.exec_driver_sql(f"REVOKE {right} ON {quoted(queue_engine, table)} FROM {account(role)}")
        with pytest.raises(RightsMissing) as caught:
            worker.start()
        assert f"{right} on the table {table.name}: " in str(caught.value)
        found.append(right)
        run(database, given)
    with worker:
        assert worker.is_running

    assert 6 == len(found)


def test_enqueuing_is_not_asked_of_a_worker(database, queue_engine, work):
    """A worker whose handlers enqueue nothing starts without INSERT on the queued jobs; held claims need it to be tried."""
    database.require("roles", "row_locks")
    role = role_with(database, "--role")
    with queue_engine.begin() as connection:
        connection.exec_driver_sql(f"REVOKE INSERT ON {quoted(queue_engine, JOB)} FROM {account(role)}")
    worker, seen = work(lambda job: None, role)
    with pytest.raises(RightsMissing, match=r"Trying a held claim on a row of its own: .*denied"):
        worker.with_options(claim="held").start()
    worker.start()
    job_id = add(queue_engine)

    assert job_id == seen.wait_for(events.JobSucceeded).job_id


def test_what_is_no_matter_of_rights_keeps_no_worker_from_starting(database, queue_engine, work):
    """A server that is read-only for now is waited for; and the rights are tried in a way that safe updates allow."""
    database.require("server")
    settings = [{"init_command": f"SET SESSION {what}"} for what in ("TRANSACTION READ ONLY", "sql_safe_updates = 1")]
    if queue_engine.dialect.name == "postgresql":
        settings = [{"options": "-c default_transaction_read_only=on"}]
    for connect_args in settings:
        worker, _ = work(lambda job: None, database.create_engine(connect_args=connect_args), polling_interval=3600)
        worker.start()

        assert worker.is_running
        assert [] == worker.stop()


def test_a_table_that_is_locked_keeps_no_worker_from_starting(database, queue_engine, work):
    """While a backup or an ALTER TABLE has a table locked, the rights are left untried after a second: the worker starts."""
    database.require("row_locks")
    worker, _ = work(lambda job: None, polling_interval=3600)
    starting = threading.Thread(target=worker.start)
    with queue_engine.connect() as locker:
        postgresql = locker.dialect.name == "postgresql"
        name = quoted(queue_engine, ARCHIVED_JOB)
        locker.exec_driver_sql(f"LOCK TABLE {name} IN SHARE MODE" if postgresql else f"LOCK TABLES {name} READ")
        starting.start()
        starting.join(PATIENCE)
        started = not starting.is_alive()
        locker.exec_driver_sql("COMMIT" if postgresql else "UNLOCK TABLES")
    starting.join()

    assert started
    assert worker.is_running


def test_a_role_without_any_right(database, queue_engine):
    """Tables that a role may not see are not said to be missing; neither `check_tables` nor a worker says so."""
    role = bare_role(database)
    with pytest.raises(RightsMissing, match=r"lacks a right.*proletarian-sa grants"):
        QueueWorker(role, print).start()
    unqualified = JobTables(schema=None)
    with queue_engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f'ALTER ROLE {account(role)} SET search_path = "$user", proletarian, public')
    role.dispose()
    with pytest.raises(RightsMissing, match=r"lacks a right.*proletarian-sa grants"):
        check_tables(role, tables=unqualified)


def test_tables_that_are_missing_are_missing(database, engine):
    """Who may see that there is no table is told so."""
    may_look = "GRANT USAGE ON SCHEMA public TO {role}"
    if engine.dialect.name != "postgresql":
        may_look = f"GRANT ALL ON {database.url.database}.* TO {{role}}"
    role = bare_role(database, may_look)
    with pytest.raises(TablesMissing):
        check_tables(role)
    with pytest.raises(TablesMissing):
        check_tables(role, tables=JobTables(schema=None))
