"""Many jobs in a second, and statistics that are as fresh or stale as a test needs them."""

from dataclasses import dataclass

import sqlalchemy as sa

from proletarian_sa.models import default_tables

QUEUE = "default"
MIXES = {"all due": 100, "one in a hundred due": 1, "all scheduled": 0}
"""By name: how many of a hundred jobs are due, spread evenly; the others are scheduled from an hour from now on."""


@dataclass(frozen=True)
class _Words:
    """What a database says differently; `{n}` is the row's number from 0 on, `{seconds}` an expression."""

    job_id: str
    moved: str
    no_statistics: tuple[str, ...] = ()
    believes_in_emptiness: bool = False
    analyze: str = "ANALYZE TABLE {job}"


_MYSQL = _Words(
    job_id="unhex(lpad(hex({n}), 32, '0'))",
    moved="timestampadd(second, {seconds}, utc_timestamp(6))",
    # else the server takes statistics by itself, some seconds after a tenth of the rows has changed
    no_statistics=("ALTER TABLE {job} STATS_AUTO_RECALC=0", "ANALYZE TABLE {job}"),
)
_WORDS = {
    "postgresql": _Words(
        job_id="cast(md5(cast({n} AS text)) AS uuid)",
        moved="clock_timestamp() + {seconds} * interval '1 second'",
        no_statistics=("ALTER TABLE {job} SET (autovacuum_enabled = off)",),
        believes_in_emptiness=True,
        analyze="ANALYZE {job}",
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "sqlite": _Words(
        job_id="printf('%032x', {n})",
        moved="strftime('%Y-%m-%d %H:%M:%f000', 'now', {seconds} || ' seconds')",
        analyze="ANALYZE",
    ),
}


def fill(connection: sa.Connection, rows: int, due_in_hundred: int, *, first: int = 0) -> None:
    """Insert jobs into the default tables, numbered from `first` on and below 100 000.

    **Transaction:** the caller's.
    """
    words = _words(connection)
    digits = "SELECT 0 AS d" + "".join(f" UNION ALL SELECT {digit}" for digit in range(1, 10))
    number = "a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d"
    tables = ", ".join(f"({digits}) AS {name}" for name in "abcde")
    seconds = f"CASE WHEN n % 100 < {due_in_hundred} THEN -1 - n ELSE 3600 + n END"
    connection.exec_driver_sql(
        f"INSERT INTO {job_name(connection)} (job_id, queue, job_type, payload, attempts, enqueued_at, process_at) "
        f"SELECT {words.job_id.format(n='n')}, '{QUEUE}', 'any', '{{\"to\": \"somebody\"}}', 0, "
        f"{words.moved.format(seconds='-100000')}, {words.moved.format(seconds=f'({seconds})')} "
        f"FROM (SELECT {number} AS n FROM {tables}) AS numbers WHERE n >= {first} AND n < {first + rows}".replace(
            "%", _percent(connection)
        )
    )


def forget_statistics(connection: sa.Connection) -> None:
    """Keep the database from taking statistics of the job table by itself; call it while the table is empty."""
    for statement in _words(connection).no_statistics:
        connection.exec_driver_sql(statement.format(job=job_name(connection)))


def analyze(connection: sa.Connection) -> None:
    """Take statistics of the job table now."""
    connection.exec_driver_sql(_words(connection).analyze.format(job=job_name(connection)))


def believes_in_emptiness(connection: sa.Connection) -> bool:
    """Tell whether statistics of an empty table say more to the database than none."""
    return _words(connection).believes_in_emptiness


def job_name(connection: sa.Connection) -> str:
    """Return the name of the default job table as SQL text spells it here."""
    return "proletarian.job" if connection.dialect.name == "postgresql" else default_tables.job.name


def _words(connection: sa.Connection) -> _Words:
    return _WORDS[connection.dialect.name]


def _percent(connection: sa.Connection) -> str:
    return "%" if connection.dialect.paramstyle == "qmark" else "%%"
