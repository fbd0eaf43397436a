"""Lists that are bound as one text come back from PostgreSQL as they were."""

import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa.dialects.arrays import array_of
from tests.servers.database import Database

WORDS = ['"', "\\", '\\"', ",", "{}", " a ", "", "NULL", "null", None, "é😀", "a\nb\tc", "'", "%s", "$1"]
IDS = [uuid.uuid4() for _ in WORDS]


def unnested(**items: sa.types.TypeEngine[Any]) -> Any:
    """Return a query for the elements of bound arrays of these types."""
    arrays = [sa.bindparam(name, type_=array_of(item)) for name, item in items.items()]
    columns = [sa.column(name, item) for name, item in items.items()]
    given = sa.func.unnest(*arrays).table_valued(*columns, name="given").render_derived()
    return sa.select(*(given.c[name] for name in items))


def test_ids_and_words(database: Database, engine: sa.Engine) -> None:
    """UUIDs, and words of any characters, quoted; None is no word. The driver is given one text for each list."""
    database.require("listen")
    sent: list[Any] = []
    sa.event.listen(engine, "before_cursor_execute", lambda _connection, _cursor, _statement, given, *_: sent.append(given))
    with engine.connect() as connection:
        rows = connection.execute(unnested(ids=sa.Uuid(), words=sa.Text()), {"ids": IDS, "words": WORDS}).all()

    assert list(zip(IDS, WORDS, strict=True)) == [tuple(row) for row in rows]
    assert {str} == {type(value) for value in sent[-1].values()}


@pytest.mark.parametrize("item", [sa.BigInteger(), sa.String(20)])
def test_others_are_the_drivers(database: Database, engine: sa.Engine, item: sa.types.TypeEngine[Any]) -> None:
    """Lists of other types, as an application's own ids may be, are bound as the driver does."""
    database.require("listen")
    values = [1, 2] if isinstance(item, sa.BigInteger) else ["a,b", '"']
    with engine.connect() as connection:
        rows = connection.execute(unnested(ids=item), {"ids": values}).scalars().all()

    assert values == rows
