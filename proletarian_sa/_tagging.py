"""Turn a payload into what JSON can say, or say exactly what in it cannot be stored, and where.

The slow half of `TaggedJSON.encode`, for payloads that are not plain JSON already.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from pathlib import PurePath
from typing import Any, Final, NamedTuple
from uuid import UUID

from proletarian_sa._codecs import Codec, write_str
from proletarian_sa._shorten import shorten

DEEPEST: Final = 100
"""How many containers may lie in one another. A level takes up to four stack frames here and three JSON levels when it
is read; both leave Python's recursion limit of 1000 room for the application, so what was enqueued can be read."""

SMALLEST_INT: Final = -(2**63)
LARGEST_INT: Final = 2**63 - 1
"""Between these, an int is a JSON number; databases and most languages read it exactly."""

_STEPS_SHOWN = 8

_CURES: tuple[tuple[type[Any] | tuple[type[Any], ...], str], ...] = (
    (Enum, "Send its .value"),
    (Iterator, "Send list(...) of it"),
    ((bytes, bytearray, memoryview), "Send bytes(...) of it"),
    (PurePath, "Send str(...) of it"),
    *((kind, f"Send {kind.__name__}(...) of it") for kind in (str, int, float, dict, list, tuple, set, frozenset)),
    (Mapping, "Send dict(...) of it"),
    *((kind, f"Send a plain {kind.__name__}") for kind in (datetime, date, time, timedelta, Decimal, UUID)),
    ((type, Callable), "Send data, not code"),  # type: ignore[arg-type]
    (object, "Send its id, or a dict of what the handler needs"),
)


class Place(NamedTuple):
    """Know where in the payload a value stands: the container it is in, and how to get to it from there."""

    parent: "Place | None"
    container: object
    form: str
    step: Any

    def __str__(self) -> str:
        return describe(self)


def describe(place: Place | None) -> str:
    """Return the place as a Python expression, such as ``payload["to"][3]``."""
    steps: list[Place] = []
    while place is not None:
        steps.append(place)
        place = place.parent
    text = "payload"
    for count, step in enumerate(reversed(steps)):
        if count == _STEPS_SHOWN:
            return f"{text}... ({len(steps) - count} steps further in)"
        text = step.form.format(text, _quoted(step.step))
    return text


def _quoted(step: Any) -> str:
    text = shorten(step)
    if type(step) is str and text[0] == "'" and '"' not in text:
        return f'"{text[1:-1]}"'
    return text


class Tagger:
    """Turn values into tagged JSON values.

    Args:
        codecs: How to write the types that are neither plain nor containers.
        registered: How to write the types that the user has registered.

    """

    def __init__(self, codecs: Mapping[type[Any], Codec], registered: Mapping[type[Any], Codec]) -> None:
        self._codecs = codecs
        self._registered = registered
        self._containers: dict[type[Any], Callable[[Any, Place | None], Any]] = {
            dict: self._tag_dict,
            list: self._tag_items,
            tuple: lambda value, place: {"$tuple": self._tag_items(value, place)},
            set: lambda value, place: {"$set": self._tag_members(value, place)},
            frozenset: lambda value, place: {"$frozenset": self._tag_members(value, place)},
        }

    def tag(self, value: Any, place: Place | None = None) -> Any:
        """Return the value as JSON can say it.

        Args:
            value: Any value.
            place: Where it stands; None is the payload itself.

        Returns:
            Nothing but str, int, finite float, bool, None, list, and dict with str keys.

        Raises:
            TypeError: If the value, or one within it, is of a type that is not stored.
            ValueError: If it is of a type that is stored but cannot be: infinite, cyclic, or too deep.

        """
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return write_str(value)
        if kind is int:
            return value if SMALLEST_INT <= value <= LARGEST_INT else {"$int": hex(value)}
        if kind is float:
            if isfinite(value):
                return value
            raise ValueError(f"{describe(place)} is {value}, and only finite numbers are stored. Send None or a str instead.")
        container = self._containers.get(kind)
        if container is not None:
            check_nesting(value, place)
            return container(value, place)
        codec = self._codecs.get(kind)
        if codec is not None:
            return _tag_single(codec, value, place)
        codec = self._registered.get(kind)
        if codec is not None:
            check_nesting(value, place)
            return self._tag_registered(codec, value, place)
        raise TypeError(_refusal(value, place))

    def _tag_dict(self, value: dict[Any, Any], place: Place | None) -> Any:
        items = [
            (
                self.tag(key, Place(place, value, "list({0})[{1}]", index)),
                self.tag(item, Place(place, value, "{0}[{1}]", key)),
            )
            for index, (key, item) in enumerate(value.items())
        ]
        plain = all(type(key) is str for key, _ in items) and not looks_like_tag(value)
        return dict(items) if plain else {"$dict": items}

    def _tag_items(self, value: list[Any] | tuple[Any, ...], place: Place | None) -> list[Any]:
        return [self.tag(item, Place(place, value, "{0}[{1}]", index)) for index, item in enumerate(value)]

    def _tag_members(self, value: set[Any] | frozenset[Any], place: Place | None) -> list[Any]:
        return [self.tag(item, Place(place, value, "list({0})[{1}]", index)) for index, item in enumerate(value)]

    def _tag_registered(self, codec: Codec, value: Any, place: Place | None) -> Any:
        try:
            encoded = codec.encode(value)
        except Exception as error:
            raise ValueError(
                f"{describe(place)}: the encode function registered for {codec.tag!r} raised {type(error).__name__}: {error}"
            ) from error
        return {"$type": [codec.tag, self.tag(encoded, Place(place, value, "encode({0})", None))]}


def looks_like_tag(value: dict[str, Any]) -> bool:
    """Tell whether a dict with str keys would be taken for a tag."""
    return len(value) == 1 and next(iter(value))[:1] == "$"


def _tag_single(codec: Codec, value: Any, place: Place | None) -> dict[str, Any]:
    try:
        return {f"${codec.tag}": codec.encode(value)}
    except (TypeError, ValueError) as error:
        raise type(error)(f"{describe(place)} {error}") from None


def check_nesting(value: object, place: Place | None) -> None:
    """Raise ValueError if a container lies in itself, or too deep."""
    depth = 1
    outer = place
    while outer is not None:
        if outer.container is value:
            raise ValueError(
                f"{describe(place)} is {describe(outer.parent)} again: it contains itself."
                " Send the ids of related things instead of the things."
            )
        depth += 1
        outer = outer.parent
    if depth > DEEPEST:
        raise ValueError(
            f"{describe(place)} is nested deeper than {DEEPEST} levels. Send a flatter payload, or the id of stored data."
        )


def _refusal(value: Any, place: Place | None) -> str:
    cure = next(cure for base, cure in _CURES if isinstance(value, base))
    return (
        f"{describe(place)} is of type {type_name(value)}, which would not come back as it is: {shorten(value)}."
        f" {cure}, or register the type: TaggedJSON.register({type(value).__name__}, tag, encode, decode)."
    )


def type_name(value: Any) -> str:
    """Return the name of a value's type as a message shows it."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
