"""Let the default schema fall away where a database has no schemas inside it, on engines that nobody configured.

A `schema_translate_map` on every connection would do that, too, but not only to our tables: SQLAlchemy's statement caches do not
tell a map with a None key from one without, so an application that maps None on some of its connections would then meet
InvalidRequestError ("previously did not have `None` present") on statements that have nothing to do with ours. So the two places
that render a schema are told about our tables instead, and the application's statements stay as they are. Where the application
gives a map of its own, for an engine, a connection or a statement, its mapping of our schema wins.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final
from weakref import proxy

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from proletarian_sa.models import DEFAULT_SCHEMA, FALLS_AWAY

WITHOUT_SCHEMAS: Final = frozenset({"sqlite"})
SCHEMAS_ARE_DATABASES: Final = frozenset({"mysql", "mariadb"})
_OPTION: Final = "schema_translate_map"
_TAUGHT: Final = "proletarian_sa_taught"


def effective_schema(connection: Connection, schema: str | None) -> str | None:
    """Return where a schema of our tables lies on this connection, for the inspector; None: where the connection looks first."""
    mapped = connection.get_execution_options().get(_OPTION) or {}
    if schema in mapped:
        return mapped[schema]  # type: ignore[no-any-return]
    return schema_on(connection.dialect.name, schema)


def schema_on(dialect: str, schema: str | None) -> str | None:
    """Return where a schema of ours lies on a dialect, unless the application maps it; None: where a connection looks first."""
    return None if _falls_away(dialect, default=schema == DEFAULT_SCHEMA) else schema


def install() -> None:
    """Listen to every engine of the process."""
    event.listen(Engine, "engine_connect", _on_connect)


def _falls_away(dialect: str, *, default: bool) -> bool:
    return dialect in WITHOUT_SCHEMAS or (default and dialect in SCHEMAS_ARE_DATABASES)


def _ours_falls_away(item: Any, dialect: str) -> bool:
    default = getattr(item, "info", {}).get(FALLS_AWAY)
    return default is not None and _falls_away(dialect, default=default)


def _on_connect(connection: Connection) -> None:
    dialect = connection.dialect
    if dialect.name not in WITHOUT_SCHEMAS | SCHEMAS_ARE_DATABASES:
        return
    # Weakly: a connection in a cycle, if the application forgot to close it, would go back to its pool when the collector runs.
    connection.schema_for_object = partial(_schema_for_object, proxy(connection))  # type: ignore[method-assign]
    if not hasattr(dialect.identifier_preparer, _TAUGHT):
        _teach(dialect.identifier_preparer, dialect.name)


def _schema_for_object(connection: Connection, item: Any) -> str | None:
    """Do for the inspecting half of DDL what `_teach` does for statements."""
    mapped = connection.get_execution_options().get(_OPTION) or {}
    if item.schema not in mapped and _ours_falls_away(item, connection.dialect.name):
        return None
    return Connection.schema_for_object(connection, item)


def _teach(preparer: Any, dialect: str) -> None:
    """Make what quotes the names of a dialect's statements leave out the schema of our tables.

    Where a statement or its connection has a map, SQLAlchemy (2.0 and 2.1) compiles placeholders and fills them in at each
    execution; ours are filled in as if the map had our schema, unless it has.
    """
    plain, translating = preparer.schema_for_object, preparer._with_schema_translate

    def schema_for_object(item: Any) -> str | None:
        return None if _ours_falls_away(item, dialect) else plain(item)

    def with_schema_translate(mapped: Any) -> Any:
        prepared = translating(mapped)
        placeholder, render = prepared.schema_for_object, prepared._render_schema_translates
        fallen: dict[str, None] = {}

        def schema_or_placeholder(item: Any) -> str | None:
            if _ours_falls_away(item, dialect):
                fallen[item.schema] = None
            return placeholder(item)  # type: ignore[no-any-return]

        def filled_in(statement: str, schema_translate_map: Any) -> str:
            return render(statement, {**fallen, **schema_translate_map})  # type: ignore[no-any-return]

        prepared.schema_for_object = schema_or_placeholder
        prepared._render_schema_translates = filled_in
        return prepared

    preparer.schema_for_object = schema_for_object
    preparer._with_schema_translate = with_schema_translate
    setattr(preparer, _TAUGHT, True)
