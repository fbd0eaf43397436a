"""Let `alembic revision --autogenerate` and `alembic check` keep the queue's tables, and leave them alone otherwise.

A comparator of Alembic's own kind, which is silent unless the application has registered its tables in env.py.
"""

from __future__ import annotations

import ast
import logging
import uuid
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from alembic.autogenerate import comparators, produce_migrations, render_op_text, renderers
from alembic.migration import MigrationContext
from alembic.operations import ops

from alembic_ext.proletarian_sa.body import IMPORT, Names, body
from proletarian_sa.dialects import schema_names
from proletarian_sa.installed import installed_version, kinds
from proletarian_sa.job_ids import DatabaseIds, made_by_database, python_type
from proletarian_sa.models import JobTables, check_job_tables, default_tables
from proletarian_sa.names import index_name
from proletarian_sa.versions import VERSIONS, latest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from alembic.autogenerate.api import AutogenContext

_REGISTERED: Final = "proletarian_sa"  # key of MetaData.info
_OWN_LOGGER: Final = logging.getLogger("alembic.autogenerate.proletarian_sa")


def register(metadata: sa.MetaData, *, tables: JobTables = default_tables) -> sa.MetaData:
    """Say in env.py that the database has the queue's tables, or is to have them.

        target_metadata = register(Base.metadata)

    `alembic revision --autogenerate` then writes what `proletarian-sa revision` would, when the tables are not there or have an
    older version, and otherwise nothing about them: whether the models stand in the application's MetaData or not, and wherever
    the tables lie. Columns, indexes and constraints that the application has added to models of its own are compared as usual.

    Args:
        metadata: The project's, or one of them.
        tables: Which pair of tables; the default one if not given. Call it again for another pair.

    Returns:
        The same `metadata`.

    Raises:
        TypeError: This is no MetaData, or no JobTables.

    **Transaction:** nothing.
    """
    if not isinstance(metadata, sa.MetaData):
        raise TypeError(f"register() takes the project's MetaData, not {metadata!r}: target_metadata = register(Base.metadata).")
    check_job_tables(tables)
    registered = metadata.info.setdefault(_REGISTERED, [])
    if not any(known is tables for known in registered):
        registered.append(tables)
    return metadata


class ChangeTablesOp(ops.MigrateOperation):
    """Lead the tables from one version to another: in a revision, the operations themselves."""

    def __init__(self, names: Names, start: int, end: int, models: dict[str, sa.Table]) -> None:
        self.names, self.start, self.end, self.models = names, start, end, models

    def reverse(self) -> ChangeTablesOp:
        """Lead them back."""
        return ChangeTablesOp(self.names, self.end, self.start, self.models)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Say what `alembic check` prints."""
        return (
            "proletarian_sa_tables",
            self.names.schema,
            self.names.job_table,
            self.names.archived_job_table,
            self.start,
            self.end,
        )


def _render(context: AutogenContext, op: ChangeTablesOp) -> str:
    names = op.names
    if 0 in {op.start, op.end}:
        extras = {kind: _extras(context, kind, table) for kind, table in op.models.items()}
        names = Names(names.schema, names.job_table, names.archived_job_table, names.job_ids, extras)
    context.imports.add(IMPORT)
    return body(names, op.start, op.end)


def _extras(context: AutogenContext, kind: str, table: sa.Table) -> str:
    """Return the lines of `op.create_table` for what the application has added to a model of its own."""
    ours = _columns(kind)
    theirs = [
        *(column for column in table.columns if column.name not in ours),
        *(constraint for constraint in table.constraints if not isinstance(constraint, sa.PrimaryKeyConstraint)),
    ]
    return "".join(f"\n    {text}," for text in _arguments(context, table, theirs))


def _arguments(context: AutogenContext, table: sa.Table, items: list[Any]) -> list[str]:
    """Return columns and constraints as Alembic writes them, each in one line."""
    text = render_op_text(context, ops.CreateTableOp(table.name, items))
    (statement,) = ast.parse(text).body
    call: Any = statement.value  # type: ignore[attr-defined]
    return [" ".join((ast.get_source_segment(text, argument) or "").split("\n")) for argument in call.args[1:]]


def _columns(kind: str) -> frozenset[str]:
    """Return the names of our columns, of all versions."""
    return frozenset(chain.from_iterable(version.columns.get(kind, ()) for version in VERSIONS.values()))


class _Comparison:
    """One pair of registered tables and the database."""

    def __init__(self, context: AutogenContext, tables: JobTables) -> None:
        assert context.connection is not None
        self._context, self._tables = context, tables
        self._connection = context.connection
        self._default_schema = context.connection.dialect.default_schema_name
        self._schema = schema_names.effective_schema(context.connection, tables.job.schema)
        self._metadatas = _metadatas(context)
        self._models = {
            kind: table for kind, table in kinds(tables).items() if any(table.metadata is metadata for metadata in self._metadatas)
        }

    def run(self, upgrade_ops: ops.UpgradeOps) -> None:
        """Take out what Alembic proposes about the tables, and put in what is right."""
        taken = [(place, op) for place, op in enumerate(upgrade_ops.ops) if self._is_about_ours(op)]
        for _, op in taken:
            upgrade_ops.ops.remove(op)
        version = installed_version(self._connection, self._tables)
        if version < latest():
            place = min([place for place, op in taken if isinstance(op, ops.CreateTableOp)], default=0)
            upgrade_ops.ops.insert(place, ChangeTablesOp(self._names(), version, latest(), self._models))
            _OWN_LOGGER.info("Tables %s have version %d, and need %d", self._names().marker, version, latest())
        elif taken:
            _OWN_LOGGER.info("Tables %s are as they must be", self._names().marker)
        if version:
            upgrade_ops.ops.extend(self._of_the_application())
        else:
            upgrade_ops.ops.extend(self._indexes([op for _, op in taken]))

    def _names(self) -> Names:
        tables, ids = self._tables, self._tables.job.c.job_id
        job_ids: Any = "uuid"
        if isinstance(tables.job_ids, DatabaseIds):
            job_ids = "database"
        elif python_type(ids.type) is not uuid.UUID:
            (text,) = _arguments(self._context, tables.job, [sa.Column("job_id", ids.type)])
            kind = ast.parse(text).body[0].value.args[1]  # type: ignore[attr-defined]
            numbered = "sa.Identity(), " if made_by_database(tables.job_ids) else ""
            job_ids = {"job_id": ast.get_source_segment(text, kind) or "", "numbered": numbered, "never_again": "", "copied": ""}
        return Names(tables.job.schema, tables.job.name, tables.archived_job.name, job_ids)

    def _is_about_ours(self, op: ops.MigrateOperation) -> bool:
        name, schema = getattr(op, "table_name", None), getattr(op, "schema", None)
        schemas = {self._named(self._schema), self._named(self._tables.job.schema)}
        return name in {table.name for table in kinds(self._tables).values()} and self._named(schema) in schemas

    def _named(self, schema: str | None) -> str | None:
        return self._default_schema if schema is None else schema

    def _indexes(self, taken: Iterable[ops.MigrateOperation]) -> Iterator[ops.MigrateOperation]:
        """Return what creates the application's own indexes on tables that are not there yet."""
        for op in taken:
            if isinstance(op, ops.ModifyTableOps):
                theirs = [item for item in op.ops if isinstance(item, ops.CreateIndexOp) and self._is_theirs(op.table_name, item)]
                for item in theirs:
                    item.schema = self._schema
                if theirs:
                    yield ops.ModifyTableOps(op.table_name, theirs, schema=self._schema)

    def _of_the_application(self) -> Iterator[ops.MigrateOperation]:
        """Compare models of the application's own once more, in their place in this database, and return what is not ours."""
        if not self._models:
            return
        metadata = self._translated()
        mine = self._context.migration_context
        opts = {**mine.opts, "target_metadata": metadata, "include_schemas": True}
        opts |= {"include_name": self._include_name, "include_object": self._include_object}
        context = MigrationContext.configure(connection=self._connection, opts=opts)
        script = produce_migrations(context, metadata)
        assert script.upgrade_ops is not None
        for op in script.upgrade_ops.ops:
            if isinstance(op, ops.ModifyTableOps):
                theirs = [item for item in op.ops if self._is_theirs(op.table_name, item)]
                if theirs:
                    yield ops.ModifyTableOps(op.table_name, theirs, schema=op.schema)

    def _translated(self) -> sa.MetaData:
        """Return a copy of the application's MetaData in which our tables lie where this database has them."""
        copy = sa.MetaData(naming_convention=self._metadatas[0].naming_convention)
        ours = set(self._models.values())

        def referred_schema(_table: sa.Table, _to: Any, constraint: Any, schema: str | None) -> str | None:
            return self._schema if constraint.referred_table in ours else schema

        for table in chain.from_iterable(metadata.tables.values() for metadata in self._metadatas):
            schema: Any = self._schema if table in ours else table.schema  # None is no RETAIN_SCHEMA
            table.to_metadata(copy, schema=schema, referred_schema_fn=referred_schema)
        return copy

    def _include_name(self, name: str | None, kind: str, parents: Any) -> bool:
        if kind == "schema":
            return self._named(name) == self._named(self._schema)
        if kind == "table" and name not in {table.name for table in self._models.values()}:
            return False
        given = self._context.opts.get("include_name")
        return given is None or bool(given(name, kind, parents))

    def _include_object(self, item: Any, name: str | None, kind: str, reflected: bool, other: Any) -> bool:
        if kind == "table" and (name not in {table.name for table in self._models.values()} or item.schema != self._schema):
            return False
        given = self._context.opts.get("include_object")
        return given is None or bool(given(item, name, kind, reflected, other))

    def _is_theirs(self, table: str, op: Any) -> bool:
        kind = next(kind for kind, ours in kinds(self._tables).items() if ours.name == table)
        column = getattr(op, "column_name", None) or getattr(getattr(op, "column", None), "name", None)
        suffixes = chain.from_iterable(version.indexes.get(kind, ()) for version in VERSIONS.values())
        indexes = {index_name(table, suffix) for suffix in suffixes}
        named = {getattr(op, name, None) for name in ("index_name", "constraint_name")}
        return column not in _columns(kind) and not named & indexes


def _metadatas(context: AutogenContext) -> list[sa.MetaData]:
    given: Any = context.metadata
    return [metadata for metadata in (given if isinstance(given, (list, tuple)) else [given]) if metadata is not None]


def _compare(context: AutogenContext, upgrade_ops: ops.UpgradeOps, _schemas: Any) -> Any:
    for metadata in _metadatas(context):
        for tables in metadata.info.get(_REGISTERED, ()):
            _Comparison(context, tables).run(upgrade_ops)
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
