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
from alembic.util import CommandError

from alembic_ext.proletarian_sa.body import IMPORT, Names, body
from proletarian_sa.dialects import schema_names
from proletarian_sa.errors import ProletarianError
from proletarian_sa.installed import installed_version, kinds
from proletarian_sa.job_ids import DatabaseIds, made_by_database, python_type
from proletarian_sa.models import JobTables, check_job_tables, default_tables
from proletarian_sa.names import index_name
from proletarian_sa.types import BinaryUuid, UTCDateTime
from proletarian_sa.versions import VERSIONS, latest

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext

_REGISTERED: Final = "proletarian_sa"  # key of MetaData.info
_LOG: Final = logging.getLogger("alembic.autogenerate.proletarian_sa")
_PLAIN_TYPES: Final = {
    UTCDateTime: 'sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")',
    BinaryUuid: "mysql.BINARY(16)",
}


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
        TypeError: This is no MetaData, or no JobTables. At autogenerate: Alembic's CommandError, if a table of that name is there
            and is not ours.

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
    text = render_op_text(context, ops.CreateTableOp(table.name, items, _namespace_metadata=table.metadata))
    (statement,) = ast.parse(text).body
    call: Any = statement.value  # type: ignore[attr-defined]
    return [" ".join((ast.get_source_segment(text, argument) or "").split("\n")) for argument in call.args[1:]]


def _columns(kind: str) -> frozenset[str]:
    """Return the names of our columns, of all versions."""
    return frozenset(chain.from_iterable(version.columns.get(kind, ()) for version in VERSIONS.values()))


class _Pair:
    """One pair of registered tables, and where it lies in this database."""

    def __init__(self, context: AutogenContext, tables: JobTables, metadatas: list[sa.MetaData]) -> None:
        assert context.connection is not None
        self.tables, self._context, self._connection = tables, context, context.connection
        self.schema = schema_names.effective_schema(self._connection, tables.job.schema)
        known = {id(metadata) for metadata in metadatas}
        self.models = {kind: table for kind, table in kinds(tables).items() if id(table.metadata) in known}

    @property
    def is_elsewhere(self) -> bool:
        """Whether Alembic, which knows nothing of schemas that fall away or are not looked at, would not find the models."""
        default = self._connection.dialect.default_schema_name
        hidden = not self._context.opts.get("include_schemas") and self.schema not in {None, default}
        return bool(self.models) and (hidden or self.schema != self.tables.job.schema)

    def run(self, upgrade_ops: ops.UpgradeOps) -> None:
        """Take out what Alembic proposes about our half of the tables, and put in what is right."""
        taken = [op for op in upgrade_ops.ops if self._is_about(op)]
        try:
            version = installed_version(self._connection, self.tables)
        except ProletarianError as error:
            raise CommandError(str(error)) from error
        names = self._names()
        if version < latest():
            change = ChangeTablesOp(names, version, latest(), self.models)
            upgrade_ops.ops[:] = self._replaced(upgrade_ops.ops, change)
            _LOG.info("Tables %s: version %d, to be %d", names.marker, version, latest())
        else:
            upgrade_ops.ops[:] = [op for op in upgrade_ops.ops if not self._is_about(op)]
            if taken:
                _LOG.info("Tables %s: version %d, as it must be", names.marker, version)
        for op in taken:
            if self.models and isinstance(op, ops.ModifyTableOps):
                theirs = [item for item in op.ops if self._is_theirs(op.table_name, item)]
                if theirs:
                    upgrade_ops.ops.append(ops.ModifyTableOps(op.table_name, theirs, schema=op.schema))

    def _replaced(self, given: list[ops.MigrateOperation], change: ChangeTablesOp) -> list[ops.MigrateOperation]:
        """Return the operations with one that makes both tables: after what they refer to, before what refers to them."""
        places = [place for place, op in enumerate(given) if isinstance(op, ops.CreateTableOp) and self._is_about(op)]
        before: list[ops.MigrateOperation] = []
        after: list[ops.MigrateOperation] = []
        ours = {_key(self.schema, table.name) for table in kinds(self.tables).values()}
        for place, op in enumerate(given):
            if self._is_about(op):
                continue
            refers = isinstance(op, ops.CreateTableOp) and bool(_referred(op) & ours)
            if refers:
                ours.add(_key(op.schema, op.table_name))  # type: ignore[attr-defined]
            (before if places and place < max(places) and not refers else after).append(op)
        return [*before, change, *after]

    def _names(self) -> Names:
        tables, ids = self.tables, self.tables.job.c.job_id
        job_ids: Any = "uuid"
        if isinstance(tables.job_ids, DatabaseIds):
            job_ids = "database"
        elif python_type(ids.type) is not uuid.UUID:
            (text,) = _arguments(self._context, tables.job, [sa.Column("job_id", ids.type)])
            kind = ast.parse(text).body[0].value.args[1]  # type: ignore[attr-defined]
            numbered = "sa.Identity(), " if made_by_database(tables.job_ids) else ""
            job_ids = {"job_id": ast.get_source_segment(text, kind) or "", "numbered": numbered, "never_again": "", "copied": ""}
        return Names(tables.job.schema, tables.job.name, tables.archived_job.name, job_ids)

    def _is_about(self, op: Any) -> bool:
        name, schema = getattr(op, "table_name", None), getattr(op, "schema", None)
        default = self._connection.dialect.default_schema_name
        schemas = {place or default for place in (self.schema, self.tables.job.schema)}
        return name in {table.name for table in kinds(self.tables).values()} and (schema or default) in schemas

    def _is_theirs(self, table: str, op: Any) -> bool:
        kind = next(kind for kind, ours in kinds(self.tables).items() if ours.name == table)
        column = getattr(op, "column_name", None) or getattr(getattr(op, "column", None), "name", None)
        suffixes = chain.from_iterable(version.indexes.get(kind, ()) for version in VERSIONS.values())
        indexes = {index_name(table, suffix) for suffix in suffixes}
        named = {getattr(op, name, None) for name in ("index_name", "constraint_name")}
        return column not in _columns(kind) and not named & indexes


def _key(schema: str | None, table: str) -> str:
    return table if schema is None else f"{schema}.{table}"


def _referred(op: ops.CreateTableOp) -> set[str]:
    constraints = (item for item in op.columns if isinstance(item, sa.ForeignKeyConstraint))
    return {element.target_fullname.rpartition(".")[0] for constraint in constraints for element in constraint.elements}


def _compared_again(context: AutogenContext, pairs: list[_Pair], metadatas: list[sa.MetaData]) -> list[ops.MigrateOperation]:
    """Compare the application's MetaData once more, with the models where this database has them."""
    metadata = _translated(pairs, metadatas)
    opts = {**context.opts, "target_metadata": metadata}
    if not context.opts.get("include_schemas"):
        opts |= {"include_schemas": True, "include_name": _only(context, pairs)}
    script = produce_migrations(MigrationContext.configure(connection=context.connection, opts=opts), metadata)
    assert script.upgrade_ops is not None
    return script.upgrade_ops.ops


def _translated(pairs: list[_Pair], metadatas: list[sa.MetaData]) -> sa.MetaData:
    schemas = {id(table): pair.schema for pair in pairs for table in pair.models.values()}

    def referred_schema(_table: sa.Table, _to: Any, constraint: sa.ForeignKeyConstraint, schema: str | None) -> Any:
        return (schemas[id(constraint.referred_table)] or sa.BLANK_SCHEMA) if id(constraint.referred_table) in schemas else schema

    copies = sa.MetaData(naming_convention=metadatas[0].naming_convention)
    for table in chain.from_iterable(metadata.tables.values() for metadata in metadatas):
        schema: Any = schemas.get(id(table), table.schema)  # None is no RETAIN_SCHEMA
        copy = table.to_metadata(copies, schema=schema, referred_schema_fn=referred_schema)
        names = {_definition(index): index.name for index in table.indexes}
        for index in copy.indexes:
            index.name = names.get(_definition(index), index.name)  # of `index=True` it is made anew, with the schema
    return copies


def _definition(index: sa.Index) -> tuple[Any, ...]:
    return (*map(str, (getattr(column, "name", column) for column in index.expressions)), index.unique)


def _only(context: AutogenContext, pairs: list[_Pair]) -> Any:
    """Return the filter that lets in, of other schemas, nothing but our tables."""
    given = context.opts.get("include_name")
    ours = {(pair.schema, table.name) for pair in pairs for table in pair.models.values()}

    def include_name(name: str | None, kind: str, parents: Any) -> bool:
        if kind == "schema" and name is not None and name not in {schema for schema, _ in ours}:
            return False
        schema = parents.get("schema_name")
        if kind == "table" and schema is not None and (schema, name) not in ours:
            return False
        return given is None or bool(given(name, kind, parents))

    return include_name


def _with_plain_types(given: Any) -> Any:
    """Return a `render_item` that writes our column types, which a foreign key takes over, as what they are in the database."""
    if getattr(given, "writes_plain_types", False):
        return given

    def render_item(kind: str, item: Any, context: AutogenContext) -> Any:
        text = _PLAIN_TYPES.get(type(item)) if kind == "type" else None
        if text is None:
            return given(kind, item, context) if given else False
        context.imports.add(IMPORT)
        return text

    render_item.writes_plain_types = True  # type: ignore[attr-defined]
    return render_item


def _compare(context: AutogenContext, upgrade_ops: ops.UpgradeOps, _schemas: Any) -> Any:
    given: Any = context.metadata
    metadatas = [metadata for metadata in (given if isinstance(given, (list, tuple)) else [given]) if metadata is not None]
    pairs = [_Pair(context, tables, metadatas) for metadata in metadatas for tables in metadata.info.get(_REGISTERED, ())]
    if pairs:
        context.opts["render_item"] = _with_plain_types(context.opts.get("render_item"))
    if any(pair.is_elsewhere for pair in pairs):
        upgrade_ops.ops[:] = _compared_again(context, pairs, metadatas)
    for pair in pairs:
        pair.run(upgrade_ops)
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
