"""What a live database says of the columns and indexes: nothing is left to a server's defaults."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import create_all, drop_all
from tests.test_tables import ARCHIVED_COLUMNS, JOB_COLUMNS, NULLABLE, default_schema

TIMES = {"enqueued_at", "process_at", "lease_until", "finished_at"}
NAMES = {"queue", "job_type", "claimed_by", "unique_key"}
TEXTS = {"payload", "last_error", "headers"}
NUMBERS = {"attempts", "crashes"}
TABLES = {"job": JOB_COLUMNS, "archived_job": ARCHIVED_COLUMNS}


def every_url(database: Any) -> Iterator[sa.Engine]:
    """Return an engine for each name of a dialect that leads to this database, which is created anew for each."""
    engine = database.create_engine()
    names = [database.url.drivername]
    with engine.connect() as connection:
        if getattr(connection.dialect, "is_mariadb", False):
            names = ["mysql+pymysql", "mariadb+pymysql"]
    for name in names:
        named = sa.create_engine(database.url.set(drivername=name))
        database.engines.append(named)
        create_all(named)
        yield named
        drop_all(named)


def test_columns_by_name(queue_engine: sa.Engine):
    """The original's columns come first, in its order; ours behind them are nullable, but for how and when a job ended."""
    inspector = sa.inspect(queue_engine)
    for table, names in TABLES.items():
        columns = inspector.get_columns(table, schema=default_schema(queue_engine))
        assert names == [column["name"] for column in columns]
        assert [name in NULLABLE for name in names] == [column["nullable"] for column in columns]
        assert ["job_id"] == inspector.get_pk_constraint(table, schema=default_schema(queue_engine))["constrained_columns"]


def test_indexes(database: Any):
    """The claim's index, the unique key and the archive's time: these indexes and no other, since each costs every write."""
    for engine in every_url(database):
        inspector = sa.inspect(engine)
        schema = default_schema(engine)
        found = {
            table: {
                index["name"]: (index["column_names"], bool(index["unique"]))
                for index in inspector.get_indexes(table, schema=schema)
            }
            for table in TABLES
        }

        assert {
            "job": {"job_queue_process_at": (["queue", "process_at"], False), "job_unique_key": (["unique_key"], True)},
            "archived_job": {"archived_job_finished_at": (["finished_at"], False)},
        } == found


def test_the_unique_index_is_partial(queue_engine: sa.Engine):
    """Where an index can leave rows out, that of the unique key leaves out the rows without one."""
    questions = {
        "postgresql": "SELECT indexdef FROM pg_indexes WHERE indexname = 'job_unique_key'",
        "sqlite": "SELECT sql FROM sqlite_master WHERE name = 'job_unique_key'",
    }
    question = questions.get(queue_engine.dialect.name)
    if question is None:
        pytest.skip("no partial indexes")
    with queue_engine.connect() as connection:
        definition = connection.scalar(sa.text(question))

    assert isinstance(definition, str)
    assert "UNIQUE" in definition
    assert "unique_key IS NOT NULL" in definition


def test_types_of_the_mysql_family(database: Any):
    """BINARY(16) ids, as there; long text, microseconds beyond 2038, exact collation, InnoDB; whichever name the URL has."""
    if database.url.get_backend_name() not in ("mysql", "mariadb"):
        pytest.skip("no storage engines")
    for engine in every_url(database):
        with engine.connect() as connection:
            columns = connection.execute(
                sa.text(
                    "SELECT table_name, column_name, column_type, collation_name FROM information_schema.columns "
                    "WHERE table_schema = database()"
                )
            ).all()
            stored = connection.execute(
                sa.text("SELECT table_name, engine, table_collation FROM information_schema.tables WHERE table_schema = database()")
            ).all()
        types: dict[str, str] = {"job_id": "binary(16)", "status": "varchar(20)"}
        types |= dict.fromkeys(TIMES, "datetime(6)") | dict.fromkeys(NAMES, "varchar(255)") | dict.fromkeys(TEXTS, "longtext")

        assert {("job", "InnoDB", "utf8mb4_bin"), ("archived_job", "InnoDB", "utf8mb4_bin")} == {tuple(row) for row in stored}
        assert len(JOB_COLUMNS) + len(ARCHIVED_COLUMNS) == len(columns)
        for _table, name, declared, collation in columns:
            if name in NUMBERS:
                assert declared.startswith("int")
            else:
                assert types[name] == declared
            assert ("utf8mb4_bin" if name in NAMES | TEXTS | {"status"} else None) == collation


def test_types_of_postgresql_and_sqlite(queue_engine: sa.Engine):
    """Ids are UUIDs where there are any, times have a zone or a fixed width, texts no limit."""
    expected = {
        "postgresql": ("UUID", "TIMESTAMP", "TEXT", "VARCHAR(255)", "INTEGER"),
        "sqlite": ("CHAR(32)", "DATETIME", "TEXT", "VARCHAR(255)", "INTEGER"),
    }.get(queue_engine.dialect.name)
    if expected is None:
        pytest.skip("no columns of these types")
    for table in TABLES:
        for column in sa.inspect(queue_engine).get_columns(table, schema=default_schema(queue_engine)):
            groups = ({"job_id"}, TIMES, TEXTS, NAMES, NUMBERS)
            wanted = [kind for kind, names in zip(expected, groups, strict=True) if column["name"] in names] or ["VARCHAR(20)"]
            assert wanted == [str(column["type"])]
            if column["name"] in TIMES:
                assert (queue_engine.dialect.name == "postgresql") == bool(column["type"].timezone)  # type: ignore[attr-defined]


def test_ids_are_stored_as_the_original_stores_them(queue_engine: sa.Engine):
    """The bytes of an id are those that its text has, in the same order."""
    if queue_engine.dialect.name not in ("mysql", "mariadb"):
        pytest.skip("no ids in 16 bytes")
    from proletarian_sa import enqueue  # noqa: PLC0415 - of this test alone

    with queue_engine.begin() as connection:
        job_id = enqueue(connection, "tick")
        assert job_id.hex.upper() == connection.scalar(sa.text("SELECT hex(job_id) FROM job"))
