"""Let the default schema fall away where a database has no schemas inside it, on engines that nobody configured.

A `schema_translate_map` on every connection would do that, too, but not only to our tables: SQLAlchemy's statement caches do not
tell a map with a None key from one without, so an application that maps None on some of its connections would then meet
InvalidRequestError ("previously did not have `None` present") on statements that have nothing to do with ours. So the two places
that render a schema are told about our tables instead, and the application's statements stay as they are. Where the application
gives a map of its own, ours is merged into it; its mapping of our schema wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from proletarian_sa.models import DEFAULT_SCHEMA, FALLS_AWAY

if TYPE_CHECKING:
    from collections.abc import Callable

WITHOUT_SCHEMAS: Final = frozenset({"sqlite"})
SCHEMAS_ARE_DATABASES: Final = frozenset({"mysql", "mariadb"})
_OPTION: Final = "schema_translate_map"


def effective_schema(connection: Connection, schema: str | None) -> str | None:
    """Return where a schema of our tables lies on this connection, for the inspector; None: where the connection looks first."""
    mapped = connection.get_execution_options().get(_OPTION) or {}
    if schema in mapped:
        return mapped[schema]  # type: ignore[no-any-return]
    return None if _falls_away(connection.dialect.name, default=schema == DEFAULT_SCHEMA) else schema


def install() -> None:
    """Listen to every engine of the process."""
    event.listen(Engine, "engine_connect", _on_connect)
    event.listen(Engine, "set_connection_execution_options", _on_options)


def _falls_away(dialect: str, *, default: bool) -> bool:
    return dialect in WITHOUT_SCHEMAS or (default and dialect in SCHEMAS_ARE_DATABASES)


def _on_connect(connection: Connection) -> None:
    name = connection.dialect.name
    if name not in WITHOUT_SCHEMAS | SCHEMAS_ARE_DATABASES:
        return
    preparer = connection.dialect.identifier_preparer
    if not getattr(preparer.schema_for_object, "proletarian_sa", False):
        preparer.schema_for_object = _aware_of_ours(preparer.schema_for_object, name)  # type: ignore[assignment]
    connection.schema_for_object = _aware_of_ours(  # type: ignore[method-assign, assignment]
        connection.schema_for_object, name
    )
    if connection.get_execution_options().get(_OPTION):
        connection.execution_options(**{_OPTION: connection.get_execution_options()[_OPTION]})


def _aware_of_ours(original: Callable[[Any], str | None], dialect: str) -> Callable[[Any], str | None]:
    def schema_for_object(item: Any) -> str | None:
        schema = original(item)
        if schema is not None and schema == item.schema:
            falls_away = getattr(item, "info", {}).get(FALLS_AWAY)
            if falls_away is not None and _falls_away(dialect, default=falls_away):
                return None
        return schema

    schema_for_object.proletarian_sa = True  # type: ignore[attr-defined]
    return schema_for_object


def _on_options(connection: Connection, options: dict[str, Any]) -> None:
    mapped = options.get(_OPTION)
    if mapped and DEFAULT_SCHEMA not in mapped and _falls_away(connection.dialect.name, default=True):
        options[_OPTION] = {DEFAULT_SCHEMA: None, **mapped}
