"""Drivers that cannot be used, whatever the database behind them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from proletarian_sa.errors import DatabaseNotSupported

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

AIOMYSQL: Final = "aiomysql"


def check_driver(dialect: Dialect) -> None:
    """Refuse a driver that is broken.

    Raises:
        DatabaseNotSupported: The message says why, and what to type.
    """
    if dialect.driver == AIOMYSQL and not _binds_bytes():
        raise DatabaseNotSupported(
            "aiomysql cannot be used with PyMySQL 1.2 or later: it takes from PyMySQL the function that writes bytes, which is no "
            "longer there (\"TypeError: 'str' object is not callable\"), so no id of a job can be bound. Use asyncmy: python -m "
            f"pip install 'proletarian-sa[asyncmy]' and create_async_engine('{dialect.name}+asyncmy://…'). Or type: python -m pip "
            "install 'PyMySQL<1.2'"
        )


def _binds_bytes() -> bool:
    """Return whether aiomysql, if it has taken that function from PyMySQL (up to 0.3.2 it does), got one."""
    connection = sys.modules.get(f"{AIOMYSQL}.connection")
    return callable(getattr(connection, "escape_bytes_prefixed", callable))
