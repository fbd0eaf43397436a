"""The tables that the original's scripts make, with jobs in them, and what is in them afterwards."""

import datetime as dt
import uuid
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

MYSQL = ("mysql", "mariadb")
NOW = dt.datetime.now(dt.UTC)
DAY = 86_400  # seconds


def tables(
    engine: sa.Engine, job: str = "job", archive: str = "archived_job", schema: str | None = None, charset: str | None = None
) -> dict[str, sa.Table]:
    """Return the two tables as the scripts define them; SQLite, where the original never ran, has something like them."""
    moment: Any = sa.DateTime(timezone=True).with_variant(mysql.TIMESTAMP(), *MYSQL)
    job_id: Any = sa.LargeBinary().with_variant(sa.UUID(), "postgresql").with_variant(mysql.BINARY(16), *MYSQL)
    first = {"queue": sa.Text(), "job_type": sa.Text(), "payload": sa.Text(), "attempts": sa.Integer()}
    moments = {"enqueued_at": moment, "process_at": moment}
    columns = {
        "job": {**first, **moments},
        "archived_job": {**first, **moments, "status": sa.Text(), "finished_at": moment},
    }
    options = {f"{name}_engine": "InnoDB" for name in MYSQL}
    options |= {f"{name}_charset": charset for name in MYSQL} if charset else {}
    found = {
        kind: sa.Table(
            name,
            sa.MetaData(schema=schema or ("proletarian" if engine.dialect.name == "postgresql" else None)),
            sa.Column("job_id", job_id, primary_key=True),
            *(sa.Column(column, type_, nullable=False) for column, type_ in columns[kind].items()),
            **options,
        )
        for kind, name in (("job", job), ("archived_job", archive))
    }
    prefix = {f"{name}_length": {"queue": 256} for name in MYSQL}
    sa.Index("job_queue_process_at", found["job"].c.queue, found["job"].c.process_at, **prefix)
    return found


def make(engine: sa.Engine, **names: Any) -> None:
    """Make the two tables, under the names that `tables` takes."""
    with engine.begin() as connection:
        for table in tables(engine, **names).values():
            if engine.dialect.name == "postgresql":
                connection.execute(sa.schema.CreateSchema(str(table.schema), if_not_exists=True))
            table.create(connection)


def drop(engine: sa.Engine) -> None:
    """Drop the two tables."""
    with engine.begin() as connection:
        for table in tables(engine).values():
            table.drop(connection)


def fill(engine: sa.Engine, **names: Any) -> None:
    """Put in what the original leaves behind: jobs that are due, retried, planned, succeeded and failed."""
    rows = {
        "job": [
            _row(engine, "default", ":app/send-mail", '{"to": "Ada"}', 0, -60, -60),
            _row(engine, "default", ":app/send-mail", '{"to": "Grace"}', 3, -DAY, -30),
            _row(engine, ":proletarian/default", "größe-日本", '["^ ","~:key","' + "ü" * 20_000 + '"]', 0, -5, DAY),
            _row(engine, "q" * 255, "t" * 255, "null", 1, -5, 400 * DAY),
        ],
        "archived_job": [
            _row(engine, "default", ":app/send-mail", "[1]", 1, -9 * DAY, -9 * DAY, "success", -8 * DAY),
            _row(engine, "default", ":app/send-mail", "[2]", 5, -9 * DAY, -7 * DAY, "failure", -6 * DAY),
        ],
    }
    with in_utc(engine) as connection:
        for kind, table in tables(engine, **names).items():
            connection.execute(table.insert(), rows[kind])


def _row(engine: sa.Engine, *values: Any) -> dict[str, Any]:
    names = ("queue", "job_type", "payload", "attempts", "enqueued_at", "process_at", "status", "finished_at")
    row = dict(zip(names, values, strict=False))
    whole_seconds = engine.dialect.name in MYSQL
    for name in {"enqueued_at", "process_at", "finished_at"} & row.keys():
        moment = NOW + dt.timedelta(seconds=row[name])
        row[name] = moment.replace(microsecond=0, tzinfo=None) if whole_seconds else moment
    job_id = uuid.uuid4()
    return {"job_id": job_id if engine.dialect.name == "postgresql" else job_id.bytes, **row}


def contents(engine: sa.Engine, **names: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows as they are stored, in the original's columns, moments in UTC."""
    with in_utc(engine) as connection:
        return {
            kind: [
                tuple(value.astimezone(dt.UTC) if getattr(value, "tzinfo", None) else value for value in row)
                for row in connection.execute(sa.select(table).order_by("enqueued_at", "job_id"))
            ]
            for kind, table in tables(engine, **names).items()
        }


def in_utc(engine: sa.Engine) -> AbstractContextManager[sa.Connection]:
    """Begin a transaction in a session where what is stored as a moment is read and written in UTC."""
    if engine.dialect.name not in MYSQL:
        return engine.begin()
    url = engine.url.update_query_dict({"init_command": "SET time_zone = '+00:00'"})
    return sa.create_engine(url, poolclass=sa.NullPool).begin()


def shape(engine: sa.Engine) -> dict[str, tuple[dict[str, str], dict[str, Any]]]:
    """Return of each table that is there the columns with their types, and the indexes with their columns."""
    inspector = sa.inspect(engine)
    return {
        kind: (
            {column["name"]: repr(column["type"]) for column in inspector.get_columns(table.name, table.schema)},
            {str(index["name"]): index["column_names"] for index in inspector.get_indexes(table.name, table.schema)},
        )
        for kind, table in tables(engine).items()
        if inspector.has_table(table.name, table.schema)
    }
