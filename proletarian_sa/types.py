"""Column types and clock expressions that behave alike on every database.

The rules that turn the expressions into SQL stand with the dialects (`proletarian_sa.dialects`).
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from proletarian_sa.clock import aware_utc

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Dialect

MYSQL_FAMILY = ("mysql", "mariadb")  # every dialect argument must be given for both names, else one of them ignores it


def _aware(value: dt.datetime | None) -> dt.datetime | None:
    if value is None:
        return None
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


class UTCDateTime(TypeDecorator[dt.datetime]):
    """A moment: aware datetimes in, aware UTC datetimes out, microseconds kept, years 1 to 9999.

    PostgreSQL: TIMESTAMPTZ; MySQL and MariaDB: DATETIME(6) in UTC (TIMESTAMP would end in 2038); SQLite: text of fixed width
    that sorts by time. A naive datetime is a ValueError.
    """

    impl = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *MYSQL_FAMILY)
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: Dialect) -> dt.datetime | None:  # noqa: ARG002 - the signature is SQLAlchemy's
        """Refuse naive datetimes; hand over UTC, of which drivers without time zones take the fields."""
        return None if value is None else aware_utc(value, "a time of a job")

    def process_result_value(self, value: dt.datetime | None, dialect: Dialect) -> dt.datetime | None:  # noqa: ARG002 - see above
        """Return aware UTC."""
        return _aware(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], dt.datetime | None]:
        """Return what is called for each value of a result: a claim reads two for each job, so there is nothing in between."""
        read = self.impl_instance.result_processor(dialect, coltype)
        return _aware if read is None else lambda value: _aware(read(value))

    def column_expression(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Read in UTC: in a session zone east of Greenwich the last hours of year 9999 cannot be loaded at all."""
        return as_utc(column)


class as_utc(FunctionElement[dt.datetime]):  # noqa: N801 - named like an SQL function
    """A time column read in UTC, whatever the session's time zone is."""

    type = UTCDateTime()  # without it the result would not be processed
    inherit_cache = True


class BinaryUuid(TypeDecorator[uuid.UUID]):
    """A UUID in 16 bytes. MariaDB's own UUID type refuses some valid values, and MySQL has none."""

    impl = sa.BINARY(16)
    cache_ok = True

    def process_bind_param(self, value: uuid.UUID | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002 - see above
        """Return the bytes, first digits first."""
        return None if value is None else value.bytes

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> uuid.UUID | None:  # noqa: ARG002 - see above
        """Return the UUID."""
        return None if value is None else uuid.UUID(bytes=bytes(value))


def uuid_type() -> sa.types.TypeEngine[uuid.UUID]:
    """Return the type of UUID job ids: UUID, BINARY(16), or CHAR(32) on SQLite."""
    return sa.Uuid().with_variant(BinaryUuid(), *MYSQL_FAMILY)


def long_text() -> sa.types.TypeEngine[str]:
    """Return text without a length limit of its own: MySQL's plain TEXT ends at 64 KiB."""
    return sa.Text().with_variant(mysql.LONGTEXT(), *MYSQL_FAMILY)


class current_time(FunctionElement[dt.datetime]):  # noqa: N801 - named like an SQL function
    """The database's clock at the moment a row is written. For VALUES and SET."""

    type = UTCDateTime()
    inherit_cache = True


class statement_time(FunctionElement[dt.datetime]):  # noqa: N801 - named like an SQL function
    """The database's clock at the start of the statement. For WHERE: an index can be searched by it."""

    type = UTCDateTime()
    inherit_cache = True


class later(FunctionElement[dt.datetime]):  # noqa: N801 - named like an SQL function
    """`later(moment, delay)`: a moment moved by a delay, a bound timedelta."""

    type = UTCDateTime()
    inherit_cache = True


class latest(FunctionElement[dt.datetime]):  # noqa: N801 - named like an SQL function
    """`latest(a, b)`: the later of two moments."""

    type = UTCDateTime()
    inherit_cache = True


class _Microseconds(TypeDecorator[dt.timedelta]):
    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: dt.timedelta | None, dialect: Dialect) -> int | None:  # noqa: ARG002 - see above
        return None if value is None else value // dt.timedelta(microseconds=1)


def delay_type() -> sa.types.TypeEngine[dt.timedelta]:
    """Return the type of a bound delay: an interval where the database has them, whole microseconds elsewhere."""
    return _Microseconds().with_variant(sa.Interval(), "postgresql")
