"""Print the SQL that creates or drops the tables, for the database's own client. Nothing is connected, nothing executed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proletarian_sa.dialects import schema_names
from proletarian_sa.dialects.dialect_definitions import DIALECTS, definitions_of
from proletarian_sa.errors import DatabaseNotSupported
from proletarian_sa.job_ids import DatabaseIds, UUIDv7
from proletarian_sa.models import DEFAULT_SCHEMA, JobTables
from proletarian_sa.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from proletarian_sa.dialects.definitions import Definitions
    from proletarian_sa.job_ids import JobIds

JOB_IDS: Final[dict[str, Callable[[], JobIds]]] = {"uuid": UUIDv7, "database": DatabaseIds}


def ddl(
    dialect: str,
    *,
    schema: str | None = DEFAULT_SCHEMA,
    job_table: str = "job",
    archived_job_table: str = "archived_job",
    job_ids: str = "uuid",
    uninstall: bool = False,
) -> str:
    """Return the SQL that creates the schema, the two tables and their indexes, each unless it is there.

    Args:
        dialect: `postgresql`, `mysql`, `mariadb` or `sqlite`.
        schema: As for `JobTables`.
        job_table: As for `JobTables`.
        archived_job_table: As for `JobTables`.
        job_ids: `uuid`, or `database` for `JobTables(job_ids=DatabaseIds())`.
        uninstall: Drop the two tables instead. The schema stays.

    Raises:
        DatabaseNotSupported: An unknown dialect.
        ValueError: A name that cannot be one, or two tables of one name.

    **Transaction:** nothing.
    """
    definitions = definitions_of(dialect)
    if definitions is None:
        raise DatabaseNotSupported(f"There is no DDL for {dialect!r}. Give --dialect {', '.join(DIALECTS[:-1])} or {DIALECTS[-1]}.")
    tables = tables_on(dialect, schema=schema, job_table=job_table, archived_job_table=archived_job_table, job_ids=job_ids)
    both = (tables.job, tables.archived_job)
    if uninstall:
        statements = [definitions.drop(table) for table in both]
    else:
        statements = [statement for table in both for statement in definitions.create(table)]
        if tables.job.schema is not None:
            statements.insert(0, definitions.create_schema(tables.job.schema))
    return "\n\n".join([_head(definitions, uninstall=uninstall), *(f"{statement};" for statement in statements)]) + "\n"


def tables_on(dialect: str, *, schema: str | None, job_ids: str, job_table: str, archived_job_table: str) -> JobTables:
    """Return the tables that options of a command line describe.

    Raises:
        ValueError: A name that cannot be one, or two tables of one name.

    **Transaction:** nothing.
    """
    if job_table == archived_job_table:
        raise ValueError(f"Both tables are called {job_table!r}: give --job-table and --archived-job-table different names.")
    return JobTables(
        schema=schema_names.schema_on(dialect, schema),
        job_table=job_table,
        archived_job_table=archived_job_table,
        job_ids=JOB_IDS[job_ids](),
    )


def _head(definitions: Definitions, *, uninstall: bool) -> str:
    act = "Drops" if uninstall else "Creates"
    lines = [f"-- {act} the tables of proletarian-sa {__version__} on {definitions.title}. To be run by: {definitions.how}"]
    if uninstall:
        lines.append("-- All jobs are lost.")
        if definitions.has_schemas:
            lines[-1] += " The schema or database of the tables stays: there may be other things in it."
    else:
        lines.append("-- What is there already stays as it is; proletarian-sa check says whether it fits.")
    return "\n".join(lines)
