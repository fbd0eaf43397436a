"""The serializer for payloads that programs in any language write and read: JSON and nothing else."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from proletarian_sa._json_text import json_reader
from proletarian_sa._shorten import shorten
from proletarian_sa._tagging import LARGEST_INT, SMALLEST_INT, Place, check_nesting, describe, type_name

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_CURES: Final[tuple[tuple[type[Any] | tuple[type[Any], ...], str], ...]] = (
    (Enum, "Send its .value"),
    *((kind, f"Send {kind.__name__}(...) of it") for kind in (str, int, float, list, dict)),
    (Mapping, "Send dict(...) of it"),
    ((bytes, bytearray, memoryview), "Send base64.b64encode(...).decode() of it"),
    ((date, time), "Send its .isoformat()"),
    (timedelta, "Send its .total_seconds()"),
    ((Decimal, UUID, PurePath), "Send str(...) of it"),
    ((type, Callable), "Send data, not code"),  # type: ignore[arg-type]
    (Iterable, "Send list(...) of it"),
    (object, "Send its id, or a dict of what the handler needs"),
)
_KEPT_WITH_TAGS: Final = frozenset({tuple, set, frozenset, bytes, datetime, date, time, timedelta, Decimal, UUID})

# One encoder for the process: it has no state. Cycles are found before it is called.
_to_json: Final = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode


class PlainJSON:
    r"""Write payloads as JSON that any other program writes and reads: `JobTables(serializer=PlainJSON())`.

    It takes str, int, float, bool, None, lists, and dicts with str keys; these come back with the same types and values.
    What JSON cannot say is refused by ``encode`` with a message that names the place: tuples, sets, bytes, datetimes, other keys
    than str, every subclass of the above, NaN and infinities, text with surrogates (which is no Unicode), reference cycles and
    more than 100 levels of nesting. Use `TaggedJSON` for those, or convert them.

    An int may be from -2**63 to 2**63 - 1, as databases and most languages read them exactly; JavaScript does so up to 2**53 only:
    send larger ones as str where a browser reads them. The text is ASCII: other characters are escaped, as in ``"\u00e9"``.

    ``decode`` takes any JSON text, escaped or not, with ints of any size; an object is a dict whatever its keys are, those that are
    tags to `TaggedJSON` included.

    Safe to use from several threads.

    Example:
        >>> PlainJSON().encode({"to": "a@b.c", "ids": [1, 2]})
        '{"to":"a@b.c","ids":[1,2]}'
        >>> PlainJSON().decode('{"$uuid": "not a tag"}')
        {'$uuid': 'not a tag'}
    """

    def encode(self, value: Any) -> str:
        """Turn a payload into ASCII text.

        Args:
            value: The payload; see above.

        Returns:
            JSON text without NUL characters. It is a snapshot: what happens to the value later does not matter.

        Raises:
            TypeError: If the payload holds a value of a type that JSON has not. The message names the place as in
                ``payload["to"][3]``, and what to do.
            ValueError: If it holds a value that JSON cannot say: infinite, cyclic, too large, or nested too deep.
        """
        try:
            _check(value, None)
            return _to_json(value)
        except RecursionError:
            raise ValueError(
                f"payload cannot be encoded so deep in the call stack (recursion limit): {shorten(value)}."
                " Send a flatter payload, or enqueue from code that is less deeply nested."
            ) from None

    def decode(self, text: str) -> Any:
        """Turn JSON text back into the payload.

        Args:
            text: What `encode` or another program wrote.

        Returns:
            The payload.

        Raises:
            PayloadError: If the text is not JSON. Nothing else is raised, whatever the text.
        """
        return _from_json(text)


def _check(value: Any, place: Place | None) -> None:
    """Raise unless the value is written as it is."""
    kind = type(value)
    if value is None or kind is bool:
        return
    check = _CHECKS.get(kind)
    if check is None:
        cure = next(cure for base, cure in _CURES if isinstance(value, base))
        kept = ", or keep it: JobTables(serializer=TaggedJSON())" if kind in _KEPT_WITH_TAGS else ""
        raise TypeError(f"{describe(place)} is of type {type_name(value)}, which JSON has not: {shorten(value)}. {cure}{kept}.")
    check(value, place)


def _check_str(value: str, place: Place | None) -> None:
    if not value.isascii() and _SURROGATE.search(value):
        raise ValueError(
            f"{describe(place)} has a surrogate, which is no character and which other programs refuse: {shorten(value)}."
            ' Send text.encode("utf-8", "replace").decode().'
        )


def _check_int(value: int, place: Place | None) -> None:
    if not SMALLEST_INT <= value <= LARGEST_INT:
        raise ValueError(
            f"{describe(place)} is an int of more than 64 bits, which other programs do not read exactly: {shorten(value)}."
            " Send str(...) of it, or keep it: JobTables(serializer=TaggedJSON())."
        )


def _check_float(value: float, place: Place | None) -> None:
    if not isfinite(value):
        raise ValueError(f"{describe(place)} is {value}, and JSON has finite numbers only. Send None or a str instead.")


def _check_list(value: list[Any], place: Place | None) -> None:
    check_nesting(value, place)
    for index, item in enumerate(value):
        _check(item, Place(place, value, "{0}[{1}]", index))


def _check_dict(value: dict[Any, Any], place: Place | None) -> None:
    check_nesting(value, place)
    for index, (key, item) in enumerate(value.items()):
        key_place = Place(place, value, "list({0})[{1}]", index)
        if type(key) is not str:
            raise TypeError(
                f"{describe(key_place)} is of type {type_name(key)}, and a key in JSON is a str: {shorten(key)}."
                " Send str(...) of it, or keep it: JobTables(serializer=TaggedJSON())."
            )
        _check_str(key, key_place)
        _check(item, Place(place, value, "{0}[{1}]", key))


_CHECKS: Final[dict[type[Any], Callable[[Any, Place | None], None]]] = {
    str: _check_str,
    int: _check_int,
    float: _check_float,
    list: _check_list,
    dict: _check_dict,
}


_from_json: Final = json_reader()
