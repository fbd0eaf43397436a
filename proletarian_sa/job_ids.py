"""Where a job's id comes from: the protocol, and the usual ways."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import MappedColumn, mapped_column
from sqlalchemy.orm.attributes import set_attribute
from uuid_utils.compat import uuid4, uuid7

from proletarian_sa._shorten import shorten
from proletarian_sa.types import uuid_type

if TYPE_CHECKING:
    from collections.abc import Callable

_INT64: Final = range(-(2**63), 2**63)
_FIRST_OF_OURS: Final = 10  # sort_order of the first of our columns


class JobIds(Protocol):
    """Say where job ids come from: `JobTables(job_ids=…)`, or `__job_ids__ = …` on models of the application's own.

    `new` is all that is needed where ids are `uuid.UUID`. A strategy may have these besides:

    - `column_type`: the SQLAlchemy type of the column `job_id` in both tables, such as `sa.String(26)`. Default: the type of
      UUIDs. Its values must be hashable, and come back equal.
    - `made_by_database`: True if the database numbers the jobs; `column_type` is an integer type then, and `new` returns None.
    - `check(value)`: raises TypeError or ValueError unless this is an id. Asked of every new id, those the application gives
      included. Default: the value must be of the Python type of `column_type`.

    An implementation must be safe to call from several threads, must not repeat itself after a fork, and must never return the
    same id twice.

    Example:
        >>> import itertools, sqlalchemy
        >>> class Invoices:
        ...     column_type = sqlalchemy.String(20)
        ...     numbers = itertools.count(1)
        ...     def new(self) -> str:
        ...         return f"invoice-{next(self.numbers)}"
        >>> Invoices().new()
        'invoice-1'
    """

    def new(self) -> Any:
        """Return an id that was never returned before; None if the database makes it."""
        ...


class UUIDv7:
    """Make ids that sort by the time they were made (RFC 9562, version 7): the default.

    Within a process each id is greater than the one before; across machines the order is that of their clocks, to the
    millisecond. New rows then land side by side in the primary key's index, which random ids scatter. The time of
    enqueue can be read from the id: use `UUIDv4` where ids are shown to strangers who must not learn it.
    """

    def new(self) -> uuid.UUID:
        """Return a new id."""
        return uuid7()


class UUIDv4:
    """Make random ids (RFC 9562, version 4), which tell nothing about the job."""

    def new(self) -> uuid.UUID:
        """Return a new id."""
        return uuid4()


_NEED_NO_CHECK: Final[dict[type, Callable[[], uuid.UUID]]] = {UUIDv7: uuid7, UUIDv4: uuid4}


class DatabaseIds:
    """Let the database number the jobs: small ids, in the order of the inserts, that anybody can read and type.

    PostgreSQL: BIGINT, an identity column; MySQL and MariaDB: BIGINT AUTO_INCREMENT; SQLite: INTEGER with AUTOINCREMENT, because
    otherwise it would give the ids of archived jobs again. Numbers of transactions that are rolled back are left out.

    An id is known once its row is inserted: `job.job_id` is None until the flush, and `enqueue` on a session executes its INSERT
    at once. MySQL cannot return the ids of many rows: there a sequence given to `enqueue_many` is inserted row by row; an iterator
    is not.

    An id of the application's own may be given for single jobs. PostgreSQL's counter does not see it: give negative ones, which no
    counter reaches.
    """

    column_type = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    made_by_database = True

    def new(self) -> None:
        """Return None: the database makes the id."""

    def check(self, value: Any) -> None:
        """Refuse what is no number of 64 bits, and 0.

        Raises:
            TypeError: It is no int.
            ValueError: It is 0, for which MySQL takes the next number, or has more than 64 bits.
        """
        _check_int(value)
        if value == 0:
            raise ValueError("job_id must not be 0: MySQL takes that for the next number. Leave it out, or give another.")


class ConstantIds:
    """Make the same id always, for tests: a second job while the first is queued is the database's IntegrityError.

    Args:
        job_id: The id: a `uuid.UUID`, an int of 64 bits, or a str of at most 255 characters. It decides the type of the column.

    Raises:
        TypeError: It is none of these.
    """

    def __init__(self, job_id: uuid.UUID | int | str) -> None:
        types: dict[type, sa.types.TypeEngine[Any]] = {uuid.UUID: uuid_type(), int: sa.BigInteger(), str: sa.String(255)}
        found = types.get(type(job_id))
        if found is None:
            raise TypeError(f"ConstantIds takes a uuid.UUID, an int or a str, not {shorten(job_id)}: ConstantIds(7).")
        self.column_type = found
        self._job_id = job_id

    def new(self) -> uuid.UUID | int | str:
        """Return the id."""
        return self._job_id


def column_type(job_ids: JobIds) -> sa.types.TypeEngine[Any]:
    """Return the type of the column `job_id`."""
    found = getattr(job_ids, "column_type", None)
    if found is None:
        return uuid_type()
    found = found() if isinstance(found, type) else found
    if not isinstance(found, sa.types.TypeEngine):
        raise TypeError(f"column_type of {type(job_ids).__name__} must be a SQLAlchemy type, not {shorten(found)}: sa.String(26).")
    return found


def made_by_database(job_ids: JobIds) -> bool:
    """Return whether the database numbers the jobs."""
    return bool(getattr(job_ids, "made_by_database", False))


def job_id_column(job_ids: JobIds, *, queued: bool) -> MappedColumn[Any]:
    """Return the primary key of a table of queued jobs, or of an archive, which numbers nothing."""
    if queued and made_by_database(job_ids):
        return mapped_column(column_type(job_ids), sa.Identity(), primary_key=True, sort_order=_FIRST_OF_OURS)
    return mapped_column(column_type(job_ids), primary_key=True, autoincrement=False, sort_order=_FIRST_OF_OURS)


def number_anew_after_rollback(model: type[Any]) -> None:
    """Let a job that was rolled back be added once more: SQLite gives its number to the next job.

    SQLAlchemy leaves the number of the row that is gone on the object, and would insert it as if the application had given it.
    """

    def before_insert(_mapper: object, _connection: object, job: Any) -> None:
        if job.job_id is not None and job.job_id == vars(job).get("_numbered"):
            set_attribute(job, "job_id", None)
        vars(job)["_to_be_numbered"] = job.job_id is None

    def after_insert(_mapper: object, _connection: object, job: Any) -> None:
        vars(job)["_numbered"] = job.job_id if vars(job)["_to_be_numbered"] else None

    event.listen(model, "before_insert", before_insert)
    event.listen(model, "after_insert", after_insert)


def unchecked_maker(job_ids: JobIds) -> Callable[[], Any] | None:
    """Return what makes an id at each call, as `new_id` does, and cannot fail; None where each id is to be checked."""
    return _NEED_NO_CHECK.get(type(job_ids))


def new_id(job_ids: JobIds, given: Any = None) -> Any:
    """Return the id of a new job: the one given, or the strategy's; None if the database makes it.

    Raises:
        TypeError: It is of another type than the column's, or there is none.
        ValueError: The strategy refuses it.
    """
    usual = _NEED_NO_CHECK.get(type(job_ids)) if given is None else None
    if usual is not None:
        return usual()
    job_id = job_ids.new() if given is None else given
    if job_id is None:
        if made_by_database(job_ids):
            return None
        raise TypeError(
            f"{type(job_ids).__name__}.new() returned None, no id. Where the database makes them: job_ids=DatabaseIds()."
        )
    check = getattr(job_ids, "check", None)
    if check is not None:
        check(job_id)
    elif getattr(job_ids, "column_type", None) is None:
        if not isinstance(job_id, uuid.UUID):
            raise TypeError(
                f"job_id must be a uuid.UUID, not {job_id!r} ({type(job_id).__name__}). Give uuid.UUID(…), or leave it out; ids of "
                "another type: JobTables(job_ids=…) with a column_type."
            )
    else:
        _check_kind(job_id, python_type(column_type(job_ids)))
    return job_id


def _check_kind(job_id: Any, kind: type[Any] | None) -> None:
    if kind is int:
        _check_int(job_id)
    elif kind is not None and not isinstance(job_id, kind):
        raise TypeError(f"job_id must be a {kind.__name__}, not {job_id!r} ({type(job_id).__name__}), as column_type says.")


def _check_int(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"job_id must be an int, not {value!r} ({type(value).__name__}). Give a number, or leave it out.")
    if value not in _INT64:
        raise ValueError(f"job_id must be an int of 64 bits, not {value}. Give a smaller number, or leave it out.")


def python_type(column_type: sa.types.TypeEngine[Any]) -> type[Any] | None:
    """Return of which Python type a column's values are, None if that is not known."""
    try:
        kind = column_type.python_type
    except NotImplementedError:
        return None
    return None if kind is object else kind


def check_columns(job_ids: JobIds, job: sa.Table, archived_job: sa.Table) -> None:
    """Raise ValueError unless both tables can hold the strategy's ids, and the database numbers jobs where it is to."""
    wanted = python_type(column_type(job_ids))
    for table in (job, archived_job):
        column = table.c.get("job_id")
        if column is None or list(table.primary_key) != [column]:
            keys = ", ".join(key.name for key in table.primary_key)
            raise ValueError(
                f"The primary key of {table.name!r} must be the one column job_id, not {keys}. Leave job_id to the mixin, or: "
                "job_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)."
            )
        found = python_type(column.type)
        if wanted is not None and found is not None and wanted is not found:
            raise ValueError(
                f"{table.name}.job_id is {column.type!r}, for {found.__name__}, but the ids of {type(job_ids).__name__} are "
                f"{wanted.__name__}. Say which ids there are on both models, __job_ids__ = DatabaseIds() for example, or give "
                "JobTables(job_ids=…) that fit the columns."
            )
    if made_by_database(job_ids) and job.autoincrement_column is not job.c.job_id:
        raise ValueError(
            f"{job.name}.job_id is {job.c.job_id.type!r}, which no database numbers, but {type(job_ids).__name__} leaves the ids "
            "to it. Say __job_ids__ = DatabaseIds() on both models, or give JobTables(job_ids=…) that make ids."
        )
