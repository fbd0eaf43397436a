"""Names of schemas, tables and indexes: whatever must be quoted, up to what every database can keep."""

import secrets
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import JobTables, check_tables, create_all, drop_all, enqueue, enqueue_many
from proletarian_sa.names import index_name
from tests.observing import claim, lapse
from tests.queue_contents import archived, run_due
from tests.test_tables import tables_there

LONG = "long_" * 11
NAMES = ["_queue", "Queue", "my-queue", "order", "select", f"{LONG}12345", "очередь", "50%s.%%d", "a:b q\"`'{x}$y"]


def schema_of_ones_own(database: Any, engine: sa.Engine, name: str) -> str | None:
    """Return a schema of this name; on MySQL and MariaDB, where it is seen by other tests, of one that begins with it."""
    if engine.dialect.name == "postgresql":
        return name
    if not database.schemas:
        return None
    name = f"{name[:48]}{secrets.token_hex(6)}"
    database.created_schemas.append(name)
    return name


@pytest.mark.parametrize("name", NAMES)
def test_names_in_every_place(database: Any, engine: sa.Engine, name: str):
    """Custom schema name, table names: anything will do; each statement quotes and qualifies, at the first start and the second."""
    schema = schema_of_ones_own(database, engine, name)
    tables = JobTables(schema=schema, job_table=name, archived_job_table=f"{name}_d")
    for start in range(2):
        create_all(engine, tables=tables)
        check_tables(engine, tables=tables)
        with Session(engine) as session, session.begin():
            session.add(tables.Job(job_type="added"))
            enqueue(session.connection(), "core", tables=tables)
            ids = enqueue_many(session, [{"job_type": "many"}], tables=tables)
        with Session(engine) as session:
            states = sa.select(tables.Job.state, sa.func.count()).group_by(tables.Job.state)
            assert [("due", 3)] == [tuple(row) for row in session.execute(states)]
            (job,) = session.scalars(sa.select(tables.Job).where(tables.Job.job_type == "many"))
            assert ids == [job.job_id]
        (first, *_others) = claim(engine, f"lost {start}", limit=1, tables=tables)
        lapse(engine, first.job_id, tables)
        assert 3 == len(run_due(engine, tables=tables))
        assert 3 * (start + 1) == len(archived(engine, tables))

    assert {name, f"{name}_d"} == tables_there(engine, schema)
    drop_all(engine, tables=tables)
    assert set() == tables_there(engine, schema)


def test_long_names_beside_each_other(engine: sa.Engine):
    """Tables of which the names differ at their end only have indexes of their own, under names that the database keeps whole."""
    pairs = [JobTables(schema=None, job_table=f"{LONG}job_{n}", archived_job_table=f"{LONG}done_{n}") for n in (1, 2)]
    for tables in pairs:
        create_all(engine, tables=tables)
        with engine.begin() as connection:
            enqueue(connection, tables.job.name, tables=tables)
    names = set()
    for tables in pairs:
        for table in (tables.job, tables.archived_job):
            there = {index["name"] for index in sa.inspect(engine).get_indexes(table.name)}
            assert {index.name for index in table.indexes} == there
            names |= there

    assert 6 == len(names)
    for tables in pairs:
        assert [tables.job.name] == [job.job_type for job in run_due(engine, tables=tables)]


@pytest.mark.parametrize("table", ["job", "t" * 63, "é" * 31, "очередь" * 4, "名" * 21, "😀" * 15])
@pytest.mark.parametrize("suffix", ["queue_process_at", "unique_key", "finished_at"])
def test_index_names_fit(table: str, suffix: str):
    """An index name has at most 63 bytes and no broken character, ends in what the index is for, and is that of one table."""
    name = index_name(table, suffix)

    assert len(name.encode()) <= 63
    assert name.endswith(f"_{suffix}")
    assert table.startswith(name[:3])
    assert name != index_name(f"{table[:-1]}x", suffix)


def test_index_names_are_stable():
    """What has been created once is found by the same name in every later version."""
    assert "job_queue_process_at" == index_name("job", "queue_process_at")
    assert "t" * 52 + "_unique_key" == index_name("t" * 52, "unique_key")
    assert "t" * 43 + "_cc76a3a7_unique_key" == index_name("t" * 53, "unique_key")


@pytest.mark.parametrize("name", ["x" * 64, "ж" * 32, "", " job", "job ", "a\0b", "%(queue)s", 7, None])
@pytest.mark.parametrize("option", ["schema", "job_table", "archived_job_table"])
def test_names_that_a_database_would_change_are_refused(option: str, name: Any):
    """A name that is cut off, trimmed or not understood somewhere is refused everywhere, named and counted."""
    if (option, name) == ("schema", None):
        assert None is JobTables(schema=None).job.schema
        return
    with pytest.raises((TypeError, ValueError), match=option) as caught:
        JobTables(**{option: name})
    if isinstance(name, str) and len(name) >= 32:
        assert "has 64 bytes in UTF-8; databases keep names of up to 63. Give a shorter one." in str(caught.value)
