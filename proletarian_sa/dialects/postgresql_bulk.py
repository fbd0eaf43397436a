"""PostgreSQL: rows of new jobs by COPY where that does the same as INSERT, else as arrays in one statement."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from proletarian_sa.dialects.bulk import WRITTEN, NewRow, RowWriter
from proletarian_sa.job_ids import python_type
from proletarian_sa.moments import microseconds, moment
from proletarian_sa.types import UTCDateTime

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy.engine import Connection, Dialect

    from proletarian_sa.models import JobTables

WORTH_ARRAYS: Final = 20
"""Rows from which on arrays are made in less time than the parameters of as many rows."""

WORTH_A_COPY: Final = 100
"""Rows from which on what COPY saves pays for the question whether it is allowed, a round trip more."""

_TEXTS: Final = frozenset({25, 1043})  # text, varchar: the oids of pg_type
_INT4, _INT8, _TIMESTAMPTZ, _UUID = (frozenset({oid}) for oid in (23, 20, 1184, 2950))

_KINDS: Final[Mapping[str, tuple[sa.types.TypeEngine[Any], ...]]] = {
    "queue": (sa.String(), sa.Text()),
    "job_type": (sa.String(), sa.Text()),
    "payload": (sa.String(), sa.Text()),
    "attempts": (sa.Integer(),),
    "enqueued_at": (UTCDateTime(),),
    "process_at": (UTCDateTime(),),
}
"""The types that hand their values to the driver as the library makes them; an application may have put its own in their place."""

_OIDS: Final = {
    "queue": _TEXTS,
    "job_type": _TEXTS,
    "payload": _TEXTS,
    "attempts": _INT4,
    "enqueued_at": _TIMESTAMPTZ,
    "process_at": _TIMESTAMPTZ,
}

_IDS: Final[tuple[tuple[sa.types.TypeEngine[Any], frozenset[int], Callable[[Any], bytes]], ...]] = (
    (sa.Uuid(), _UUID, lambda job_id: job_id.bytes),
    (sa.String(), _TEXTS, str.encode),
    (sa.BigInteger(), _INT8, Struct("!q").pack),
)
"""Of the ids that COPY takes: their types here and in the database, and how they are written."""

# Empty where COPY is refused (row-level security that applies to this role) or would not do what INSERT does (rules, views).
_COLUMNS: Final = sa.text("""
    SELECT a.attname, CAST(a.atttypid AS bigint)
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid
    WHERE c.oid = pg_catalog.to_regclass(CAST(:job AS text)) AND c.relkind IN ('r', 'p') AND NOT c.relhasrules
      AND NOT pg_catalog.row_security_active(c.oid) AND a.attnum > 0 AND NOT a.attisdropped
""").columns(sa.column("attname", sa.Text()), sa.column("atttypid", sa.BigInteger()))

_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"
_ORDER: Final = "attempts, enqueued_at, queue, job_type, process_at, job_id, payload"  # what many rows have alike comes first
_ALIKE: Final = Struct("!hiiiq")
_LENGTH: Final = Struct("!i")
_DUE: Final = Struct("!iqi")
_FIELDS: Final = 7


class PostgreSQLBulk:
    """The statements that insert arrays, and the choice between them, COPY and plain INSERT.

    Args:
        tables: The pair of tables.
    """

    def __init__(self, tables: JobTables) -> None:
        self._job = tables.job
        # Where the ids' strategy has a check of its own, their Python type is not known for certain.
        self._known_ids = not hasattr(tables.job_ids, "check")
        self.with_ids = _insert_arrays(self._job, ids=True)
        self.without_ids = _insert_arrays(self._job, ids=False)

    def writer(self, connection: Connection, now: dt.datetime, count: int) -> RowWriter:
        """Return what inserts rows on this connection; see `BulkInserts.row_writer`."""
        if count < WORTH_ARRAYS or not _is_plain(self._job, connection.dialect):
            return RowWriter(self._job, connection, now)
        if count >= WORTH_A_COPY and self._known_ids and connection.dialect.driver == "psycopg":
            encode_id = _id_encoder(self._job, connection)
            if encode_id is not None:
                return CopyWriter(self, self._job, connection, now, encode_id)
        return ArrayWriter(self, self._job, connection, now)


def _is_plain(job: sa.Table, dialect: Dialect) -> bool:
    """Return whether each column that is written has a type of the library's, and no other has a default that Python makes.

    Such a default is wanted once a row, and SQLAlchemy makes it only for statements that name each row.
    """
    if any(column.default is not None for column in job.c if column.name not in WRITTEN):
        return False
    if job.c.job_id.type.dialect_impl(dialect).bind_expression(sa.bindparam("job_id")) is not None:
        return False
    return all(any(_is_alike(job.c[name].type, kind, dialect) for kind in kinds) for name, kinds in _KINDS.items())


def _is_alike(one: sa.types.TypeEngine[Any], other: sa.types.TypeEngine[Any], dialect: Dialect) -> bool:
    if type(one) is not type(other) or python_type(one) is not python_type(other):
        return False
    return type(one.dialect_impl(dialect)) is type(other.dialect_impl(dialect))


def _id_encoder(job: sa.Table, connection: Connection) -> Callable[[Any], bytes] | None:
    """Return what writes ids for COPY; None where COPY is not allowed, here and now."""
    from proletarian_sa.dialects.psycopg_copy import takes_copy  # noqa: PLC0415 - not everybody has this driver

    if not takes_copy(connection):
        return None
    dialect = connection.dialect
    found = [(oids, encode) for kind, oids, encode in _IDS if _is_alike(job.c.job_id.type, kind, dialect)]
    if not found:
        return None
    oids, encode = found[0]
    columns = {row.attname: row.atttypid for row in connection.execute(_COLUMNS, {"job": quoted_name(job, connection)})}
    wanted = {**_OIDS, "job_id": oids}
    return encode if all(columns.get(name) in oids for name, oids in wanted.items()) else None


def quoted_name(job: sa.Table, connection: Connection) -> str:
    """Return the table's name on this connection, quoted for a text without parameters."""
    preparer = connection.dialect.identifier_preparer
    schema = connection.schema_for_object(job)
    parts = ([] if schema is None else [preparer.quote_schema(schema)]) + [preparer.quote(job.name)]
    return ".".join(parts).replace("%%", "%")  # doubled for texts with parameters


def _insert_arrays(job: sa.Table, *, ids: bool) -> sa.Insert:
    types: dict[str, sa.types.TypeEngine[Any]] = {"queue": sa.Text(), "job_type": sa.Text(), "payload": sa.Text()}
    types["process_at"] = UTCDateTime()
    if ids:
        types["job_id"] = job.c.job_id.type
    arrays = [sa.bindparam(name, type_=postgresql.ARRAY(kind)) for name, kind in types.items()]
    names = [sa.column(name, kind) for name, kind in types.items()]
    given = sa.func.unnest(*arrays).table_valued(*names, name="given").render_derived()
    columns: dict[str, sa.ColumnElement[Any]] = {name: given.c[name] for name in types}
    columns |= {"attempts": sa.literal(0, sa.Integer()), "enqueued_at": sa.bindparam("now", type_=UTCDateTime())}
    return sa.insert(job).from_select(list(columns), sa.select(*columns.values()), include_defaults=False)


class ArrayWriter(RowWriter):
    """Insert rows in one statement that does not grow with their number: each column is an array."""

    def __init__(self, bulk: PostgreSQLBulk, job: sa.Table, connection: Connection, now: dt.datetime) -> None:
        super().__init__(job, connection, now)
        self._bulk = bulk

    def write(self, rows: Sequence[NewRow]) -> None:
        ids, queues, job_types, payloads, due = map(list, zip(*rows, strict=True))
        values = {
            "queue": queues,
            "job_type": job_types,
            "payload": payloads,
            "process_at": [moment(when) for when in due],
            "now": self._now,
        }
        if ids[0] is None:
            self._connection.execute(self._bulk.without_ids, values)
        else:
            self._connection.execute(self._bulk.with_ids, {**values, "job_id": ids})


class CopyWriter(ArrayWriter):
    """Insert rows by binary COPY, which runs triggers and checks and fills in defaults as INSERT does, but no rules."""

    def __init__(
        self, bulk: PostgreSQLBulk, job: sa.Table, connection: Connection, now: dt.datetime, encode_id: Callable[[Any], bytes]
    ) -> None:
        super().__init__(bulk, job, connection, now)
        self._copy = f"COPY {quoted_name(job, connection)} ({_ORDER}) FROM STDIN (FORMAT BINARY)"
        self._encode_id = encode_id
        self._begin = _ALIKE.pack(_FIELDS, 4, 0, 8, microseconds(now))

    def write(self, rows: Sequence[NewRow]) -> None:
        if rows[0][0] is None:
            super().write(rows)
        else:
            self.write_all([rows])

    def write_all(self, chunks: Iterable[Sequence[NewRow]]) -> None:
        from proletarian_sa.dialects.psycopg_copy import copy_in  # noqa: PLC0415 - see above

        copy_in(self._connection, self._copy, self._encoded(chunks))  # the server reads one chunk while the next is encoded

    def _encoded(self, chunks: Iterable[Sequence[NewRow]]) -> Iterator[bytes]:
        """Return the rows as PostgreSQL's manual says under COPY, "Binary Format"; texts are in UTF-8."""
        alike: dict[tuple[str, str], bytes] = {}
        yield _HEADER
        for rows in chunks:
            yield self._encoded_chunk(rows, alike)
        yield _TRAILER

    def _encoded_chunk(self, rows: Sequence[NewRow], alike: dict[tuple[str, str], bytes]) -> bytes:
        encode_id, pack_due, pack_length = self._encode_id, _DUE.pack, _LENGTH.pack
        parts: list[bytes] = []
        append = parts.append
        for job_id, queue, job_type, payload, due in rows:
            begin = alike.get((queue, job_type))
            if begin is None:
                begin = alike[queue, job_type] = self._begin + _field(queue) + _field(job_type)
            key, text = encode_id(job_id), str.encode(payload)
            append(begin)
            append(pack_due(8, due, len(key)))
            append(key)
            append(pack_length(len(text)))
            append(text)
        return b"".join(parts)


def _field(text: str) -> bytes:
    encoded = str.encode(text)
    return _LENGTH.pack(len(encoded)) + encoded
