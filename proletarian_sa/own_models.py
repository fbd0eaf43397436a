"""Models on the application's own base: made to fit it, or refused with the line to change."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import sqlalchemy as sa
from sqlalchemy import inspect
from sqlalchemy.orm import MappedAsDataclass, declared_attr
from sqlalchemy.orm.attributes import set_committed_value

from proletarian_sa.names import check_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping

Mixin = TypeVar("Mixin", bound=type)


def without_annotations(mixin: Mixin) -> Mixin:
    """Take the annotations off a mixin, which only type checkers need: its columns say all that SQLAlchemy wants to know.

    A base that makes dataclasses, or pydantic models, of its subclasses would take annotated columns for fields of its own.
    """
    mixin.__annotations__ = {}
    for attribute in vars(mixin).values():
        if isinstance(attribute, declared_attr):
            attribute.fget.__annotations__ = {}
    return mixin


def _class_options(model: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a class statement, so that a base that makes dataclasses leaves our constructor alone."""
    if not issubclass(model, MappedAsDataclass):
        return dict(options)
    return {"repr": False, "eq": False, **options, "init": False}


def _own_table_args(model: type) -> tuple[Any, ...]:
    """Return the application's `__table_args__` of a class, as a tuple.

    Raises:
        TypeError: Those are neither a tuple nor a dict.
    """
    own = vars(model)["__table_args__"]
    if isinstance(own, dict):
        return (own,)
    if not isinstance(own, tuple):
        raise TypeError(
            f"{model.__name__}.__table_args__ must be a tuple or a dict, to which ours are added, not {own!r}. "
            "What depends on the class belongs into that class."
        )
    return own


def _with_own_table_args(model: type, ours: tuple[Any, ...], own: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return our table arguments, which end in a dict, with the application's added.

    Raises:
        TypeError: Both have an option.
    """
    options = own[-1] if own and isinstance(own[-1], dict) else {}
    if twice := sorted((options.keys() & ours[-1].keys()) - {"info"}):
        raise TypeError(
            f"{model.__name__}.__table_args__ has {', '.join(twice)}, which the library sets. Leave it out; the schema is "
            "__job_schema__, as the name is __tablename__."
        )
    items = own[:-1] if options else own
    return (*ours[:-1], *items, {**options, **ours[-1], "info": {**options.get("info", {}), **ours[-1]["info"]}})


class OnOwnBase:
    """What makes a mixin fit any base. Two objects are equal if they are the same, whatever the base makes of its classes."""

    __abstract__ = True
    _own_table_args: ClassVar[tuple[Any, ...]] = ()

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @declared_attr.directive
    @classmethod
    def __table_args__(cls) -> tuple[Any, ...]:
        return _with_own_table_args(cls, cls._table_arguments(), cls._own_table_args)

    @classmethod
    def _table_arguments(cls) -> tuple[Any, ...]:
        """Return the library's, which end in a dict."""
        raise NotImplementedError

    def __init_subclass__(cls, **options: Any) -> None:
        if "__table_args__" in vars(cls):
            cls._own_table_args = _own_table_args(cls)
            del cls.__table_args__  # ours stand in the mixin, and look at these
        super().__init_subclass__(**_class_options(cls, options))


def set_columns(job: Any, columns: Mapping[str, Any], base_constructor: Any) -> None:
    """Set columns of the application's own as its base's constructor does, or attribute by attribute where there is none.

    Raises:
        TypeError: There is no such attribute.
    """
    if getattr(base_constructor, "__func__", None) is not None and not dataclasses.is_dataclass(job):
        base_constructor(**columns)
        return
    for name, value in columns.items():
        if not hasattr(type(job), name):
            raise TypeError(f"{name!r} is an invalid keyword argument for {type(job).__name__}")
        setattr(job, name, value)


def keep_job_id(job: Any, _attributes: object) -> None:
    """Put the id back after expiry: a worker may have archived the row before the producer looks at `job.job_id`."""
    if job is None:  # garbage already: only the relationship of an object that has just been expired referred to it
        return
    state = inspect(job)
    if state.identity is not None:
        expired = state.expired
        set_committed_value(job, "job_id", state.identity[0])
        state.expired = expired  # else `session.get` would take the object for a fresh one, and not see that its row is gone


def set_values(job: Any) -> dict[str, Any]:
    """Return the values that an object has, by column: the library's, and those of the application's columns."""
    given = inspect(job).dict
    attributes = inspect(type(job)).column_attrs
    return {attribute.columns[0].name: given[attribute.key] for attribute in attributes if attribute.key in given}


def check_models(*models: tuple[type, type]) -> None:
    """Raise unless these models, each with its mixin, can serve a `JobTables`.

    Raises:
        TypeError: The message says what to change.
        ValueError: One serves another `JobTables`.
    """
    for model, mixin in models:
        _check_model(model, mixin)
        if "job_tables" in vars(model):
            raise ValueError(
                f"{model.__name__} belongs to a JobTables already. Use that one, or make models of your own with JobMixin."
            )


def _check_model(model: type, mixin: type) -> None:
    if not isinstance(model, type):
        raise TypeError(f"{model!r} is no class: JobTables takes models, such as class Job(JobMixin, Base).")
    name = model.__name__
    if not issubclass(model, mixin):
        raise TypeError(f"{name} is not made with {mixin.__name__}: class {name}({mixin.__name__}, Base).")
    maker = _maker(model)
    if not issubclass(maker, mixin):
        raise TypeError(
            f"{name} is constructed by {maker.__name__}, which stands before {mixin.__name__}. Give the mixin first: "
            f"class {name}({mixin.__name__}, …)."
        )
    dataclass = vars(maker).get("__dataclass_params__")
    if dataclass is not None and dataclass.init:
        raise TypeError(f"The dataclass {name} has a constructor of its own in place of ours. Make it with init=False.")
    mapper: Any = inspect(model)
    check_identifier(mapper.local_table.name, f"{name}.__tablename__")
    if mapper.version_id_col is not None:
        raise TypeError(
            f"{name} has a version_id_col, which workers do not count: they write with statements of their own, fenced by "
            "claimed_by. Leave it out of __mapper_args__."
        )


def _maker(model: type) -> type:
    """Return the class that has defined a model's constructor, in place of which SQLAlchemy puts one that calls it."""

    def constructor(cls: type) -> Any:
        found = vars(cls).get("__init__")
        return getattr(found, "_sa_original_init", found)

    return [cls for cls in model.__mro__ if constructor(cls) is constructor(model)][-1]


def check_archive(job: sa.Table, archived_job: sa.Table) -> None:
    """Raise where a finished job could never be copied to the archive.

    Raises:
        TypeError: The archive has a column of the application's that must be given and that the job table has not.
    """
    for column in [*job.c, *archived_job.c]:
        if column.key != column.name:
            raise TypeError(f"{column.table.name}.{column.name} has the key {column.key!r}. Leave key= out of mapped_column.")
    for column in archived_job.c:
        if column.name in job.c and (column.computed or column.identity):
            raise TypeError(
                f"No job could be archived: {archived_job.name}.{column.name} is computed by the database, and {job.name} has a "
                "column of that name, which would be copied. Leave it out of one of them."
            )
        known = column.name in job.c or column.name in ("status", "finished_at")
        given = column.nullable or column.server_default or column.computed or column.identity
        if not known and (column.default or not given):
            raise TypeError(
                f"The database archives jobs by copying them, and {job.name} has no {column.name!r} for {archived_job.name}. "
                "Give it to both models, or with a server_default instead of a default, or make it nullable."
            )


def check_part(given: Any, methods: tuple[str, ...], example: str) -> None:
    """Raise TypeError unless what the application gives to `JobTables` is None or an object with these methods."""
    if isinstance(given, type):
        raise TypeError(f"{given.__name__} is a class; give an object: {example}.")
    if given is not None and not all(callable(getattr(given, method, None)) for method in methods):
        raise TypeError(f"{given!r} has no {' and '.join(methods)}: {example}.")


def check_flag(given: Any, name: str) -> None:
    """Raise TypeError unless this is a bool."""
    if not isinstance(given, bool):
        raise TypeError(f"{name} must be True or False, not {given!r}.")
