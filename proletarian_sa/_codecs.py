"""How each single value that JSON lacks is written and read: one pair of functions a type, side by side.

A tag is a JSON object with exactly one key, which begins with ``$``. Containers, and the table of all tags, are in
`proletarian_sa.serializers`; here are the values that hold no others.

Each ``encode`` raises TypeError or ValueError with the end of a sentence that begins with the place of the value. Each
``decode`` gets what a stranger may have written, and may raise anything.
"""

import re
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from proletarian_sa._shorten import shorten

_Moment = TypeVar("_Moment", datetime, time)

_SPLIT_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BETWEEN_PAIR = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
_HEX = re.compile(r"-?0x[0-9a-f]+")
_SECONDS = re.compile(r"(-?)([0-9]{1,14})(?:\.([0-9]{1,6}))?")
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Codec:
    """Know how one type is written and read.

    Attributes:
        kind: The type, exactly: no subclass.
        tag: Its name in the text, without the ``$``.
        encode: Turns a value into what stands under the tag.
        decode: Turns that back into the value.

    """

    kind: type[Any]
    tag: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def splits_pair(text: str) -> bool:
    r"""Tell whether JSON would change the text: ``\ud83d`` before ``\ude00``, two code points, is read as one."""
    return not text.isascii() and _SPLIT_PAIR.search(text) is not None


def write_str(text: str) -> str | dict[str, list[str]]:
    """Return the text, or if JSON would change it, its tagged pieces."""
    return {"$str": _BETWEEN_PAIR.split(text)} if splits_pair(text) else text


def read_str(pieces: Any) -> str:
    """Join the pieces of a tagged text."""
    if not isinstance(pieces, list):
        raise TypeError("must hold a list of strings")
    return "".join(pieces)


def read_int(text: Any) -> int:
    """Read hexadecimal digits, of which Python allows any number (of decimal ones only 4300 by default)."""
    if not _HEX.fullmatch(text):
        raise ValueError("must hold hexadecimal digits after 0x")
    return int(text, 16)


def _write_bytes(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _read_bytes(text: Any) -> bytes:
    if not isinstance(text, str):
        raise TypeError("must hold base64 text")
    return a2b_base64(text, strict_mode=True)


def _write_moment(value: datetime | time) -> str | list[Any]:
    zone = value.tzinfo
    facts: dict[str, Any] = {}
    if type(zone) is ZoneInfo:
        facts["zone"] = _zone_key(zone)
        value = value.replace(tzinfo=None)
    elif type(zone) is timezone:
        name = zone.tzname(None)
        if name != timezone(zone.utcoffset(None)).tzname(None):
            facts["name"] = write_str(name)
    elif zone is not None:
        raise TypeError(
            f"has a tzinfo of type {type(zone).__module__}.{type(zone).__qualname__}, which cannot be written."
            " Send .astimezone(timezone.utc) of it, or use zoneinfo.ZoneInfo."
        )
    if value.fold:
        facts["fold"] = value.fold
    text = value.isoformat()
    return [text, facts] if facts else text


def _zone_key(zone: ZoneInfo) -> str:
    try:
        ZoneInfo(zone.key)  # cached; a zone made from a file may have no key, or one that finds nothing
    except (TypeError, ValueError, KeyError, OSError):
        raise ValueError(
            f"has a ZoneInfo whose key {shorten(zone.key)} names no zone. Send .astimezone(timezone.utc) of it."
        ) from None
    return zone.key


def _read_moment(kind: type[_Moment], written: Any) -> _Moment:
    if isinstance(written, str):
        return kind.fromisoformat(written)
    text, facts = written
    moment = kind.fromisoformat(text)
    unknown = facts.keys() - {"zone", "name", "fold"}
    if unknown:
        raise ValueError(f"knows nothing of {shorten(unknown)}")
    if "zone" in facts:
        moment = moment.replace(tzinfo=ZoneInfo(facts["zone"]))
    if "name" in facts:
        offset = moment.utcoffset()
        if offset is None:
            raise ValueError("has a name without an offset")
        moment = moment.replace(tzinfo=timezone(offset, facts["name"]))
    return moment.replace(fold=facts.get("fold", 0))


def _read_datetime(written: Any) -> datetime:
    return _read_moment(datetime, written)


def _read_time(written: Any) -> time:
    return _read_moment(time, written)


def _write_timedelta(value: timedelta) -> str:
    microseconds = value // _MICROSECOND
    whole, rest = divmod(abs(microseconds), 1_000_000)
    sign = "-" if microseconds < 0 else ""
    return f"{sign}{whole}.{rest:06}" if rest else f"{sign}{whole}"


def _read_timedelta(text: Any) -> timedelta:
    found = _SECONDS.fullmatch(text)
    if not found:
        raise ValueError("must hold seconds with at most six decimals")
    sign, whole, rest = found.groups(default="")
    duration = timedelta(seconds=int(whole), microseconds=int(rest.ljust(6, "0")))
    return -duration if sign else duration


def _write_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"is {shorten(value)}, and only finite numbers are stored. Send None or a str instead.")
    return str(value)


def _read_decimal(text: Any) -> Decimal:
    if not isinstance(text, str):
        raise TypeError("must hold a number as text")
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError("must hold a finite number")
    return value


CODECS = (
    Codec(bytes, "bytes", _write_bytes, _read_bytes),
    Codec(date, "date", date.isoformat, date.fromisoformat),
    Codec(datetime, "datetime", _write_moment, _read_datetime),
    Codec(time, "time", _write_moment, _read_time),
    Codec(timedelta, "timedelta", _write_timedelta, _read_timedelta),
    Codec(Decimal, "decimal", _write_decimal, _read_decimal),
    Codec(UUID, "uuid", str, UUID),
)
"""The types that are written by a tag and hold no other values."""
