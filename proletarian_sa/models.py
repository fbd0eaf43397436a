"""The two tables as declarative models, and the one object that carries all that enqueue and worker must agree on."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy import event, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column
from sqlalchemy.orm.attributes import set_attribute
from sqlalchemy.schema import conv

from proletarian_sa.clock import Clock, aware_utc
from proletarian_sa.due import check_delay, due_time
from proletarian_sa.job_ids import (
    JobIds,
    UUIDv7,
    check_columns,
    job_id_column,
    made_by_database,
    new_id,
    number_anew_after_rollback,
)
from proletarian_sa.names import MAX_NAME, check_identifiers, check_name, index_name
from proletarian_sa.own_models import (
    OnOwnBase,
    check_archive,
    check_flag,
    check_models,
    check_part,
    keep_job_id,
    set_columns,
    without_annotations,
)
from proletarian_sa.payload import PayloadAttribute, encode
from proletarian_sa.serializers import Serializer, TaggedJSON
from proletarian_sa.states import States
from proletarian_sa.types import MYSQL_FAMILY, UTCDateTime, current_time, long_text

if TYPE_CHECKING:
    import uuid

DEFAULT_SCHEMA: Final = "proletarian"
DEFAULT_QUEUE: Final = "default"
MAX_PAYLOAD: Final = 4 * 2**20  # bytes
FALLS_AWAY: Final = "proletarian_sa.schema_falls_away"  # key of Table.info

_MYSQL_OPTIONS = {
    f"{dialect}_{option}": value
    for dialect in MYSQL_FAMILY
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


@without_annotations
class _Columns(OnOwnBase):
    """The columns that both tables have, the original's first."""

    job_tables: ClassVar[JobTables]
    __job_schema__: ClassVar[str | None] = DEFAULT_SCHEMA
    __job_ids__: ClassVar[JobIds] = UUIDv7()
    __abstract__ = True
    # To fetch what the database's clock has said with every INSERT took a tenth of a commit of one job; MySQL cannot do it at all.
    __mapper_args__: ClassVar[dict[str, Any]] = {"eager_defaults": False}

    @classmethod
    def _table_arguments(cls) -> tuple[Any, ...]:
        schema = cls.__job_schema__
        # Without it SQLite gives the number of the last row again once that is archived.
        numbered = {"sqlite_autoincrement": made_by_database(cls.__job_ids__) and issubclass(cls, JobMixin)}
        options = {**_MYSQL_OPTIONS, **numbered, "schema": schema, "info": {FALLS_AWAY: schema == DEFAULT_SCHEMA}}
        return (*cls._indexes(), options)

    @classmethod
    def _indexes(cls) -> list[sa.Index]:
        raise NotImplementedError

    @declared_attr
    @classmethod
    def job_id(cls) -> Mapped[Any]:
        """The job's id, of the type that `__job_ids__` has."""
        return job_id_column(cls.__job_ids__, queued=issubclass(cls, JobMixin))

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

    payload = PayloadAttribute()

    def __repr__(self) -> str:
        state = inspect(self).dict
        shown = ", ".join(f"{name}={state.get(name)!r}" for name in ("job_id", "job_type", "queue", "attempts"))
        return f"{type(self).__name__}({shown})"


@without_annotations
class JobMixin(States, _Columns):
    """The model of a queued job, to be put on the application's own declarative base.

        class Job(JobMixin, Base): ...
        class ArchivedJob(ArchivedJobMixin, Base): ...
        tables = JobTables(job=Job, archived_job=ArchivedJob)

    `__tablename__` defaults to `job`; `__job_schema__` to `proletarian` (None: the connection's own); `__job_ids__` to
    `UUIDv7()`: it says where ids come from, and so decides the type of `job_id`. Say it on both models. Columns and
    `__table_args__` may be added to them.
    """

    __abstract__ = True
    __tablename__ = "job"

    lease_until: Mapped[dt.datetime | None] = mapped_column(UTCDateTime, nullable=True, sort_order=31)

    @classmethod
    def _indexes(cls) -> list[sa.Index]:
        name = cls.__tablename__  # `conv`: whatever the MetaData's naming convention makes of other names, ours are final
        where: Any = dict.fromkeys(("postgresql_where", "sqlite_where"), sa.text("unique_key IS NOT NULL"))
        return [
            sa.Index(conv(index_name(name, "queue_process_at")), "queue", "process_at"),
            # Partial where that exists: a full index over a column that is mostly NULL cost a third of the throughput.
            sa.Index(conv(index_name(name, "unique_key")), "unique_key", unique=True, **where),
        ]

    def __init__(
        self,
        *,
        job_type: str,
        payload: Any = None,
        queue: str = DEFAULT_QUEUE,
        process_at: dt.datetime | None = None,
        process_in: dt.timedelta | float | None = None,
        job_id: Any = None,
        **columns: Any,
    ) -> None:
        """Make a job that `session.add` enqueues: it exists if and only if that transaction commits.

        The payload is encoded here, a snapshot; `job_id` is known here, or where the database makes ids at the flush, and survives
        commit and expiry. `enqueued_at` and a `process_at` of "now" are None until the flush: they are the database's, from
        which they are read when they are first looked at (with an AsyncSession: `await session.refresh(job, ["process_at"])`).

        Args:
            job_type: Which handler runs it; 1 to 255 characters, matched exactly.
            payload: Any value the serializer takes; None by default.
            queue: Which worker runs it; 1 to 255 characters, matched exactly.
            process_at: When it is due, an aware datetime; a past one means now. Default: now.
            process_in: Alternatively, how long after the enqueueing: timedelta or seconds; a negative one means now.
                If both are given, `process_at` wins. It is no column: `session.merge` and the bulk methods do not copy it,
                give `process_at` there.
            job_id: An id of one's own instead of the strategy's, of the column's type: a `uuid.UUID` by default.
            columns: Values of columns that the application has added to its model.

        Raises:
            TypeError: A value has the wrong type, or the payload holds a type that the serializer does not take.
            ValueError: A naive datetime, a bad name, a payload value that cannot be stored.
            PayloadTooLarge: The encoded payload exceeds the tables' `max_payload`.

        **Transaction:** nothing.
        """
        tables = self.job_tables
        values: dict[str, Any] = {
            "queue": check_name(queue, "queue"),
            "job_type": check_name(job_type, "job_type"),
            "payload_text": tables.encode(payload),
            "attempts": 0,
        }
        given = new_id(tables.job_ids, job_id)
        if given is not None:
            values["job_id"] = given
        delay = None if process_in is None or process_at is not None else check_delay(process_in, "process_in")
        if process_at is not None:
            process_at = values["process_at"] = aware_utc(process_at, "process_at")
        if tables.clock is not None:
            now = values["enqueued_at"] = tables.clock.now()
            values["process_at"] = due_time(now, process_at, delay)
        set_columns(self, columns, super().__init__)
        for name, value in values.items():
            set_attribute(self, name, value)  # past a `__setattr__` of the base's
        self._process_in = delay

    # A class attribute, because the ORM does not call the constructor when it loads a row.
    _process_in: dt.timedelta | None = None
    _due_in: dt.timedelta = dt.timedelta()  # known once it is being flushed, where somebody waits


@without_annotations
class ArchivedJobMixin(_Columns):
    """The model of a finished job, to be put on the application's own declarative base. See `JobMixin`."""

    __abstract__ = True
    __tablename__ = "archived_job"

    status: Mapped[str] = mapped_column(sa.String(20), nullable=False, sort_order=20)
    finished_at: Mapped[dt.datetime] = mapped_column(UTCDateTime, nullable=False, sort_order=21)

    @classmethod
    def _indexes(cls) -> list[sa.Index]:
        return [sa.Index(conv(index_name(cls.__tablename__, "finished_at")), "finished_at")]

    def __init__(self, **columns: Any) -> None:
        """Make a row of the archive: of use in tests, for the worker writes them by itself."""
        set_columns(self, columns, super().__init__)


event.listen(_Columns, "expire", keep_job_id, propagate=True)


class _Base(DeclarativeBase):
    """The registry of the default tables, apart from the application's."""


class Job(JobMixin, _Base):
    """A queued job of the default tables.

    To cancel one that nobody has taken yet: `session.execute(delete(Job).where(Job.job_id == job_id, Job.claimed_by.is_(None)))`,
    of which the `rowcount` says whether it came in time. A worker may archive a loaded job at any time: a change is then a
    `StaleDataError` at the flush, `session.delete` only a warning, `session.get(Job, job_id)` None.
    """

    if TYPE_CHECKING:
        job_id: Mapped[uuid.UUID]


class ArchivedJob(ArchivedJobMixin, _Base):
    """A finished job of the default tables; `status` is `success` or `failure`."""

    if TYPE_CHECKING:
        job_id: Mapped[uuid.UUID]


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
        job_ids: Says where job ids come from, and so their type: `UUIDv7()`, `UUIDv4()`, `DatabaseIds()` or your own (`JobIds`).
            Default: `__job_ids__` of `job`, which is `UUIDv7()` unless it says otherwise.
        max_payload: Most bytes of an encoded payload, 4 MiB by default; more is refused at enqueue.
        clock: For tests: what time it is. Default None, the database's own clock.
        notify: On PostgreSQL, enqueue with NOTIFY, and let workers listen, and poll less; elsewhere it does nothing. False by
            default. For the default tables: `default_tables.notify = True`, before anything is enqueued or started.

    Raises:
        TypeError: Only one of `job` and `archived_job` is given, or names beside them.
        ValueError: `job_id` of a model cannot hold the ids that `job_ids` makes.

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
        notify: bool = False,
    ) -> None:
        check_flag(notify, "notify")
        if (job is None) != (archived_job is None):
            raise TypeError("Give both models, JobTables(job=…, archived_job=…), or neither.")
        if job is not None and archived_job is not None:
            check_models((job, JobMixin), (archived_job, ArchivedJobMixin))
        if isinstance(max_payload, bool) or not isinstance(max_payload, int) or max_payload < 1:
            raise ValueError(f"max_payload must be a number of bytes, not {max_payload!r}: max_payload={MAX_PAYLOAD}.")
        check_identifiers(schema=schema, job_table=job_table, archived_job_table=archived_job_table)
        if job_ids is None:
            job_ids = UUIDv7() if job is None else job.__job_ids__
        check_part(job_ids, ("new",), "job_ids=UUIDv7()")
        check_part(serializer, ("encode", "decode"), "serializer=TaggedJSON()")
        check_part(clock, ("now",), "clock=ManualClock(start)")
        names = (schema, job_table, archived_job_table)
        if job is not None and names != (DEFAULT_SCHEMA, "job", "archived_job"):
            raise TypeError("Give models or names, not both: a model has its name in __tablename__ and __job_schema__.")
        base = type("_Base", (DeclarativeBase,), {"metadata": sa.MetaData()})
        self.job_ids: JobIds = job_ids
        facts = {"__job_schema__": schema, "__job_ids__": job_ids}
        self.Job: type[JobMixin] = job or type("Job", (JobMixin, base), {"__tablename__": job_table, **facts})
        self.ArchivedJob: type[ArchivedJobMixin] = archived_job or type(
            "ArchivedJob", (ArchivedJobMixin, base), {"__tablename__": archived_job_table, **facts}
        )
        check_columns(self.job_ids, self.job, self.archived_job)
        check_archive(self.job, self.archived_job)
        self.serializer: Serializer = serializer or TaggedJSON()
        self.max_payload = max_payload
        self.clock = clock
        self.notify = notify
        self.built: dict[type, object] = {}  # what the dialects made of these tables
        self.Job.job_tables = self.ArchivedJob.job_tables = self
        if made_by_database(job_ids):
            number_anew_after_rollback(self.Job)

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
            TypeError: It holds a type that the serializer does not take, or the serializer returned no str.
            ValueError: It holds a value that cannot be stored.
            PayloadTooLarge: The text exceeds `max_payload`.
        """
        return encode(payload, self.serializer, self.max_payload)


def check_job_tables(tables: Any) -> None:
    """Raise TypeError unless this is a `JobTables`."""
    if not isinstance(tables, JobTables):
        raise TypeError(
            f"tables must be a JobTables, not {tables!r}: the one object that both enqueue and worker are given, "
            "tables=JobTables(…). Leave it out for the default tables."
        )


def _table(model: type[_Columns]) -> sa.Table:
    table = inspect(model).local_table
    if not isinstance(table, sa.Table):
        raise TypeError(f"{model!r} must be mapped to a table of its own, not to {table!r}.")
    return table


default_tables: Final = JobTables(job=Job, archived_job=ArchivedJob)
