"""The two tables as declarative models, and the one object that carries all that enqueue and worker must agree on."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy import event, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column
from sqlalchemy.orm.attributes import set_committed_value

from proletarian_sa.clock import Clock, as_timedelta, aware_utc
from proletarian_sa.errors import PayloadTooLarge
from proletarian_sa.job_ids import JobIds, UUIDv7
from proletarian_sa.serializers import Serializer, TaggedJSON
from proletarian_sa.types import MYSQL_FAMILY, UTCDateTime, current_time, long_text, uuid_type

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_SCHEMA: Final = "proletarian"
DEFAULT_QUEUE: Final = "default"
MAX_NAME: Final = 255  # characters
MAX_PAYLOAD: Final = 4 * 2**20  # bytes
MAX_DELAY: Final = dt.timedelta(days=366 * 1000)
FALLS_AWAY: Final = "proletarian_sa.schema_falls_away"  # key of Table.info

_MYSQL_OPTIONS = {
    f"{dialect}_{option}": value
    for dialect in MYSQL_FAMILY
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def check_name(value: Any, what: str) -> str:
    """Return a queue name or job type that means the same on every database, or raise.

    Raises:
        TypeError: It is no string.
        ValueError: It is empty, longer than 255 characters, has outer white space, a NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {value!r} ({type(value).__name__}).")
    if not 1 <= len(value) <= MAX_NAME:
        raise ValueError(f"{what} must have 1 to {MAX_NAME} characters; {value[:40]!r} has {len(value)}.")
    if value != value.strip():
        raise ValueError(f"{what} {value!r} has white space at an end, which not every database compares. Give {value.strip()!r}.")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{what} {value!r} has a NUL or a lone surrogate, which databases cannot store.")
    return value


def check_job_id(value: Any) -> uuid.UUID:
    """Return a job id, or raise TypeError."""
    if not isinstance(value, uuid.UUID):
        raise TypeError(f"job_id must be a uuid.UUID, not {value!r} ({type(value).__name__}). Give uuid.UUID(…), or leave it out.")
    return value


def check_delay(value: Any, what: str) -> dt.timedelta:
    """Return a delay as a timedelta: seconds or timedelta, at most a thousand years; a negative one means none."""
    return max(as_timedelta(value, what, maximum=MAX_DELAY), dt.timedelta())


class _Columns:
    """The columns that both tables have, the original's first."""

    job_tables: ClassVar[JobTables]
    __job_schema__: ClassVar[str | None] = DEFAULT_SCHEMA
    __abstract__ = True

    job_id: Mapped[uuid.UUID] = mapped_column(uuid_type(), primary_key=True, sort_order=10)
    queue: Mapped[str] = mapped_column(sa.String(MAX_NAME), nullable=False, sort_order=11)
    job_type: Mapped[str] = mapped_column(sa.String(MAX_NAME), nullable=False, sort_order=12)
    payload_text: Mapped[str] = mapped_column("payload", long_text(), nullable=False, sort_order=13)
    attempts: Mapped[int] = mapped_column(sa.Integer, nullable=False, default=0, sort_order=14)
    enqueued_at: Mapped[dt.datetime] = mapped_column(UTCDateTime, nullable=False, default=current_time(), sort_order=15)
    process_at: Mapped[dt.datetime] = mapped_column(UTCDateTime, nullable=False, default=current_time(), sort_order=16)
    claimed_by: Mapped[str | None] = mapped_column(sa.String(MAX_NAME), nullable=True, sort_order=30)
    crashes: Mapped[int | None] = mapped_column(sa.Integer, nullable=True, sort_order=32)
    last_error: Mapped[str | None] = mapped_column(long_text(), nullable=True, sort_order=33)
    unique_key: Mapped[str | None] = mapped_column(sa.String(MAX_NAME), nullable=True, sort_order=34)
    headers: Mapped[str | None] = mapped_column(long_text(), nullable=True, sort_order=35)

    @property
    def payload(self) -> Any:
        """The payload, decoded anew at each access; `payload_text` is what is stored.

        Raises:
            PayloadError: The stored text cannot be decoded.
        """
        return self.job_tables.serializer.decode(self.payload_text)

    def __repr__(self) -> str:
        state = inspect(self).dict
        shown = ", ".join(f"{name}={state.get(name)!r}" for name in ("job_id", "job_type", "queue", "attempts"))
        return f"{type(self).__name__}({shown})"


def _table_arguments(cls: type[_Columns], indexes: Iterable[sa.Index]) -> tuple[Any, ...]:
    schema = cls.__job_schema__
    options = {**_MYSQL_OPTIONS, "schema": schema, "info": {FALLS_AWAY: schema == DEFAULT_SCHEMA}}
    return (*indexes, options)


class JobMixin(_Columns):
    """The model of a queued job, to be put on the application's own declarative base.

        class Job(JobMixin, Base): ...
        class ArchivedJob(ArchivedJobMixin, Base): ...
        tables = JobTables(job=Job, archived_job=ArchivedJob)

    `__tablename__` defaults to `job`; `__job_schema__` to `proletarian` (None: the connection's own).
    """

    __abstract__ = True
    __tablename__ = "job"

    lease_until: Mapped[dt.datetime | None] = mapped_column(UTCDateTime, nullable=True, sort_order=31)

    @declared_attr.directive
    @classmethod
    def __table_args__(cls) -> tuple[Any, ...]:
        name = cls.__tablename__
        present = sa.text("unique_key IS NOT NULL")
        return _table_arguments(
            cls,
            [
                sa.Index(f"{name}_queue_process_at", "queue", "process_at"),
                # Partial where that exists: a full index over a column that is mostly NULL cost a third of the throughput.
                sa.Index(f"{name}_unique_key", "unique_key", unique=True, postgresql_where=present, sqlite_where=present),
            ],
        )

    def __init__(
        self,
        *,
        job_type: str,
        payload: Any = None,
        queue: str = DEFAULT_QUEUE,
        process_at: dt.datetime | None = None,
        process_in: dt.timedelta | float | None = None,
        job_id: uuid.UUID | None = None,
    ) -> None:
        """Make a job that `session.add` enqueues: it exists if and only if that transaction commits.

        The payload is encoded here, a snapshot; `job_id` is known here and survives commit and expiry. `enqueued_at` and
        a `process_at` of "now" are None until the flush: they are read from the database's clock.

        Args:
            job_type: Which handler runs it; 1 to 255 characters, matched exactly.
            payload: Any value the serializer takes; None by default.
            queue: Which worker runs it; 1 to 255 characters, matched exactly.
            process_at: When it is due, an aware datetime; a past one means now. Default: now.
            process_in: Alternatively, how long after the enqueueing: timedelta or seconds; a negative one means now.
                If both are given, `process_at` wins. It is no column: `session.merge` and the bulk methods do not copy it,
                give `process_at` there.
            job_id: An id of one's own instead of the strategy's.

        Raises:
            TypeError: A value has the wrong type, or the payload holds a type that the serializer does not take.
            ValueError: A naive datetime, a bad name, a payload value that cannot be stored.
            PayloadTooLarge: The encoded payload exceeds the tables' `max_payload`.

        **Transaction:** nothing.
        """
        tables = self.job_tables
        self.job_id = tables.job_ids.new() if job_id is None else check_job_id(job_id)
        self.queue = check_name(queue, "queue")
        self.job_type = check_name(job_type, "job_type")
        self.payload_text = tables.encode(payload)
        self.attempts = 0
        self._process_in = None if process_in is None else check_delay(process_in, "process_in")
        if process_at is not None:
            self._process_in = None
            self.process_at = aware_utc(process_at, "process_at")
        if tables.clock is not None:
            now = self.enqueued_at = tables.clock.now()
            self.process_at = due_time(now, None if process_at is None else self.process_at, self._process_in)

    # A class attribute, because the ORM does not call the constructor when it loads a row.
    _process_in: dt.timedelta | None = None


class ArchivedJobMixin(_Columns):
    """The model of a finished job, to be put on the application's own declarative base. See `JobMixin`."""

    __abstract__ = True
    __tablename__ = "archived_job"

    status: Mapped[str] = mapped_column(sa.String(20), nullable=False, sort_order=20)
    finished_at: Mapped[dt.datetime] = mapped_column(UTCDateTime, nullable=False, sort_order=21)

    @declared_attr.directive
    @classmethod
    def __table_args__(cls) -> tuple[Any, ...]:
        return _table_arguments(cls, [sa.Index(f"{cls.__tablename__}_finished_at", "finished_at")])


def due_time(now: dt.datetime, process_at: dt.datetime | None, process_in: dt.timedelta | None) -> dt.datetime:
    """Return when a job is due: `process_at` before `process_in` before now, and never in the past."""
    if process_at is not None:
        return max(now, process_at)
    return now + (process_in or dt.timedelta())


def _keep_job_id(job: JobMixin, _attributes: object) -> None:
    """Put the id back after expiry: a worker may have archived the row before the producer looks at `job.job_id`."""
    state = inspect(job)
    if state.identity is not None:
        expired = state.expired
        set_committed_value(job, "job_id", state.identity[0])
        state.expired = expired  # else `session.get` would take the object for a fresh one, and not see that its row is gone


event.listen(_Columns, "expire", _keep_job_id, propagate=True)


class _Base(DeclarativeBase):
    """The registry of the default tables, apart from the application's."""


class Job(JobMixin, _Base):
    """A queued job of the default tables."""


class ArchivedJob(ArchivedJobMixin, _Base):
    """A finished job of the default tables."""


class JobTables:
    """One pair of tables with all that enqueue and worker must agree on.

    Both take this object, so the two cannot be given different tables, serializers or clocks.

    Args:
        schema: Schema of the two tables. The default, `proletarian`, falls away on MySQL, MariaDB and SQLite, which have no
            schemas inside a database; another name is honoured on the MySQL family, where it is a database. None: wherever the
            connection looks first.
        job_table: Name of the table of queued jobs.
        archived_job_table: Name of the table of finished jobs.
        job: Instead of names, a model made with `JobMixin` on the application's own base ...
        archived_job: ... and one made with `ArchivedJobMixin`.
        serializer: Turns payloads into text and back; default `TaggedJSON()`.
        job_ids: Makes job ids; default `UUIDv7()`.
        max_payload: Most bytes of an encoded payload, 4 MiB by default; more is refused at enqueue.
        clock: For tests: what time it is. Default None, the database's own clock.

    Raises:
        TypeError: Only one of `job` and `archived_job` is given, or names beside them.

    **Transaction:** nothing.
    """

    def __init__(
        self,
        *,
        schema: str | None = DEFAULT_SCHEMA,
        job_table: str = "job",
        archived_job_table: str = "archived_job",
        job: type[JobMixin] | None = None,
        archived_job: type[ArchivedJobMixin] | None = None,
        serializer: Serializer | None = None,
        job_ids: JobIds | None = None,
        max_payload: int = MAX_PAYLOAD,
        clock: Clock | None = None,
    ) -> None:
        if (job is None) != (archived_job is None):
            raise TypeError("Give both models, JobTables(job=…, archived_job=…), or neither.")
        for model in (job, archived_job):
            if model is not None and "job_tables" in vars(model):
                raise ValueError(
                    f"{model.__name__} belongs to a JobTables already. Use that one, or make models of your own with JobMixin."
                )
        if isinstance(max_payload, bool) or not isinstance(max_payload, int) or max_payload < 1:
            raise ValueError(f"max_payload must be a number of bytes, not {max_payload!r}: max_payload={MAX_PAYLOAD}.")
        if schema is not None:
            check_name(schema, "schema")
        for given, methods, example in (
            (serializer, ("encode", "decode"), "serializer=TaggedJSON()"),
            (job_ids, ("new",), "job_ids=UUIDv7()"),
            (clock, ("now",), "clock=ManualClock(start)"),
        ):
            if given is not None and not all(callable(getattr(given, method, None)) for method in methods):
                raise TypeError(f"{given!r} has no {' and '.join(methods)}: {example}.")
        names = (schema, job_table, archived_job_table)
        if job is not None and names != (DEFAULT_SCHEMA, "job", "archived_job"):
            raise TypeError("Give models or names, not both: a model has its name in __tablename__ and __job_schema__.")
        base = type("_Base", (DeclarativeBase,), {"metadata": sa.MetaData()})
        self.Job: type[JobMixin] = job or type("Job", (JobMixin, base), {"__tablename__": job_table, "__job_schema__": schema})
        self.ArchivedJob: type[ArchivedJobMixin] = archived_job or type(
            "ArchivedJob", (ArchivedJobMixin, base), {"__tablename__": archived_job_table, "__job_schema__": schema}
        )
        self.serializer: Serializer = serializer or TaggedJSON()
        self.job_ids: JobIds = job_ids or UUIDv7()
        self.max_payload = max_payload
        self.clock = clock
        self.built: dict[type, object] = {}  # what the dialects made of these tables
        self.Job.job_tables = self.ArchivedJob.job_tables = self

    @property
    def job(self) -> sa.Table:
        """The table of queued jobs."""
        return _table(self.Job)

    @property
    def archived_job(self) -> sa.Table:
        """The table of finished jobs."""
        return _table(self.ArchivedJob)

    def encode(self, payload: Any) -> str:
        """Return the payload as the text to store.

        Raises:
            TypeError: It holds a type that the serializer does not take.
            ValueError: It holds a value that cannot be stored.
            PayloadTooLarge: The text exceeds `max_payload`.
        """
        text = self.serializer.encode(payload)
        if "\0" in text:
            raise ValueError("The serializer returned text with a NUL, which PostgreSQL cannot store. Escape it.")
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError as error:
            raise ValueError(f"The serializer returned text that is no Unicode: {error}. Escape it.") from error
        if size > self.max_payload:
            raise PayloadTooLarge(
                f"The payload has {size} bytes encoded; at most {self.max_payload} are allowed. Store it elsewhere and enqueue "
                "its key, or raise JobTables(max_payload=…)."
            )
        return text


def _table(model: type[_Columns]) -> sa.Table:
    table = inspect(model).local_table
    if not isinstance(table, sa.Table):
        raise TypeError(f"{model!r} must be mapped to a table of its own, not to {table!r}.")
    return table


default_tables: Final = JobTables(job=Job, archived_job=ArchivedJob)
