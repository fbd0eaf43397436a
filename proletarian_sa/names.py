"""Names that mean the same on every database: of queues, job types, schemas, tables, and of indexes made from those."""

from __future__ import annotations

import hashlib
from typing import Any, Final

MAX_NAME: Final = 255  # characters
MAX_IDENTIFIER: Final = 63
"""Bytes in UTF-8: PostgreSQL cuts off what is longer, without an error; MySQL refuses more than 64 characters."""

_DIGEST: Final = 8  # characters


def check_name(value: Any, what: str) -> str:
    """Return a queue name or job type that means the same on every database, or raise.

    Raises:
        TypeError: It is no string.
        ValueError: It is empty, longer than 255 characters, has outer white space, a NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {value!r} ({type(value).__name__}).")
    if not 1 <= len(value) <= MAX_NAME:
        raise ValueError(f"{what} must have 1 to {MAX_NAME} characters; {value[:40]!r} has {len(value)}.")
    if value != value.strip():
        raise ValueError(f"{what} {value!r} has white space at an end, which not every database compares. Give {value.strip()!r}.")
    if "\0" in value or (not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)):
        raise ValueError(f"{what} {value!r} has a NUL or a lone surrogate, which databases cannot store.")
    return value


def check_identifier(value: Any, what: str) -> str:
    """Return the name of a schema or table that every database can have, or raise.

    Raises:
        TypeError: It is no string.
        ValueError: As `check_name`, or it is longer than 63 bytes in UTF-8, or looks like a parameter.
    """
    size = len(check_name(value, what).encode())
    if size > MAX_IDENTIFIER:
        raise ValueError(
            f"{what} {value!r} has {size} bytes in UTF-8; databases keep names of up to {MAX_IDENTIFIER}. Give a shorter one."
        )
    if "%(" in value:
        raise ValueError(f"{what} {value!r} has '%(', which SQLAlchemy takes for the beginning of a parameter. Leave it out.")
    return value  # type: ignore[no-any-return]


def check_identifiers(*, schema: str | None, **tables: str) -> None:
    """Raise unless these are names of a schema, or None, and of tables, which differ; see `check_identifier`."""
    if schema is not None:
        check_identifier(schema, "schema")
    for what, name in tables.items():
        check_identifier(name, what)
    if len(set(tables.values())) < len(tables):
        raise ValueError(f"{' and '.join(tables)} are both {name!r}. Give each table a name of its own.")


def index_name(table: str, suffix: str) -> str:
    """Return the name of an index of a table: both joined, or where that cannot be, shortened and made unique by a digest.

    The same names always give the same name: the revision that creates the index and the statement that names it agree.
    """
    whole = f"{table}_{suffix}"
    if len(whole.encode()) <= MAX_IDENTIFIER and "%" not in whole:  # in an index hint, each driver wants it doubled or not
        return whole
    ending = f"_{hashlib.sha256(table.encode()).hexdigest()[:_DIGEST]}_{suffix}"
    return table.replace("%", "_").encode()[: MAX_IDENTIFIER - len(ending)].decode(errors="ignore") + ending
