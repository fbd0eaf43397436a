"""Print the rights of roles on the tables, for an administrator to read and run. Nothing is connected, nothing executed."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from proletarian_sa.dialects import schema_names
from proletarian_sa.dialects.roles import DIALECTS, JOB_RIGHTS, READ_BACK, roles_of
from proletarian_sa.errors import DatabaseNotSupported
from proletarian_sa.models import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proletarian_sa.dialects.roles import Roles

_BREAKS: Final = {"Cc", "Cs", "Zl", "Zp"}  # Unicode categories; a line break would end a comment


@dataclass(frozen=True)
class _Grant:
    """One right, `RIGHTS ON PLACE`, and what it is for."""

    why: str
    what: str


def grants(
    dialect: str,
    *,
    role: str | None = None,
    enqueue_role: str | None = None,
    schema: str | None = DEFAULT_SCHEMA,
    job_table: str = "job",
    archived_job_table: str = "archived_job",
    database: str | None = None,
    host: str = "%",
    create_role: bool = False,
    revoke: bool = False,
) -> str:
    """Return the SQL that gives roles their rights on the tables, or takes them away.

    Args:
        dialect: `postgresql`, `mysql` or `mariadb`.
        role: A role for workers, and for applications that enqueue, read and run jobs: DML only.
        enqueue_role: A role for applications that enqueue and do nothing else: it cannot read a payload, change or delete a job.
        schema: As for `JobTables`.
        job_table: As for `JobTables`.
        archived_job_table: As for `JobTables`.
        database: MySQL and MariaDB: where the tables lie, unless the schema says so. None: where the statements are run.
        host: MySQL and MariaDB: from where the accounts connect; an empty one makes them roles.
        create_role: Create the roles first; with `revoke`, drop them last.
        revoke: Take the rights away.

    Raises:
        DatabaseNotSupported: A dialect without roles, or an unknown one.
        ValueError: No role is given, or a name that cannot be printed or means something else than a role.

    **Transaction:** nothing.
    """
    roles = roles_of(dialect)
    if roles is None:
        raise DatabaseNotSupported(_why_not(dialect))
    if role is None and enqueue_role is None:
        raise ValueError("Give a role for workers, --role NAME, or one that only enqueues, --enqueue-role NAME, or both.")
    if database is not None and not roles.schemas_are_databases:
        raise ValueError("--database is for MySQL and MariaDB. On PostgreSQL, run the output in the database that has the tables.")
    for option, name in {
        "--role": role,
        "--enqueue-role": enqueue_role,
        "--schema": schema,
        "--job-table": job_table,
        "--archived-job-table": archived_job_table,
        "--database": database,
        "--host": host or None,
    }.items():
        _check_name(option, name)
    if job_table == archived_job_table:
        raise ValueError(f"--job-table and --archived-job-table are both {job_table!r}. Give each table a name of its own.")
    place = schema_names.schema_on(dialect, schema)
    if place is None and roles.schemas_are_databases:
        place = database
    job, archived_job = roles.table(place, job_table), roles.table(place, archived_job_table)
    enter = roles.enter(place)
    both = [] if enter is None else [_Grant("to reach the tables", enter)]
    blocks = [_head(roles, place, revoke=revoke)]
    if role is not None:
        title = "workers, and applications that enqueue, read and run jobs: no DDL, and no TRUNCATE, which spares no running job"
        wanted = [*both, *_run_time(roles, job, archived_job)]
        blocks += _blocks(roles, role, host, title, wanted, create=create_role, revoke=revoke)
    if enqueue_role is not None:
        title = f"applications that enqueue and do nothing else{roles.note}"
        wanted = [*both, *_enqueue_only(roles, job)]
        blocks += _blocks(roles, enqueue_role, host, title, wanted, create=create_role, revoke=revoke)
    return "\n\n".join(blocks) + "\n"


def _run_time(roles: Roles, job: str, archived_job: str) -> list[_Grant]:
    return [
        _Grant(
            "to enqueue; to claim, prolong, retry and put back; to take out what is finished", f"{', '.join(JOB_RIGHTS)} ON {job}"
        ),
        _Grant(f"to archive; {roles.why_replace}", f"{', '.join(roles.archive_rights)} ON {archived_job}"),
    ]


def _enqueue_only(roles: Roles, job: str) -> list[_Grant]:
    why = "to enqueue; to read back the new job's id and times, as SQLAlchemy does after a flush: no payload, and no archive"
    return [_Grant(why, f"INSERT, {roles.columns('SELECT', READ_BACK)} ON {job}")]


def _blocks(roles: Roles, name: str, host: str, title: str, wanted: Sequence[_Grant], *, create: bool, revoke: bool) -> list[str]:
    """Return what is about one role: made and given rights, or the other way round."""
    account = roles.account(name, host)
    if revoke:
        lines = [f"REVOKE {grant.what} FROM {account};" for grant in reversed(wanted)]
        return ["\n".join(lines), *([f"{roles.drop(name, host)};"] if create else [])]
    lines = [line for grant in wanted for line in (f"-- {grant.why}", f"GRANT {grant.what} TO {account};")]
    password, statement = roles.create(name, host)
    made = [f"-- {password}\n{statement};"] if create else []
    return [*made, "\n".join([f"-- {account}, for {title}", *lines])]


def _head(roles: Roles, place: str | None, *, revoke: bool) -> str:
    act = "Takes away" if revoke else "Gives"
    who = "an administrator" if roles.schemas_are_databases else "the owner of the tables or an administrator"
    where = "" if roles.schemas_are_databases and place is not None else ", in the database that has the tables"
    return f"-- {act} rights on the tables of proletarian-sa. To be run by {who}{where}."


def _check_name(option: str, name: str | None) -> None:
    if name == "":
        raise ValueError(f"{option} needs a name.")
    if name is not None and any(unicodedata.category(character) in _BREAKS for character in name):
        raise ValueError(f"{option} {name!r} has a control character or a line break, which cannot be printed safely. Rename it.")


def _why_not(dialect: str) -> str:
    if dialect == "sqlite":
        return (
            "SQLite has no roles: file permissions rule there. Whoever may write to the database file and its folder may enqueue, "
            "and do all else: chown and chmod them for the users that run the application."
        )
    return f"There are no grants for {dialect!r}. Give --dialect {', '.join(DIALECTS[:-1])} or {DIALECTS[-1]}."
