"""Let `alembic revision --autogenerate` and `alembic check` keep the queue's tables, and leave them alone otherwise.

A comparator of Alembic's own kind, which is silent unless the application has registered its tables in env.py.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from alembic.autogenerate import comparators, render_op_text, renderers
from alembic.operations import ops
from alembic.util import CommandError

from alembic_ext.proletarian_sa.body import IMPORTS, Names, body
from alembic_ext.proletarian_sa.own_parts import extras, id_literals, with_plain_types
from alembic_ext.proletarian_sa.translated import compared, translated
from proletarian_sa.dialects import schema_names
from proletarian_sa.errors import ProletarianError
from proletarian_sa.installed import installed_version, kinds
from proletarian_sa.models import JobTables, check_job_tables, default_tables
from proletarian_sa.names import index_name
from proletarian_sa.versions import VERSIONS, latest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from alembic.autogenerate.api import AutogenContext

_REGISTERED: Final = "proletarian_sa"  # key of MetaData.info
_LOG: Final = logging.getLogger("alembic.autogenerate.proletarian_sa")


def register(metadata: sa.MetaData, *, tables: JobTables = default_tables) -> sa.MetaData:
    """Say in env.py that the database has the queue's tables, or is to have them.

        target_metadata = register(Base.metadata)

    `alembic revision --autogenerate` then writes what `proletarian-sa revision` would, when the tables are not there or have an
    older version, and otherwise nothing about them: whether the models stand in the application's MetaData or not, and wherever
    the tables lie. Columns, indexes and constraints that the application has added to models of its own are compared as usual,
    if those stand in the project's MetaData.

    Args:
        metadata: The project's, or one of them.
        tables: Which pair of tables; the default one if not given. Call it again for another pair.

    Returns:
        The same `metadata`.

    Raises:
        TypeError: This is no MetaData, or no JobTables. At autogenerate: Alembic's CommandError, if a table of that name is in the
            database, or in the project's MetaData, and is not ours.

    **Transaction:** nothing.
    """
    if not isinstance(metadata, sa.MetaData):
        raise TypeError(
            f"register() takes the project's MetaData, or one of them, not {metadata!r}: target_metadata = register(Base.metadata)."
        )
    check_job_tables(tables)
    names = (tables.job.schema, tables.job.name, tables.archived_job.name)
    metadata.info.setdefault(_REGISTERED, {})[names] = tables  # by name: env.py may run again, and make them anew
    return metadata


class ChangeTablesOp(ops.MigrateOperation):
    """Lead the tables from one version to another: in a revision, the operations themselves.

    Args:
        names: Which tables.
        start: Which version they have.
        end: Which they are to have.
        indexes: The application's own, on tables that are made.
    """

    def __init__(self, names: Names, start: int, end: int, indexes: Iterable[ops.MigrateOperation] = ()) -> None:
        self.names, self.start, self.end, self.indexes = names, start, end, list(indexes)

    def reverse(self) -> ChangeTablesOp:
        """Lead them back."""
        return ChangeTablesOp(self.names, self.end, self.start, self.indexes)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Say what `alembic check` prints."""
        names = self.names
        return ("proletarian_sa_tables", names.schema, names.job_table, names.archived_job_table, self.start, self.end)


def _render(context: AutogenContext, op: ChangeTablesOp) -> str:
    context.imports.update(IMPORTS)
    indexes = op.indexes if op.start < op.end else []  # with a table go its indexes
    return "\n".join([body(op.names, op.start, op.end), *(render_op_text(context, index) for index in indexes)])


class _Pair:
    """One pair of registered tables, and where it lies in this database."""

    def __init__(self, context: AutogenContext, tables: JobTables, metadatas: list[sa.MetaData]) -> None:
        assert context.connection is not None
        self.tables, self._context, self._connection = tables, context, context.connection
        self.schema = schema_names.effective_schema(self._connection, tables.job.schema)
        self._default = self._connection.dialect.default_schema_name
        self.is_inside = any(tables.job.metadata is metadata for metadata in metadatas)
        self.is_referred = any(
            constraint.referred_table in kinds(tables).values()
            for table in chain.from_iterable(metadata.tables.values() for metadata in metadatas)
            for constraint in table.foreign_key_constraints
        )

    @property
    def place(self) -> tuple[str | None, ...]:
        """Where it lies: two that lie in one place are one."""
        return (self._key(self.schema, self.tables.job.name), self._key(self.schema, self.tables.archived_job.name))

    @property
    def is_elsewhere(self) -> bool:
        """Whether Alembic, which knows nothing of schemas that fall away or are not looked at, would not find the models."""
        moved = self.schema != self.tables.job.schema
        hidden = not self._context.opts.get("include_schemas") and self.schema not in {None, self._default}
        return (self.is_inside and (moved or hidden)) or (self.is_referred and moved)

    def check(self, metadatas: list[sa.MetaData]) -> None:
        """Raise if the application has a table of its own in our place: all about it would be taken for ours."""
        ours = kinds(self.tables).values()
        names = {(table.schema, table.name) for table in ours}
        for table in chain.from_iterable(metadata.tables.values() for metadata in metadatas):
            taken = self._key(table.schema, table.name) in self.place or (table.schema, table.name) in names
            if taken and table not in ours:
                raise CommandError(
                    f"The application's MetaData has a table {table.fullname} where one of proletarian-sa is registered. If that "
                    "is a model made with JobMixin: register(metadata, tables=tables), with the JobTables of those. Else rename "
                    "ours: tables = JobTables(job_table='queue_job', archived_job_table='queue_archived_job')."
                )

    def run(self, upgrade_ops: ops.UpgradeOps, copies: Mapping[sa.Table, sa.Table]) -> None:
        """Take out what Alembic proposes about our half of the tables, and put in what is right."""
        try:
            version = installed_version(self._connection, self.tables)
        except ProletarianError as error:
            raise CommandError(str(error)) from error
        given = list(upgrade_ops.ops)
        made: list[Any] = [op for op in given if isinstance(op, ops.CreateTableOp | ops.DropTableOp) and self._is_about(op)]
        indexes: list[ops.MigrateOperation] = []
        if version == 0:
            names = {op.table_name for op in made}
            indexes = [item for op in given if getattr(op, "table_name", None) in names for item in self._theirs(op)]
        if version < latest():
            change = ChangeTablesOp(self._names(copies if version == 0 else {}), version, latest(), indexes)
            upgrade_ops.ops[:] = self._with(change, given, made)
            _LOG.info("Tables %s: version %d, to be %d", change.names.marker, version, latest())
        else:
            upgrade_ops.ops[:] = [op for op in given if self._kept(op, made)]

    def _with(self, change: ChangeTablesOp, given: list[Any], made: list[Any]) -> list[ops.MigrateOperation]:
        """Return the operations with one that makes both tables: after what they refer to, before what refers to them."""
        last = max((place for place, op in enumerate(given) if op in made), default=-1)
        before: list[ops.MigrateOperation] = []
        after: list[ops.MigrateOperation] = []
        later = set(self.place)
        for place, op in enumerate(given):
            if isinstance(op, ops.CreateTableOp):
                targets = [item.referred_table for item in op.columns if isinstance(item, sa.ForeignKeyConstraint)]
                if any(self._key(target.schema, target.name) in later for target in targets):
                    later.add(self._key(op.schema, op.table_name))
            key = self._key(getattr(op, "schema", None), getattr(op, "table_name", ""))
            (before if place < last and key not in later else after).extend(self._kept(op, made))
        return [*before, change, *after]

    def _kept(self, op: Any, made: list[Any]) -> list[ops.MigrateOperation]:
        """Return what is right of a proposal: it, or what it says of the application's half of our tables."""
        if not self._is_about(op):
            return [op]
        if not isinstance(op, ops.ModifyTableOps) or any(op.table_name == other.table_name for other in made):
            return []  # in `made` is also a table that a filter of the application's hides on one side only
        op.ops[:] = self._theirs(op)
        return [op] if op.ops else []

    def _names(self, copies: Mapping[sa.Table, sa.Table]) -> Names:
        tables, own = self.tables, {}
        if self.is_inside:
            own = {
                kind: extras(self._context, copies[table], columns_of(kind))
                for kind, table in kinds(tables).items()
                if table in copies
            }
        job_ids = id_literals(self._context, tables)
        return Names(tables.job.schema, tables.job.name, tables.archived_job.name, job_ids, own)

    def _is_about(self, op: Any) -> bool:
        return self._key(getattr(op, "schema", None), getattr(op, "table_name", None)) in self.place

    def _key(self, schema: str | None, table: str | None) -> str | None:
        return table if schema in {None, self._default} else f"{schema}.{table}"

    def _theirs(self, op: Any) -> list[ops.MigrateOperation]:
        """Return what is said of columns, indexes and constraints that the application has added."""
        if not (self.is_inside and isinstance(op, ops.ModifyTableOps) and self._is_about(op)):
            return []
        kind = next(kind for kind, table in kinds(self.tables).items() if table.name == op.table_name)
        suffixes = chain.from_iterable(version.indexes.get(kind, ()) for version in VERSIONS.values())
        ours = {*columns_of(kind), *(index_name(op.table_name, suffix) for suffix in suffixes)}
        return [item for item in op.ops if not ours & set(_named(item))]


def columns_of(kind: str) -> frozenset[str]:
    """Return the names of our columns of all versions, by what the table is."""
    return frozenset(chain.from_iterable(version.columns.get(kind, ()) for version in VERSIONS.values()))


def _named(op: Any) -> Iterator[Any]:
    """Yield the name of the column, index or constraint that an operation changes."""
    yield getattr(getattr(op, "column", None), "name", None)
    for name in ("column_name", "index_name", "constraint_name"):
        yield getattr(op, name, None)


def _compare(context: AutogenContext, upgrade_ops: ops.UpgradeOps, _schemas: Any) -> Any:
    given: Any = context.metadata
    metadatas = [metadata for metadata in (given if isinstance(given, (list, tuple)) else [given]) if metadata is not None]
    found = [_Pair(context, tables, metadatas) for metadata in metadatas for tables in metadata.info.get(_REGISTERED, {}).values()]
    pairs = list({pair.place: pair for pair in sorted(found, key=lambda pair: pair.is_inside)}.values())
    for pair in pairs:
        pair.check(metadatas)
    if pairs:
        context.opts["render_item"] = with_plain_types(context.opts.get("render_item"))
        copies = translated({table: pair.schema for pair in pairs for table in kinds(pair.tables).values()}, metadatas)
        if any(pair.is_elsewhere for pair in pairs):
            ours = {(pair.schema, table.name) for pair in pairs for table in kinds(pair.tables).values()}
            upgrade_ops.ops[:] = compared(context, copies, ours)
        for pair in pairs:
            pair.run(upgrade_ops, copies)
    return _CONTINUE


try:  # Alembic 1.18 and later run comparators by priority, those before in the order in which they came
    from alembic.util import DispatchPriority, PriorityDispatchResult
except ImportError:
    _CONTINUE: Any = None
    comparators.dispatch_for("schema")(_compare)
else:
    _CONTINUE = PriorityDispatchResult.CONTINUE
    comparators.dispatch_for("schema", priority=DispatchPriority.LAST)(_compare)
renderers.dispatch_for(ChangeTablesOp)(_render)
