"""How payloads become text and come back: the protocol, and the serializer that is used unless you bring another."""

import json
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, Protocol, TypeVar

from proletarian_sa._codecs import CODECS, Codec, read_int, read_str, splits_pair
from proletarian_sa._json_text import json_reader
from proletarian_sa._shorten import shorten
from proletarian_sa._tagging import DEEPEST, LARGEST_INT, SMALLEST_INT, Tagger, looks_like_tag
from proletarian_sa.errors import PayloadError

_T = TypeVar("_T")

_PLAIN = frozenset({dict, list, tuple, set, frozenset, str, int, float, bool, type(None)})


def _json_writer() -> Callable[[Any, int], Iterable[str]]:
    """Return what writes JSON, in pieces; the number is 0. It has no state; cycles were found before it is called.

    `JSONEncoder.encode` makes CPython's encoder anew at each call, which takes longer than to write a small payload with it.
    """
    encoder = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # as on PyPy
        return lambda value, _level: (encoder.encode(value),)
    write: Callable[[Any, int], Iterable[str]] = make(
        None, encoder.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False
    )
    return write


_to_json = _json_writer()


class Serializer(Protocol):
    """Turn payloads into text and back.

    An implementation must be safe to call from several threads. What it promises about types is its own affair;
    `TaggedJSON` promises that the same type and value comes back.
    """

    def encode(self, value: Any) -> str:
        """Turn a payload into text.

        Args:
            value: The payload.

        Returns:
            Text that every database stores: no NUL characters, no lone surrogates.

        Raises:
            TypeError: If the payload holds a value of a type that cannot be stored.
            ValueError: If it holds a value that cannot be stored.

        """
        ...

    def decode(self, text: str) -> Any:
        """Turn text back into the payload.

        Args:
            text: What ``encode`` returned, or whatever else is in the column.

        Returns:
            The payload.

        Raises:
            PayloadError: If it cannot be done.

        """
        ...


class TaggedJSON:
    r"""Write payloads as ASCII JSON, with tags for what JSON lacks: the default serializer.

    What it guarantees: ``decode(encode(value))`` has the same types and the same values throughout, or ``encode``
    raises. Order in dicts is kept; order in sets is nobody's. Where one object stands in several places, equal ones
    come back. A payload of str, numbers, bool, None, lists and dicts is plain JSON, for SQL and for other programs.

    A tag is a JSON object with exactly one key, and that key begins with ``$``. This is all there is:

    ====================================  ==================================================================
    Python                                JSON
    ====================================  ==================================================================
    None, bool, str                       null, true and false, string
    int                                   number from -2**63 to 2**63 - 1, else ``{"$int": "0x..."}``: hex
    float (finite)                        number with a point or an exponent
    list                                  array
    dict with str keys                    object
    other dict; one that is like a tag    ``{"$dict": [[key, value], ...]}``
    tuple, set, frozenset                 ``{"$tuple": [...]}``, ``{"$set": [...]}``, ``{"$frozenset": [...]}``
    bytes                                 ``{"$bytes": "base64"}``
    datetime.datetime, naive              ``{"$datetime": "2030-01-31T12:00:00.000001"}`` (ISO 8601)
    the same, UTC or fixed offset         ``{"$datetime": "2030-01-31T12:00:00+01:00"}``
    the same, with more facts             ``{"$datetime": ["2030-01-31T12:00:00", {"zone": "Europe/Oslo"}]}``;
                                          facts: zone (IANA key, the time is the wall clock's), name (of a
                                          fixed offset), fold (1: the second of two equal wall clock times)
    datetime.time                         ``{"$time": ...}``, as datetime
    datetime.date                         ``{"$date": "2030-01-31"}``
    datetime.timedelta                    ``{"$timedelta": "-1.5"}``: seconds, at most six decimals
    decimal.Decimal (finite)              ``{"$decimal": "1.10"}``
    uuid.UUID                             ``{"$uuid": "01890a5d-ac96-774b-bcce-b302099a8057"}``
    a registered type                     ``{"$type": [tag, value]}``
    str with two surrogates that JSON     ``{"$str": [...]}``: the pieces, to be joined
    would read as one character
    ====================================  ==================================================================

    Everything else is refused with a message that names the place: NaN and infinities, other tzinfo classes, reference
    cycles, more than 100 levels of nesting, and every subclass of the above, Enum members, named tuples, OrderedDict
    and defaultdict included, unless it is registered.

    Safe to use from several threads; register types before it is used.

    Example:
        >>> serializer = TaggedJSON()
        >>> serializer.encode({"to": "a@b.c", "ids": (1, 2)})
        '{"to":"a@b.c","ids":{"$tuple":[1,2]}}'
        >>> serializer.decode('{"to":"a@b.c","ids":{"$tuple":[1,2]}}')
        {'to': 'a@b.c', 'ids': (1, 2)}

    """

    def __init__(self, *, types: Iterable[tuple[type[Any], str, Callable[[Any], Any], Callable[[Any], Any]]] = ()) -> None:
        """Make a serializer.

        Args:
            types: More types, each as the arguments of `register`. Default none.

        Raises:
            TypeError: As `register`.
            ValueError: As `register`.

        """
        self._registered: dict[type[Any], Codec] = {}
        self._by_tag: dict[str, Codec] = {}
        codecs = {codec.kind: codec for codec in CODECS}
        self._taken = _PLAIN.union(codecs)
        self._tagger = Tagger(codecs, self._registered)
        self._readers: dict[str, Callable[[Any], Any]] = {
            **{f"${codec.tag}": codec.decode for codec in CODECS},
            "$int": read_int,
            "$str": read_str,
            "$dict": _read_dict,
            "$tuple": lambda items: tuple(_list(items)),
            "$set": lambda items: _read_members(set, items),
            "$frozenset": lambda items: _read_members(frozenset, items),
            "$type": self._read_registered,
        }
        self._from_json = json_reader(self._read_object, marks='"$')
        for kind, tag, encode, decode in types:
            self.register(kind, tag, encode, decode)

    def register(self, kind: type[_T], tag: str, encode: Callable[[_T], Any], decode: Callable[[Any], _T]) -> None:
        """Add a type of your own.

        The tag is stored with every value: it must mean the same as long as such rows exist, and the worker's
        serializer must know it too.

        Args:
            kind: The type, exactly: subclasses are not included.
            tag: Its name in the text, at least one character.
            encode: Turns a value into one that is stored; what it returns may hold registered types in its turn.
            decode: Turns that back into an equal value of exactly this type.

        Raises:
            TypeError: If kind is not a class, tag not a str, or encode or decode not callable.
            ValueError: If the type is stored anyway, or the type or the tag is registered already.

        Example:
            >>> serializer = TaggedJSON()
            >>> serializer.register(complex, "complex", lambda c: [c.real, c.imag], lambda parts: complex(*parts))
            >>> serializer.encode(1j)
            '{"$type":["complex",[0.0,1.0]]}'

        """
        if not isinstance(kind, type):
            raise TypeError(f"{shorten(kind)} is not a class. Give the class whose values are to be stored.")
        if not isinstance(tag, str) or not callable(encode) or not callable(decode):
            raise TypeError(
                f"register({kind.__name__}, {shorten(tag)}, {shorten(encode)}, {shorten(decode)}) does not fit."
                " Give the tag as a str, then two functions: value to storable value, and back."
            )
        if not tag or splits_pair(tag):
            raise ValueError(f"tag={shorten(tag)} cannot be a tag. Give a short name, such as {kind.__name__!r}.")
        if kind in self._taken:
            raise ValueError(f"{kind.__name__} is stored anyway. Leave it out; only other types can be registered.")
        for known in (self._registered.get(kind), self._by_tag.get(tag)):
            if known is not None:
                raise ValueError(
                    f"{kind.__name__} cannot be registered as {tag!r}: {known.kind.__name__} is registered as"
                    f" {known.tag!r} already. Register each type once, under a tag of its own."
                )
        codec = Codec(kind, tag, encode, decode)
        self._by_tag[tag] = codec
        self._registered[kind] = codec

    def encode(self, value: Any) -> str:
        """Turn a payload into ASCII text.

        Args:
            value: The payload; see the table above.

        Returns:
            JSON text without NUL characters. It is a snapshot: what happens to the value later does not matter.

        Raises:
            TypeError: If the payload holds a value of a type that cannot be stored. The message names the place as in
                ``payload["to"][3]``, and what to do.
            ValueError: If it holds a value that cannot be stored: infinite, cyclic, or nested too deep.

        """
        try:
            return "".join(_to_json(value if _is_plain((value,), DEEPEST) else self._tagger.tag(value), 0))
        except RecursionError:
            raise ValueError(
                f"payload cannot be encoded so deep in the call stack (recursion limit): {shorten(value)}."
                " Send a flatter payload, or enqueue from code that is less deeply nested."
            ) from None

    def decode(self, text: str) -> Any:
        """Turn text back into the payload.

        Args:
            text: What `encode` returned, or any other JSON text without unknown tags.

        Returns:
            The payload.

        Raises:
            PayloadError: If the text is not JSON, or holds an unknown tag or one with a wrong content. Nothing else is
                raised, whatever the text.

        """
        return self._from_json(text)

    def _read_object(self, found: dict[str, Any]) -> Any:
        if len(found) != 1 or not looks_like_tag(found):
            return found
        ((tag, content),) = found.items()
        reader = self._readers.get(tag)
        if reader is None:
            raise PayloadError(
                f"The payload holds the unknown tag {shorten(tag)}: {shorten(found)}."
                " It was written by a newer version: deploy that one."
                ' Or by hand: a dict with such a key is written {"$dict": [[key, value]]}.'
            )
        try:
            return reader(content)
        except PayloadError:
            raise
        except Exception as error:
            raise PayloadError(
                f"The payload holds a wrong {shorten(tag)}: {shorten(found)}: {type(error).__name__}: {error}"
            ) from error

    def _read_registered(self, content: Any) -> Any:
        tag, encoded = _list(content)
        codec = self._by_tag.get(tag)
        if codec is None:
            raise PayloadError(
                f"The payload holds a value of the unregistered type {shorten(tag)}."
                " Register it with the worker's serializer too: TaggedJSON.register(type, tag, encode, decode)."
            )
        value = codec.decode(encoded)
        if type(value) is not codec.kind:
            raise TypeError(
                f"the decode function registered for {tag!r} returned a {type(value).__name__}, not a {codec.kind.__name__}"
            )
        return value


def _is_plain(values: Iterable[Any], depth: int) -> bool:  # noqa: C901, PLR0912 - see the docstring
    """Tell whether the JSON encoder writes all of these so that they come back unchanged.

    One function with many branches, because every enqueue pays for each call in it.
    """
    for value in values:
        kind = type(value)
        if kind is str:
            if not value.isascii() and splits_pair(value):
                return False
        elif kind is int:
            if not SMALLEST_INT <= value <= LARGEST_INT:
                return False
        elif kind is dict:
            if not depth:
                return False
            for key in value:
                if type(key) is not str or (not key.isascii() and splits_pair(key)):
                    return False
            if (len(value) == 1 and looks_like_tag(value)) or not _is_plain(value.values(), depth - 1):
                return False
        elif kind is list:
            if not depth or not _is_plain(value, depth - 1):
                return False
        elif kind is float:
            if not isfinite(value):
                return False
        elif value is not None and kind is not bool:
            return False
    return True


def _list(content: Any) -> list[Any]:
    if type(content) is not list:
        raise TypeError("must hold a list")
    return content


def _read_members(kind: Callable[[Any], _T], items: Any) -> _T:
    members = kind(_list(items))
    if len(members) != len(items):  # type: ignore[arg-type]
        raise ValueError("holds one member twice")
    return members


def _read_dict(pairs: Any) -> dict[Any, Any]:
    found = {key: value for key, value in map(_list, _list(pairs))}  # noqa: C416 - dict() takes two-letter strings
    if len(found) != len(pairs):
        raise ValueError("holds one key twice")
    return found
