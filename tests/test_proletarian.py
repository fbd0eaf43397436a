"""Proletarian's enqueueing and its tables, row by row, under their names there; and a program of its kind beside us."""

import datetime as dt
import uuid

import pytest
import sqlalchemy as sa

from proletarian_sa import (
    JobTables,
    ManualClock,
    PlainJSON,
    RetryStrategy,
    UUIDv4,
    create_all,
    enqueue,
)
from tests.claims import HELD, chosen, process_next_job
from tests.observing import add, clocked_tables
from tests.original import COLUMNS, Original
from tests.queue_contents import archived, queued, run_due

pytestmark = pytest.mark.usefixtures("claim")
leased = pytest.mark.leased  # here: nothing is claimed, so once is enough

START = dt.datetime(2030, 1, 1, 12, 30, 15, 123456, tzinfo=dt.UTC)
SEVEN = COLUMNS.split(", ")


@leased
def test_enqueue_joins_an_open_connection_and_returns_the_id(queue_engine):
    """`enqueue!`: on an open connection the job belongs to its transaction, and the id comes back."""
    with queue_engine.connect() as connection:
        job_id = enqueue(connection, "greet", {"to": "you"})
        assert [] == queued(queue_engine)
        connection.commit()

    (row,) = queued(queue_engine)
    assert job_id == row.job_id
    assert isinstance(job_id, uuid.UUID)


@leased
def test_keywords_are_strings(queue_engine):
    """Job type and queue: what is a namespaced keyword there is a string here, colon and slash included."""
    add(queue_engine, ":your-app.handlers/send-mail", queue=":proletarian/default")
    (job,) = run_due(queue_engine, queue=":proletarian/default")

    assert (":your-app.handlers/send-mail", ":proletarian/default") == (job.job_type, job.queue)


@leased
def test_a_new_job_has_no_attempts_and_the_time(queue_engine):
    """Attempts 0, enqueued-at now; both times are the clock's when nothing else is said."""
    tables = clocked_tables(ManualClock(START))
    add(queue_engine, tables=tables)

    (row,) = queued(queue_engine)
    assert (0, START, START) == (row.attempts, row.enqueued_at, row.process_at)


def test_enqueued_at_never_changes(queue_engine):
    """`enqueued_at` stays through retries and in the archive; `process_at` is the due time of the last run."""
    tables = clocked_tables(clock := ManualClock(START))
    add(queue_engine, tables=tables)
    options = {"tables": tables, "retry": RetryStrategy(retries=1, delays=[60])}
    process_next_job(queue_engine, lambda *_: 1 / 0, **options)
    clock.tick(60)
    process_next_job(queue_engine, lambda *_: None, **options)

    (row,) = archived(queue_engine)
    assert (START, START + dt.timedelta(seconds=60), 2) == (row.enqueued_at, row.process_at, row.attempts)


@leased
def test_one_object_carries_what_enqueue_and_worker_must_agree_on(engine):
    """`:job-table`, `:archived-job-table`, `:serializer`, `:job-id-strategy`, `:clock`: one `JobTables`, given to both."""
    tables = JobTables(
        schema=None,
        job_table="my_job",
        archived_job_table="my_archived_job",
        serializer=PlainJSON(),
        job_ids=UUIDv4(),
        clock=ManualClock(START),
    )
    create_all(engine, tables=tables)
    job_id = add(engine, "greet", {"to": "you"}, tables=tables)
    (ran,) = run_due(engine, tables=tables)

    assert (4, job_id, {"to": "you"}) == (job_id.version, ran.job_id, ran.payload)
    assert [(job_id, START)] == [(row.job_id, row.finished_at) for row in archived(engine, tables)]
    assert {"my_job", "my_archived_job"} == set(sa.inspect(engine).get_table_names())


@leased
def test_the_names_in_the_database(queue_engine):
    """Tables: `proletarian.job`, `proletarian.archived_job`, index `job_queue_process_at` on all of (queue, process_at)."""
    inspector = sa.inspect(queue_engine)
    schema = "proletarian" if queue_engine.dialect.name == "postgresql" else None
    (index,) = (one for one in inspector.get_indexes("job", schema) if one["name"] == "job_queue_process_at")

    assert {"job", "archived_job"} == set(inspector.get_table_names(schema))
    assert ["queue", "process_at"] == index["column_names"]
    assert {} == {name: length for name, length in index.get("dialect_options", {}).items() if name.endswith("_length")}
    assert SEVEN == [column["name"] for column in inspector.get_columns("job", schema)][:7]
    columns = [column["name"] for column in inspector.get_columns("archived_job", schema)]
    assert [*SEVEN, "status", "finished_at"] == columns[:9]


def test_what_the_original_enqueues_is_run_here(queue_engine):
    """A plain INSERT of the original's seven columns is a job; the text of its payload is JSON."""
    job_id = Original(queue_engine).enqueue(":app/greet", '{"to": "you"}', ":proletarian/default")
    (job,) = run_due(queue_engine, queue=":proletarian/default")

    assert (job_id, ":app/greet", {"to": "you"}, 1) == (job.job_id, job.job_type, job.payload, job.attempts)
    assert [("success", 1)] == [(row.status, row.attempts) for row in archived(queue_engine)]


@leased
def test_what_is_enqueued_here_is_run_by_the_original(queue_engine):
    """SELECT … FOR UPDATE, INSERT into the archive by name, DELETE: a worker that knows nothing of our columns finishes a job."""
    job_id = add(queue_engine, "greet", [1])

    assert "greet" == Original(queue_engine).run(status="failure")
    assert [(job_id, "failure", 1)] == [(row.job_id, row.status, row.attempts) for row in archived(queue_engine)]
    assert [] == queued(queue_engine)


def test_a_retry_of_the_original_is_run_here(queue_engine):
    """What it puts back for another attempt is that attempt here, and what we put back is one there."""
    original = Original(queue_engine)
    add(queue_engine)
    original.retry()
    outcome = process_next_job(queue_engine, lambda *_: 1 / 0, retry=RetryStrategy(retries=5))
    assert ("retrying", 2) == (outcome.status, outcome.attempts)

    assert "work" == original.run()
    assert [3] == [row.attempts for row in archived(queue_engine)]


def test_what_the_original_has_taken_is_left_alone(database, queue_engine):
    """A row that a worker of the original has locked is skipped by both kinds of claim, and free after its rollback."""
    database.require("row_locks")
    add(queue_engine)
    with Original(queue_engine).taken() as (_connection, row):
        assert row is not None
        assert process_next_job(queue_engine, lambda *_: None) is None

    assert "succeeded" == process_next_job(queue_engine, lambda *_: None).status


def test_what_is_running_here_beside_a_worker_of_the_original(queue_engine):
    """It skips a held job; a leased one looks free to it, is run there too, and ends as lost here: beside it use held claims."""
    original = Original(queue_engine)
    add(queue_engine, "work")
    taken = []
    outcome = process_next_job(queue_engine, lambda *_: taken.append(original.run()))

    assert ([None] if chosen() == HELD else ["work"]) == taken
    assert ("succeeded" if chosen() == HELD else "lost") == outcome.status
    # A lease has counted the attempt in the row already.
    attempts = 1 if chosen() == HELD else 2
    assert [("success", attempts)] == [(row.status, row.attempts) for row in archived(queue_engine)]
    assert [] == queued(queue_engine)
