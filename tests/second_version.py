"""A second version of the tables, that there may be once: a column in both, and an index."""

from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, mapped_column

from alembic_ext.proletarian_sa.history import HISTORY
from proletarian_sa import ArchivedJobMixin, JobMixin, JobTables, UUIDv7
from proletarian_sa.names import index_name
from proletarian_sa.versions import VERSIONS, Version

ADDED = Version({"job": frozenset({"note"}), "archived_job": frozenset({"note"})}, {"job": frozenset({"job_type"})})

UPGRADE = """\
# Adds a note to each job, and an index.
online = not op.get_context().as_sql

def has(what, table, name):
    # Says whether an interrupted run has made it already.
    return online and any(name == known["name"] for known in getattr(sa.inspect(op.get_bind()), what)(table, schema=schema))

for table in ($job, $archived_job):
    if not has("get_columns", table, "note"):
        op.add_column(table, sa.Column("note", sa.String(255)), schema=schema)
if not has("get_indexes", $job, $job_type_index):
    op.create_index($job_type_index, $job, ["job_type"], schema=schema)
"""

DOWNGRADE = """\
online = not op.get_context().as_sql

def has(what, table, name):
    # Says whether an interrupted run has left it.
    return not online or any(name == known["name"] for known in getattr(sa.inspect(op.get_bind()), what)(table, schema=schema))

if has("get_indexes", $job, $job_type_index):
    op.drop_index($job_type_index, table_name=$job, schema=schema)
for table in ($job, $archived_job):
    if has("get_columns", table, "note"):
        op.drop_column(table, "note", schema=schema)
"""


@pytest.fixture
def second_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be a second version of the tables, which this release needs, although its models do without."""
    module: Any = ModuleType("v02")
    module.UPGRADE, module.DOWNGRADE = UPGRADE, DOWNGRADE
    monkeypatch.setitem(VERSIONS, 2, ADDED)
    monkeypatch.setitem(HISTORY, 2, module)


def second_tables(**names: Any) -> JobTables:
    """Return models that have what the second version adds."""

    class Base(DeclarativeBase):
        pass

    class Job(JobMixin, Base):
        __tablename__ = names.get("job_table", "job")
        __job_schema__ = names.get("schema", "proletarian")
        __job_ids__ = names.get("job_ids") or UUIDv7()
        __table_args__ = (sa.Index(index_name(__tablename__, "job_type"), "job_type"),)
        note = mapped_column(sa.String(255), sort_order=99)

    class ArchivedJob(ArchivedJobMixin, Base):
        __tablename__ = names.get("archived_job_table", "archived_job")
        __job_schema__ = names.get("schema", "proletarian")
        __job_ids__ = names.get("job_ids") or UUIDv7()
        note = mapped_column(sa.String(255), sort_order=99)

    return JobTables(job=Job, archived_job=ArchivedJob)
