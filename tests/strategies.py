"""Every kind of id that a table of jobs may have, and tables with them side by side in one database."""

import itertools
import uuid
from typing import Any

import sqlalchemy as sa

from proletarian_sa import DatabaseIds, JobIds, JobTables, UUIDv4, UUIDv7, create_all


class OnlyNew:
    """The least that a strategy has."""

    def new(self) -> uuid.UUID:
        return uuid.uuid4()


class Words:
    """Text, with a check of its own."""

    column_type = sa.String(26)

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self) -> str:
        return f"JOB-é-{next(self._numbers):06}"

    def check(self, value: Any) -> None:
        if not isinstance(value, str):
            raise TypeError(f"job_id must be a word, not {value!r}.")
        if not value.startswith("JOB-"):
            raise ValueError(f"job_id must begin with JOB-, and {value!r} does not.")


class Numbers:
    """Numbers of 64 bits that the application makes."""

    column_type = sa.BigInteger

    def __init__(self) -> None:
        self._numbers = itertools.count(2**62)

    def new(self) -> int:
        return next(self._numbers)


class Octets:
    """Eight bytes."""

    column_type = sa.LargeBinary().with_variant(sa.BINARY(8), "mysql", "mariadb")

    def __init__(self) -> None:
        self._numbers = itertools.count(2**63)

    def new(self) -> bytes:
        return next(self._numbers).to_bytes(8, "big")


class Ticket:
    """A value of a class of the application's."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ticket) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return "a ticket"


class TicketType(sa.types.TypeDecorator[Ticket]):
    """Tickets are stored as text."""

    impl = sa.String(20)
    cache_ok = True

    def process_bind_param(self, value: Ticket | None, dialect: Any) -> str | None:
        return None if value is None else f"T{value.number:06}"

    def process_result_value(self, value: str | None, dialect: Any) -> Ticket | None:
        return None if value is None else Ticket(int(value[1:]))


class Tickets:
    """Ids of a class of the application's; their column does not say which."""

    column_type = TicketType()

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self) -> Ticket:
        return Ticket(next(self._numbers))


class Some:
    """Small numbers of the database's, by the user's own strategy."""

    column_type = sa.Integer()
    made_by_database = True

    def new(self) -> None:
        return None


class Sometimes(Some):
    """Numbers of the application's while there are any, of the database's when there are none."""

    def __init__(self, *ids: int) -> None:
        self._ids = list(ids)

    def new(self) -> int | None:  # type: ignore[override]
        return self._ids.pop() if self._ids else None


STRATEGIES: dict[str, tuple[type[Any], type[Any]]] = {
    "v7": (UUIDv7, uuid.UUID),
    "v4": (UUIDv4, uuid.UUID),
    "only_new": (OnlyNew, uuid.UUID),
    "database": (DatabaseIds, int),
    "some": (Some, int),
    "words": (Words, str),
    "numbers": (Numbers, int),
    "octets": (Octets, bytes),
    "tickets": (Tickets, Ticket),
}
"""Name to what makes the ids, and of which type they are."""

UNLIKE = ("database", "words", "tickets")
"""Numbers of the database's, text, and a class of the application's."""


def own_tables(name: str, job_ids: JobIds, **options: Any) -> JobTables:
    """Return tables of that name."""
    return JobTables(job_table=f"{name}_job", archived_job_table=f"{name}_archived_job", job_ids=job_ids, **options)


def every_tables(engine: sa.Engine, names: tuple[str, ...] = UNLIKE) -> dict[str, JobTables]:
    """Create tables of each strategy side by side, and return them by name."""
    made = {name: own_tables(name, STRATEGIES[name][0]()) for name in names}
    with engine.begin() as connection:
        for tables in made.values():
            create_all(connection, tables=tables)
    return made
