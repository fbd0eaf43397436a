"""The statements that a piece of code really sends, with their parameters."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

_OF_JOBS = re.compile(r"\b(FROM|UPDATE|INTO|JOIN) \W?(proletarian\W*\.\W?)?(archived_)?job\b", re.IGNORECASE)


@dataclass(frozen=True)
class Captured:
    """A statement as it was given to the driver."""

    statement: str
    parameters: Any

    @property
    def of_jobs(self) -> bool:
        """Whether it reads or writes one of our tables."""
        return bool(_OF_JOBS.search(self.statement))

    @property
    def verb(self) -> str:
        """What the whole of it does; its parts may do something else first."""
        text, inner = self.statement, 1
        while inner:
            text, inner = re.subn(r"\([^()]*\)", "", text)
        found = re.search(r"SELECT|INSERT|UPDATE|DELETE", text)
        assert found, self.statement
        return found[0]


@contextmanager
def capture(engine: sa.Engine) -> Iterator[list[Captured]]:
    """Collect what is executed on an engine, and on engines made from it by `execution_options`."""
    captured: list[Captured] = []

    def before_cursor_execute(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_others: Any) -> None:
        captured.append(Captured(statement, parameters))

    event.listen(engine, "before_cursor_execute", before_cursor_execute)
    try:
        yield captured
    finally:
        event.remove(engine, "before_cursor_execute", before_cursor_execute)


def replay(connection: sa.Connection, captured: list[Captured], look: Callable[[sa.Connection, Captured], Any]) -> list[Any]:
    """Execute statements again in a transaction that is rolled back; those about jobs through `look`, whose answers return."""
    answers = []
    for one in captured:
        if one.of_jobs:
            answers.append(look(connection, one))
        else:
            connection.exec_driver_sql(one.statement, one.parameters)
    connection.rollback()
    return answers
