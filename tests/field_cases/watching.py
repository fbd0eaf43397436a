"""Know what a worker asks its database, without being told by the worker."""

import re

import sqlalchemy as sa

_LOOKS_FOR_WORK = re.compile(r"\bprocess_at <= ")


def polls_of(engine: sa.Engine) -> list[str]:
    """Return a list that grows with each statement by which a worker on this engine looks for due jobs."""
    polls: list[str] = []

    def note(*arguments: object) -> None:
        statement = str(arguments[2])
        if _LOOKS_FOR_WORK.search(statement):
            polls.append(statement)

    sa.event.listen(engine, "after_cursor_execute", note)
    return polls
