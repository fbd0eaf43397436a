"""The application's MetaData with our tables where a database has them, and what Alembic says of that."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from alembic.autogenerate import produce_migrations
from alembic.migration import MigrationContext

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from alembic.autogenerate.api import AutogenContext
    from alembic.operations import ops


def translated(schemas: Mapping[sa.Table, str | None], metadatas: list[sa.MetaData]) -> dict[sa.Table, sa.Table]:
    """Return copies of all tables in one MetaData, by the table.

    Args:
        schemas: Where our tables lie in this database, with those that are in none of the MetaData.
        metadatas: The application's.
    """
    copies = sa.MetaData(naming_convention=metadatas[0].naming_convention)

    def referred_schema(_table: sa.Table, _to: Any, constraint: sa.ForeignKeyConstraint, _schema: str | None) -> Any:
        table = constraint.referred_table
        return schemas.get(table, table.schema) or sa.BLANK_SCHEMA

    found: dict[sa.Table, sa.Table] = {}
    for table in dict.fromkeys([*chain.from_iterable(metadata.tables.values() for metadata in metadatas), *schemas]):
        schema: Any = schemas.get(table, table.schema)  # None is no RETAIN_SCHEMA
        found[table] = table.to_metadata(copies, schema=schema, referred_schema_fn=referred_schema)
        _name_alike(table, found[table])
    return found


def _name_alike(table: sa.Table, copy: sa.Table) -> None:
    """Give indexes and constraints their names again: what a column implies is named anew, perhaps by the schema."""
    names = {_definition(item): item.name for item in _named(table)}
    for item in _named(copy):
        item.name = names.get(_definition(item), item.name)


def _named(table: sa.Table) -> list[Any]:
    return [*table.indexes, *table.constraints]


def _definition(item: sa.Index | sa.Constraint) -> tuple[Any, ...]:
    if isinstance(item, sa.Index):
        return (sa.Index, item.unique, *map(str, (getattr(column, "name", column) for column in item.expressions)))
    if isinstance(item, sa.UniqueConstraint | sa.ForeignKeyConstraint):
        return (type(item), *item.columns.keys())
    return (item,)


def compared(
    context: AutogenContext, copies: Mapping[sa.Table, sa.Table], ours: AbstractSet[tuple[str | None, str]]
) -> list[ops.MigrateOperation]:
    """Compare the application's MetaData once more, as copies, with our tables where this database has them."""
    metadata = next(iter(copies.values())).metadata
    opts = {**context.opts, "target_metadata": metadata}
    if not context.opts.get("include_schemas"):
        opts |= {"include_schemas": True, "include_name": _only(context.opts.get("include_name"), ours)}
    script = produce_migrations(MigrationContext.configure(connection=context.connection, opts=opts), metadata)
    assert script.upgrade_ops is not None
    return script.upgrade_ops.ops


def _only(given: Any, ours: AbstractSet[tuple[str | None, str]]) -> Any:
    """Return the filter that lets in, of other schemas, nothing but our tables."""

    def include_name(name: str | None, kind: str, parents: Any) -> bool:
        if kind == "schema" and name is not None:
            return name in {schema for schema, _ in ours}
        schema = parents.get("schema_name")
        if kind == "table" and schema is not None and (schema, name) not in ours:
            return False
        return given is None or bool(given(name, kind, parents))

    return include_name
