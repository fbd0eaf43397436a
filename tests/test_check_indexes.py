"""`proletarian-sa check`: indexes that are missing or different are named and mended."""

from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import default_tables
from tests.catalogue import catalogue
from tests.checking import MYSQL, check, differences, place
from tests.native_client import feed

INDEXES = {
    "columns": ("job_queue_process_at", lambda c: [c.queue], {}, "(queue), must be (queue, process_at)."),
    "order": ("job_queue_process_at", lambda c: [c.process_at, c.queue], {}, "(process_at, queue), must be (queue, process_at)."),
    "not unique": ("job_unique_key", lambda c: [c.unique_key], {"partial": True}, "(unique_key), must be unique (unique_key)."),
    "unique": (
        "job_queue_process_at",
        lambda c: [c.queue, c.process_at],
        {"unique": True},
        "unique (queue, process_at), must be (queue, process_at).",
    ),
    "whole": (
        "job_unique_key",
        lambda c: [c.unique_key],
        {"unique": True},
        "unique (unique_key), must be unique (unique_key) where unique_key is not null.",
    ),
}


def without_index(engine: Any, name: str) -> Any:
    """Drop one of our indexes, and return its table as it is in the models."""
    (index,) = [index for index in default_tables.job.indexes if index.name == name]
    with engine.begin() as connection:
        index.drop(connection)
    return default_tables.job


@pytest.mark.parametrize("case", INDEXES)
def test_a_different_index_is_named_and_mended(database, queue_engine, case):
    """Other columns, another order, uniqueness and the condition of an index are told."""
    name, columns, options, line = INDEXES[case]
    partial = not MYSQL.count(database.url.get_backend_name())
    if case == "whole" and not partial:
        pytest.skip("no partial indexes")
    table = without_index(queue_engine, name).to_metadata(sa.MetaData())
    table.indexes.clear()
    options = dict(options)
    if options.pop("partial", False):
        where = sa.text("unique_key IS NOT NULL")
        options |= {"postgresql_where": where, "sqlite_where": where}
        line = (
            line.replace(").", ") where unique_key is not null.").replace("),", ") where unique_key is not null,")
            if partial
            else line
        )
    with queue_engine.begin() as connection:
        sa.Index(name, *columns(table.c), **options).create(connection)
    found = differences(database)
    feed(database, "\n".join(found.values()))

    assert [f"{place(database)}: the index {name} is {line}"] == list(found)
    assert 0 == check(database.url).exit_code


@pytest.mark.parametrize("name", ["job_queue_process_at", "job_unique_key"])
def test_a_missing_index_is_named_and_mended(database, queue_engine, name):
    """An index that is not there is told, and what is typed makes the one of `create_all`."""
    before = catalogue(queue_engine, default_tables)
    without_index(queue_engine, name)
    found = differences(database)
    feed(database, "\n".join(found.values()))

    assert [f"{place(database)}: there is no index {name}."] == list(found)
    assert before == catalogue(queue_engine, default_tables)


def test_a_unique_constraint_in_place_of_the_index(database, queue_engine):
    """On PostgreSQL an index may belong to a constraint, and goes with that."""
    database.require("transactional_ddl")
    without_index(queue_engine, "job_unique_key")
    feed(database, "ALTER TABLE proletarian.job ADD CONSTRAINT job_unique_key UNIQUE (unique_key);")
    feed(database, "\n".join(differences(database).values()))

    assert 0 == check(database.url).exit_code
