"""What a revision says of the application's own: columns and constraints added to our tables, and a type of ids."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from alembic.autogenerate import render_op_text
from alembic.operations import ops

from alembic_ext.proletarian_sa.body import MYSQL
from alembic_ext.proletarian_sa.history.v01 import JOB_IDS
from proletarian_sa.job_ids import DatabaseIds, made_by_database
from proletarian_sa.types import BinaryUuid, UTCDateTime, uuid_type

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from alembic.autogenerate.api import AutogenContext

    from proletarian_sa.models import JobTables

_PLAIN_TYPES: Final = {
    UTCDateTime: 'sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")',
    BinaryUuid: "mysql.BINARY(16)",
}


def extras(context: AutogenContext, table: sa.Table, ours: AbstractSet[str]) -> str:
    """Return the lines of `op.create_table` for what the application has added to a model of its own.

    Args:
        context: Alembic's, of which the settings decide how it is written.
        table: The model's.
        ours: The names of our columns.
    """
    return "".join(f"\n    {ast.unparse(part)}," for part in _parts(context, table) if not _is_ours(part, ours))


def id_literals(context: AutogenContext, tables: JobTables) -> str | Mapping[str, str]:
    """Return how a revision writes the column of the ids, as `Names` takes it."""
    if isinstance(tables.job_ids, DatabaseIds):
        return "database"
    text, usual = (_type(context, job_id_type) for job_id_type in (tables.job.c.job_id.type, uuid_type()))
    if text == usual:
        return "uuid"
    if made_by_database(tables.job_ids):
        return {**JOB_IDS["database"], "job_id": text}
    # An integer would be numbered.
    return {"job_id": text, "numbered": "autoincrement=False, ", "never_again": "", "copied": ", autoincrement=False"}


def with_plain_types(given: Any) -> Any:
    """Return a `render_item` that writes our column types, which a foreign key takes over, as what they are in the database."""
    if getattr(given, "writes_plain_types", False):
        return given

    def render_item(kind: str, item: Any, context: AutogenContext) -> Any:
        text = _PLAIN_TYPES.get(type(item)) if kind == "type" else None
        if text is None:
            return given(kind, item, context) if given else False
        context.imports.add(MYSQL)
        return text

    render_item.writes_plain_types = True  # type: ignore[attr-defined]
    return render_item


def _type(context: AutogenContext, column_type: sa.types.TypeEngine[Any]) -> str:
    (column,) = _parts(context, sa.Table("a_table", sa.MetaData(), sa.Column("job_id", column_type)))
    return ast.unparse(column.args[1])


def _parts(context: AutogenContext, table: sa.Table) -> list[Any]:
    """Return columns and constraints as Alembic writes them."""
    (statement,) = ast.parse(render_op_text(context, ops.CreateTableOp.from_table(table))).body
    call: Any = statement.value  # type: ignore[attr-defined]
    return list(call.args[1:])


def _is_ours(part: Any, ours: AbstractSet[str]) -> bool:
    what = ast.unparse(part.func).rpartition(".")[-1]
    if what.endswith("Constraint"):
        return what == "PrimaryKeyConstraint"
    return isinstance(part.args[0], ast.Constant) and part.args[0].value in ours
