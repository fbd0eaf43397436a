"""Lists of ids and words as one text that PostgreSQL takes for an array: drivers spend longer on each element of a list."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeDecorator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Dialect

NULL = "NULL"


class ArrayText(TypeDecorator[Any]):
    """A list of UUIDs, or of words and None, bound as the text of an array of `item`."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, item: sa.types.TypeEngine[Any]) -> None:
        super().__init__()
        self.item = item

    def process_bind_param(self, value: Sequence[Any] | None, dialect: Dialect) -> str | None:
        """Write the list."""
        if value is None:
            return None
        if isinstance(self.item, sa.Uuid):
            return f"{{{','.join([_hex(one) for one in value])}}}"
        quoted = {word: NULL if word is None else _quote(word) for word in set(value)}
        return f"{{{','.join([quoted[word] for word in value])}}}"

    def bind_expression(self, bindvalue: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        """Read it as an array."""
        return sa.cast(bindvalue, postgresql.ARRAY(self.item))


def array_of(item: sa.types.TypeEngine[Any]) -> sa.types.TypeEngine[Any]:
    """Return the type of a bound list of such values."""
    plain = type(item) in {sa.Uuid, sa.Text} and not getattr(item, "_variant_mapping", {}).get("postgresql")
    return ArrayText(item) if plain else postgresql.ARRAY(item)


def _hex(value: uuid.UUID | str) -> str:
    return value.hex if isinstance(value, uuid.UUID) else uuid.UUID(value).hex


def _quote(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
