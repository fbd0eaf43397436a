"""The default serializer: the same type and value comes back, or the payload is refused with its place."""

import json
import sys
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from enum import Enum, IntEnum, StrEnum
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proletarian_sa._tagging import DEEPEST
from proletarian_sa.errors import PayloadError
from proletarian_sa.serializers import TaggedJSON

OSLO = ZoneInfo("Europe/Oslo")
SPLIT = "\ud83d" + "\ude00"  # two code points, where JSON would make one of them


class Color(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Moment(datetime):
    pass


class Somewhere(tzinfo):
    def utcoffset(self, _when):
        return timedelta(hours=1)


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str


class Broken:
    def __repr__(self):
        raise RuntimeError


Point = namedtuple("Point", "x y")  # noqa: PYI024 - the untyped kind is refused likewise


def exact(value: Any) -> Any:
    """Return what two values have in common only if they agree in type and value, all the way down."""
    kind = type(value)
    if kind is dict:
        return kind, [(exact(key), exact(item)) for key, item in value.items()]
    if kind in (list, tuple):
        return kind, [exact(item) for item in value]
    if kind in (set, frozenset):
        return kind, sorted(repr(exact(item)) for item in value)
    if kind in (datetime, time):
        zone = value.tzinfo
        place = zone.key if type(zone) is ZoneInfo else repr(zone)
        return kind, value.replace(tzinfo=None).isoformat(), value.fold, type(zone), place
    if kind is float:
        return kind, value.hex()
    if kind is int:
        return kind, hex(value)
    if kind is Decimal:
        return kind, value.as_tuple()
    if kind is str:
        return kind, [ord(character) for character in value]
    return kind, value


def come_back(value: Any) -> Any:
    """Send a value through the text and back."""
    text = TaggedJSON().encode(value)
    assert text.isascii()
    assert "\0" not in text
    return TaggedJSON().decode(text)


CASES = {
    "none": (None, "null"),
    "true": (True, "true"),
    "int": (-7, "-7"),
    "largest plain int": (2**63 - 1, "9223372036854775807"),
    "smallest plain int": (-(2**63), "-9223372036854775808"),
    "larger int": (2**63, '{"$int":"0x8000000000000000"}'),
    "smaller int": (-(2**63) - 1, '{"$int":"-0x8000000000000001"}'),
    "float": (1.5, "1.5"),
    "float that is whole": (1.0, "1.0"),
    "negative zero": (-0.0, "-0.0"),
    "smallest float": (5e-324, "5e-324"),
    "text": ("a@b.c", '"a@b.c"'),
    "text that looks like a tag": ("$uuid", '"$uuid"'),
    "NUL": ("a\0b", r'"a\u0000b"'),
    "emoji": ("\U0001f600", r'"\ud83d\ude00"'),
    "lone high surrogate": ("\ud83d", r'"\ud83d"'),
    "lone low surrogate": ("\ude00", r'"\ude00"'),
    "surrogates in the wrong order": ("\ude00\ud83d", r'"\ude00\ud83d"'),
    "split pair": (SPLIT, r'{"$str":["\ud83d","\ude00"]}'),
    "list": ([1, [2.0, "x"]], '[1,[2.0,"x"]]'),
    "dict": ({"to": "a@b.c", "n": 1}, '{"to":"a@b.c","n":1}'),
    "empty ones": ([{}, []], "[{},[]]"),
    "NUL in a key": ({"a\0b": 1}, r'{"a\u0000b":1}'),
    "split pair in a key": ({SPLIT: 1}, r'{"$dict":[[{"$str":["\ud83d","\ude00"]},1]]}'),
    "key like a tag": ({"$uuid": 1}, '{"$dict":[["$uuid",1]]}'),
    "key like the escape": ({"$dict": [[1, 2]]}, '{"$dict":[["$dict",[[1,2]]]]}'),
    "key of the tag sign": ({"$": {"$": 1}}, '{"$dict":[["$",{"$dict":[["$",1]]}]]}'),
    "two keys like tags": ({"$set": 1, "$inc": 2}, '{"$set":1,"$inc":2}'),
    "int keys": ({1: "a", 0: "b"}, '{"$dict":[[1,"a"],[0,"b"]]}'),
    "bool key": ({True: 1}, '{"$dict":[[true,1]]}'),
    "float key": ({1.0: 1}, '{"$dict":[[1.0,1]]}'),
    "keys of several types": (
        {"a": 1, None: 2, (1, 2): 3, 4: 5},
        '{"$dict":[["a",1],[null,2],[{"$tuple":[1,2]},3],[4,5]]}',
    ),
    "tuple": ((1, (2,), ()), '{"$tuple":[1,{"$tuple":[2]},{"$tuple":[]}]}'),
    "set": ({1}, '{"$set":[1]}'),
    "frozenset": (frozenset({(1, "a")}), '{"$frozenset":[{"$tuple":[1,"a"]}]}'),
    "bytes": (b"\0\xff", '{"$bytes":"AP8="}'),
    "naive datetime": (datetime(2030, 1, 31, 12, 0, 0, 1), '{"$datetime":"2030-01-31T12:00:00.000001"}'),  # noqa: DTZ001
    "UTC": (datetime(2030, 1, 31, 12, tzinfo=UTC), '{"$datetime":"2030-01-31T12:00:00+00:00"}'),
    "fixed offset": (
        datetime(2030, 1, 31, 12, tzinfo=timezone(timedelta(hours=-5, minutes=-30))),
        '{"$datetime":"2030-01-31T12:00:00-05:30"}',
    ),
    "odd offset": (
        datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=1, microseconds=5))),
        '{"$datetime":"1900-01-01T00:00:00+00:00:01.000005"}',
    ),
    "named offset": (
        datetime(2030, 1, 31, 12, tzinfo=timezone(timedelta(hours=1), "CET")),
        '{"$datetime":["2030-01-31T12:00:00+01:00",{"name":"CET"}]}',
    ),
    "offset with an odd name": (
        datetime(2030, 1, 31, 12, tzinfo=timezone(timedelta(0), SPLIT)),
        r'{"$datetime":["2030-01-31T12:00:00+00:00",{"name":{"$str":["\ud83d","\ude00"]}}]}',
    ),
    "zone": (
        datetime(2030, 7, 1, 12, tzinfo=OSLO),
        '{"$datetime":["2030-07-01T12:00:00",{"zone":"Europe/Oslo"}]}',
    ),
    "second 02:30 of the night": (
        datetime(2029, 10, 28, 2, 30, tzinfo=OSLO, fold=1),
        '{"$datetime":["2029-10-28T02:30:00",{"zone":"Europe/Oslo","fold":1}]}',
    ),
    "naive with fold": (
        datetime(2029, 10, 28, 2, 30, fold=1),  # noqa: DTZ001
        '{"$datetime":["2029-10-28T02:30:00",{"fold":1}]}',
    ),
    "first datetime": (datetime.min, '{"$datetime":"0001-01-01T00:00:00"}'),  # noqa: DTZ901
    "zone named UTC": (
        datetime(2030, 1, 1, tzinfo=ZoneInfo("UTC")),
        '{"$datetime":["2030-01-01T00:00:00",{"zone":"UTC"}]}',
    ),
    "date": (date(2030, 1, 31), '{"$date":"2030-01-31"}'),
    "time": (time(12, 30, 0, 5), '{"$time":"12:30:00.000005"}'),
    "time in a zone": (time(12, tzinfo=OSLO, fold=1), '{"$time":["12:00:00",{"zone":"Europe/Oslo","fold":1}]}'),
    "time with an offset": (time(12, tzinfo=UTC), '{"$time":"12:00:00+00:00"}'),
    "timedelta": (timedelta(days=1, seconds=1.5), '{"$timedelta":"86401.500000"}'),
    "negative timedelta": (timedelta(microseconds=-1), '{"$timedelta":"-0.000001"}'),
    "longest timedelta": (timedelta.max, '{"$timedelta":"86399999999999.999999"}'),
    "most negative timedelta": (timedelta.min, '{"$timedelta":"-86399999913600"}'),
    "UUID": (UUID(int=1), '{"$uuid":"00000000-0000-0000-0000-000000000001"}'),
    "Decimal": (Decimal("1.10"), '{"$decimal":"1.10"}'),
    "negative zero Decimal": (Decimal("-0"), '{"$decimal":"-0"}'),
    "Decimal with an exponent": (Decimal("1E+9999"), '{"$decimal":"1E+9999"}'),
}


@pytest.mark.parametrize(("value", "text"), CASES.values(), ids=CASES)
def test_each_type_has_one_form_and_comes_back(value, text):
    """Common rich types: each supported one is written in the documented form, and comes back as the same type and value."""
    assert text == TaggedJSON().encode(value)
    assert exact(value) == exact(TaggedJSON().decode(text))


def test_plain_payloads_are_plain_json():
    """A payload that JSON can say is what any JSON writer would write, so that SQL and other programs can read it."""
    payload = {"to": ["a@b.c"], "n": 1, "x": 1.5, "ok": True, "none": None, "deep": {"a": {"b": []}}}

    assert json.dumps(payload, separators=(",", ":")) == TaggedJSON().encode(payload)


@pytest.mark.parametrize("value", [10**30, -(10**30), 10**5000, -(10**5000)], ids=["30", "-30", "5000", "-5000"])
def test_ints_of_any_size_come_back(value):
    """An int has no largest value, although Python limits the decimal digits that it converts."""
    assert value == come_back({"n": value})["n"]


def test_ints_ignore_a_lower_digit_limit():
    """The application may lower Python's digit limit as far as it goes."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert 10**700 == come_back(10**700)
        assert 2**63 - 1 == come_back(2**63 - 1)
    finally:
        sys.set_int_max_str_digits(before)


def test_decimals_ignore_the_context():
    """A Decimal with more digits than the context's precision comes back whole."""
    value = Decimal("1234567890.123456789")
    with localcontext(prec=2):
        assert exact(value) == exact(come_back(value))


def test_dicts_keep_their_order_and_the_types_of_keys():
    """Silent type changes: order and key types of a dict are kept, where True and 1 would be one key."""
    value = {"b": {True: "yes"}, "a": {1: "one"}, "c": {1.0: "float"}}

    assert exact(value) == exact(come_back(value))


def test_the_text_is_a_snapshot():
    """What happens to the payload after encoding does not matter."""
    payload = {"to": ["a"]}
    text = TaggedJSON().encode(payload)
    payload["to"].append("b")

    assert {"to": ["a"]} == TaggedJSON().decode(text)


def test_one_object_in_two_places_is_no_cycle():
    """A list that stands in two places is written twice."""
    shared = [(1,)]

    assert [[(1,)], [(1,)]] == come_back([shared, shared])


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"a": x}, lambda x: (x,), lambda x: {1: x}])
def test_nesting_to_the_documented_depth_comes_back(wrap):
    """100 levels of nesting come back, in each kind of container."""
    value = 0
    for _ in range(DEEPEST):
        value = wrap(value)

    assert 100 == DEEPEST
    assert exact(value) == exact(come_back(value))


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**62, max_value=2**66) | st.integers(min_value=-(2**66), max_value=-(2**62)),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.text(st.characters(categories=("Cs", "Lu"))),
    st.text(st.sampled_from(["$", "d", "\ud83d", "\ude00", "\U0001f600", "\0"])),
    st.sampled_from(["$", "$dict", "$tuple", "$type", "$int", "$str", "$uuid"]),
    st.binary(),
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False),
)
fixed_zones = st.builds(timezone, st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59))) | st.builds(
    timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)), st.text()
)
zones = st.none() | st.just(UTC) | st.timezones() | fixed_zones
folds = st.sampled_from([0, 1])
moments = st.builds(lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold), st.datetimes() | st.times(), zones, folds)
leaves = scalars | moments
tuples = st.lists(leaves, max_size=3).map(tuple)
keys = leaves | tuples | st.frozensets(leaves | tuples, max_size=3)
payloads = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(), inner, max_size=4),
        st.dictionaries(scalars, inner, max_size=1),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
    ),
    max_leaves=12,
)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of the strategy, while a test fails or is slow
@given(payloads)
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_any_supported_value_comes_back(value):
    """Any nesting of supported values comes back with the same types and values."""
    assert exact(value) == exact(come_back(value))


def cycle(make):
    """Return a list that contains itself by way of what make returns."""
    outer: list[Any] = [0]
    outer.append(make(outer))
    return outer


def too_deep(levels):
    """Return that many lists around an empty one."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


REFUSED = {
    "NaN": ({"x": float("nan")}, ValueError, 'payload["x"] is nan, and only finite numbers are stored. Send None'),
    "infinity": ([1, float("-inf")], ValueError, "payload[1] is -inf, and only finite numbers"),
    "Decimal NaN": ({"x": Decimal("NaN")}, ValueError, "payload[\"x\"] is Decimal('NaN'), and only finite numbers"),
    "Decimal sNaN": ([Decimal("sNaN")], ValueError, "payload[0] is Decimal('sNaN'), and only finite"),
    "Decimal infinity": ([Decimal("-Infinity")], ValueError, "payload[0] is Decimal('-Infinity'), and only finite"),
    "Enum": ({"to": [0, 1, 2, Color.RED]}, TypeError, 'payload["to"][3] is of type {here}.Color'),
    "Enum's cure": (Color.RED, TypeError, "Send its .value, or register the type: TaggedJSON.register(Color, "),
    "IntEnum": (Level.LOW, TypeError, "payload is of type {here}.Level"),
    "StrEnum": (Word.YES, TypeError, "payload is of type {here}.Word"),
    "Enum as a key": ({"a": {1: 0, Color.RED: 1}}, TypeError, 'list(payload["a"])[1] is of type {here}.Color'),
    "StrEnum as the key of a plain dict": ({Word.YES: 1}, TypeError, "list(payload)[0] is of type {here}.Word"),
    "in a set": ({"a": {Color.RED}}, TypeError, 'list(payload["a"])[0] is of type {here}.Color'),
    "in a tuple": (([Color.RED],), TypeError, "payload[0][0] is of type {here}.Color"),
    "under an int key": ({7: Color.RED}, TypeError, "payload[7] is of type {here}.Color"),
    "under a tuple key": ({(7, "a"): Color.RED}, TypeError, "payload[(7, 'a')] is of type {here}.Color"),
    "under a key with quotes": ({"it's": Color.RED}, TypeError, 'payload["it\'s"] is of type {here}.Color'),
    "under a key with both quotes": ({"'\"": Color.RED}, TypeError, "payload['\\'\"'] is of type {here}.Color"),
    "under a long key": ({"x" * 999: Color.RED}, TypeError, f'payload["{"x" * 27}...{"x" * 28}"] is of type'),
    "under an odd key": ({"\ud83d\0": Color.RED}, TypeError, 'payload["\\ud83d\\x00"] is of type'),
    "under a huge key": ({10**5000: Color.RED}, TypeError, "payload[<int>] is of type"),
    "namedtuple": (Point(1, 2), TypeError, "Point(x=1, y=2). Send tuple(...) of it"),
    "OrderedDict": (OrderedDict(a=1), TypeError, "payload is of type collections.OrderedDict"),
    "defaultdict": (defaultdict(int), TypeError, "Send dict(...) of it"),
    "str subclass": (Text("a"), TypeError, "Send str(...) of it"),
    "int subclass": (Number(1), TypeError, "Send int(...) of it"),
    "datetime subclass": (Moment(2030, 1, 1, tzinfo=UTC), TypeError, "Send a plain datetime"),
    "path": (PurePosixPath("/x"), TypeError, "PurePosixPath('/x'). Send str(...) of it"),
    "generator": ((x for x in ()), TypeError, "payload is of type generator"),
    "generator's cure": (iter([1]), TypeError, "Send list(...) of it"),
    "dict view": ({}.keys(), TypeError, "payload is of type dict_keys"),
    "lambda": ({"f": lambda: 0}, TypeError, 'payload["f"] is of type function'),
    "lambda's cure": (len, TypeError, "Send data, not code"),
    "class": (Money, TypeError, "Send data, not code"),
    "bytearray": (bytearray(b"x"), TypeError, "Send bytes(...) of it"),
    "complex": (1j, TypeError, "payload is of type complex, which would not come back as it is: 1j."),
    "object": (Money(Decimal(1), "EUR"), TypeError, "Send its id, or a dict of what the handler needs"),
    "broken repr": ([Broken()], TypeError, "payload[0] is of type {here}.Broken, which"),
    "long repr": ([Text("x" * 10_000)], TypeError, "xxx...xxx"),
    "own tzinfo": (
        [datetime(2030, 1, 1, tzinfo=Somewhere())],
        TypeError,
        "payload[0] has a tzinfo of type {here}.Somewhere, which cannot be written. Send .astimezone(timezone.utc)",
    ),
    "own tzinfo of a time": (time(1, tzinfo=Somewhere()), TypeError, "payload has a tzinfo of type"),
    "cycle": (cycle(lambda x: x), ValueError, "payload[1] is payload again: it contains itself. Send the ids"),
    "cycle through a dict": (cycle(lambda x: {"a": x}), ValueError, 'payload[1]["a"] is payload again'),
    "cycle through a tuple": ({"k": cycle(lambda x: (x,))}, ValueError, 'payload["k"][1][0] is payload["k"] again'),
    "too deep": (too_deep(DEEPEST), ValueError, "payload[0][0][0][0][0][0][0][0]... (92 steps further in) is nested"),
    "much too deep": (too_deep(50_000), ValueError, "deeper than 100 levels. Send a flatter payload"),
}


@pytest.mark.parametrize(("value", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_would_not_come_back_is_refused_with_its_place(value, error, message):
    """Silent type changes: a value that would not come back is refused: the message names its place, itself, and what to do."""
    with pytest.raises(error) as caught:
        TaggedJSON().encode(value)

    assert message.replace("{here}", __name__) in str(caught.value)
    assert error is caught.type
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", [None, "Nowhere/Nothing"])
def test_a_zone_that_nobody_could_find_again_is_refused(key):
    """A ZoneInfo made from a file is stored only if its key finds a zone."""
    empty = b"TZif2" + b"\0" * 15 + b"\0\0\0\0" * 4 + b"\0\0\0\1\0\0\0\4" + b"\0\0\0\0\0\0UTC\0"
    zone = ZoneInfo.from_file(BytesIO(empty + empty + b"\nUTC0\n"), key=key)

    with pytest.raises(ValueError, match=r"payload\[0\] has a ZoneInfo whose key .* names no zone. Send .astimezone"):
        TaggedJSON().encode([datetime(2030, 1, 1, tzinfo=zone)])


def test_a_full_call_stack_is_a_value_error():
    """When the call stack has no room to encode a payload, that is a ValueError too."""

    def deeper():
        try:
            return deeper()
        except RecursionError:
            return TaggedJSON().encode(too_deep(DEEPEST - 1))

    with pytest.raises(ValueError, match="payload cannot be encoded so deep in the call stack"):
        deeper()


UNREADABLE = {
    "nothing": ("", "is not JSON: Expecting value at character 0 of 0"),
    "cut off": ('{"to": "a', "is not JSON: Unterminated string starting at at character 7 of 9"),
    "two values": ("1 2", "is not JSON: Extra data at character 2 of 3"),
    "NaN": ("[NaN]", "holds NaN, which is no number"),
    "infinity": ('{"x": -Infinity}', "holds -Infinity, which is no number"),
    "large float": ("[1e999]", "holds a number that is too large for a float: '1e999'"),
    "long int": ("9" * 5000, "cannot be read: Exceeds the limit"),
    "no text": (None, "cannot be read"),
    "bytes": (b"1", "cannot be read"),
    "too deep": ("[" * 100_000, "is nested too deep to be read: '[[["),
    "too deep in dicts": ('{"a":' * 100_000, "is nested too deep to be read"),
    "unknown tag": (
        '[{"$complex": 1}]',
        "holds the unknown tag '$complex': {'$complex': 1}. It was written by a newer",
    ),
    "the empty tag": ('{"$": 1}', "holds the unknown tag '$'"),
    "unregistered type": ('{"$type": ["money", 1]}', "holds a value of the unregistered type 'money'. Register it"),
    "type without name": ('{"$type": [[], 1]}', "holds a wrong '$type'"),
    "type without value": ('{"$type": ["money"]}', "holds a wrong '$type'"),
    "int of digits": ('{"$int": "10"}', "holds a wrong '$int': {'$int': '10'}: ValueError: must hold hexadecimal"),
    "int of int": ('{"$int": 10}', "holds a wrong '$int'"),
    "str of str": ('{"$str": "ab"}', "holds a wrong '$str': {'$str': 'ab'}: TypeError: must hold a list"),
    "str of ints": ('{"$str": [1]}', "holds a wrong '$str'"),
    "dict of dict": ('{"$dict": {"a": 1}}', "holds a wrong '$dict': {'$dict': {'a': 1}}: TypeError: must hold a list"),
    "dict of strings": ('{"$dict": ["ab"]}', "holds a wrong '$dict'"),
    "dict of triples": ('{"$dict": [[1, 2, 3]]}', "holds a wrong '$dict'"),
    "dict with a list as key": ('{"$dict": [[[], 1]]}', "holds a wrong '$dict'"),
    "dict with a key twice": ('{"$dict": [[1, 1], [true, 2]]}', "ValueError: holds one key twice"),
    "tuple of str": ('{"$tuple": "ab"}', "holds a wrong '$tuple'"),
    "set of lists": ('{"$set": [[]]}', "holds a wrong '$set'"),
    "set with a member twice": ('{"$set": [1, 1.0]}', "ValueError: holds one member twice"),
    "frozenset of dict": ('{"$frozenset": {}}', "holds a wrong '$frozenset'"),
    "bytes of int": ('{"$bytes": 1}', "holds a wrong '$bytes': {'$bytes': 1}: TypeError: must hold base64 text"),
    "bytes cut off": ('{"$bytes": "AP8"}', "holds a wrong '$bytes'"),
    "bytes with other characters": ('{"$bytes": "A P8="}', "holds a wrong '$bytes'"),
    "datetime of words": ('{"$datetime": "noon"}', "holds a wrong '$datetime'"),
    "datetime of null": ('{"$datetime": null}', "holds a wrong '$datetime'"),
    "datetime without facts": ('{"$datetime": ["2030-01-01T00:00:00"]}', "holds a wrong '$datetime'"),
    "datetime with other facts": (
        '{"$datetime": ["2030-01-01T00:00:00", {"zone": "UTC", "leap": 1}]}',
        "knows nothing of {'leap'}",
    ),
    "datetime with facts of a list": ('{"$datetime": ["2030-01-01T00:00:00", []]}', "holds a wrong '$datetime'"),
    "datetime in an unknown zone": (
        '{"$datetime": ["2030-01-01T00:00:00", {"zone": "Nowhere/Nothing"}]}',
        "ZoneInfoNotFoundError: 'No time zone found with key Nowhere/Nothing'",
    ),
    "datetime in a file": (
        '{"$datetime": ["2030-01-01T00:00:00", {"zone": "../passwd"}]}',
        "holds a wrong '$datetime'",
    ),
    "datetime in a folder": ('{"$datetime": ["2030-01-01T00:00:00", {"zone": "Europe"}]}', "holds a wrong '$datetime'"),
    "datetime in no zone": ('{"$datetime": ["2030-01-01T00:00:00", {"zone": null}]}', "holds a wrong '$datetime'"),
    "datetime with a lonely name": (
        '{"$datetime": ["2030-01-01T00:00:00", {"name": "X"}]}',
        "a name without an offset",
    ),
    "datetime folded twice": ('{"$datetime": ["2030-01-01T00:00:00", {"fold": 2}]}', "holds a wrong '$datetime'"),
    "date of a list": ('{"$date": []}', "holds a wrong '$date'"),
    "time after midnight": ('{"$time": "25:00:00"}', "holds a wrong '$time'"),
    "timedelta of a float": ('{"$timedelta": 1.5}', "holds a wrong '$timedelta'"),
    "timedelta of words": ('{"$timedelta": "1 day"}', "must hold seconds with at most six decimals"),
    "timedelta that is too long": ('{"$timedelta": "99999999999999"}', "holds a wrong '$timedelta'"),
    "Decimal of a float": ('{"$decimal": 1.1}', "TypeError: must hold a number as text"),
    "Decimal of words": ('{"$decimal": "one"}', "holds a wrong '$decimal'"),
    "Decimal NaN": ('{"$decimal": "NaN"}', "ValueError: must hold a finite number"),
    "UUID of an int": ('{"$uuid": 1}', "holds a wrong '$uuid'"),
    "UUID cut off": ('{"$uuid": "0000"}', "holds a wrong '$uuid'"),
    "tag in a tag": ('{"$uuid": {"$bytes": "AP8="}}', "holds a wrong '$uuid': {'$uuid': b'\\x00\\xff'}"),
}


@pytest.mark.parametrize(("text", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_a_payload_error(text, message):
    """A text that is not JSON, or holds an unknown tag or a wrong one, is a PayloadError that names what is wrong."""
    with pytest.raises(PayloadError) as caught:
        TaggedJSON().decode(text)

    assert f"The payload {message}" in str(caught.value) or message in str(caught.value)
    assert len(str(caught.value)) < 500


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | moments.map(str),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.dictionaries(st.sampled_from(sorted(TaggedJSON()._readers)), inner, min_size=1, max_size=1)
    ),
    max_leaves=8,
)


@given(st.text() | st.text('[]{}:,"$0e-.') | json_values.map(json.dumps))
@settings(deadline=None, max_examples=300)
def test_decode_raises_nothing_but_payload_errors(text):
    """Whatever stands in the column: a value that can be encoded again, or a PayloadError."""
    try:
        value = TaggedJSON().decode(text)
    except PayloadError:
        return
    assert exact(value) == exact(come_back(value))


def money_serializer():
    """Return a serializer that knows Money and Color, and writes Money by way of a Decimal."""
    serializer = TaggedJSON(types=[(Money, "money", lambda m: (m.amount, m.currency), lambda parts: Money(*parts))])
    serializer.register(Color, "color", lambda color: color.value, Color)
    return serializer


def test_registered_types_come_back_everywhere():
    """A registered type comes back as value, as key, in a set, and within another registered type's values."""
    serializer = money_serializer()
    euro = Money(Decimal("1.10"), "EUR")
    value = {"a": [euro], euro: {Color.RED}, (Color.RED,): frozenset({euro})}

    text = serializer.encode(value)

    assert '{"$type":["money",{"$tuple":[{"$decimal":"1.10"},"EUR"]}]}' in text
    assert exact(value) == exact(serializer.decode(text))


def test_registering_subclasses_of_stored_types():
    """Enums, named tuples and the like can be registered although their bases are stored in another way."""
    serializer = TaggedJSON(
        types=[
            (Point, "point", list, Point._make),
            (Level, "level", int, Level),
            (Word, "word", str, Word),
            (OrderedDict, "ordered", dict, OrderedDict),
        ]
    )
    value = [Point(1, 2), Level.LOW, {Word.YES: OrderedDict(a=1)}]

    back = serializer.decode(serializer.encode(value))

    assert exact(value) == exact(back)
    assert [Point, Level] == [type(back[0]), type(back[1])]
    assert [Word] == [type(key) for key in back[2]]


def test_registering_is_exact():
    """A subclass of a registered type is refused like any other."""

    class Cash(Money):
        pass

    with pytest.raises(TypeError, match="Cash, which would not come back"):
        money_serializer().encode(Cash(Decimal(1), "EUR"))


def test_serializers_do_not_share_types():
    """What one serializer has registered is unknown to another, which says so when it reads."""
    text = money_serializer().encode(Color.RED)

    with pytest.raises(PayloadError, match="unregistered type 'color'"):
        TaggedJSON().decode(text)


def test_refusals_within_registered_types_name_the_place():
    """What a registered encode returns is checked like any other value."""
    with pytest.raises(TypeError, match=r'encode\(payload\["m"\]\)\[1\] is of type complex'):
        money_serializer().encode({"m": Money(Decimal(1), 1j)})


def test_encode_functions_that_raise_are_value_errors():
    """An exception of a registered encode function is a ValueError that names the place and the cause."""
    serializer = TaggedJSON(types=[(Money, "money", lambda money: money.value, Money)])

    with pytest.raises(ValueError, match=r"payload\[0\]: the encode function registered for 'money' raised Attr") as e:
        serializer.encode([Money(Decimal(1), "EUR")])
    assert isinstance(e.value.__cause__, AttributeError)


@pytest.mark.parametrize("encode", [lambda money: money, lambda money: [money], lambda _: Money(Decimal(1), "EUR")])
def test_encode_functions_that_go_in_circles_are_value_errors(encode):
    """A registered encode function that leads back to its own type is a ValueError."""
    serializer = TaggedJSON(types=[(Money, "money", encode, Money)])

    with pytest.raises(ValueError, match=r"it contains itself|nested deeper than"):
        serializer.encode(Money(Decimal(1), "EUR"))


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (lambda _: {}["gone"], "holds a wrong '$type': {'$type': ['money', 1]}: KeyError: 'gone'"),
        (lambda _: 1, "the decode function registered for 'money' returned a int, not a Money"),
    ],
)
def test_decode_functions_that_fail_are_payload_errors(decode, message):
    """A registered decode function that raises, or returns another type, is a PayloadError."""
    serializer = TaggedJSON(types=[(Money, "money", lambda _: 1, decode)])

    with pytest.raises(PayloadError) as caught:
        serializer.decode('{"$type": ["money", 1]}')
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("Money", "money", str, str), TypeError, "'Money' is not a class. Give the class"),
        ((complex, 1, str, str), TypeError, "does not fit. Give the tag as a str, then two functions"),
        ((complex, "complex", None, str), TypeError, "does not fit. Give the tag as a str, then two functions"),
        ((complex, "complex", str, None), TypeError, "does not fit. Give the tag as a str, then two functions"),
        ((complex, "", str, str), ValueError, "tag='' cannot be a tag. Give a short name, such as 'complex'"),
        ((complex, SPLIT, str, str), ValueError, "cannot be a tag"),
        ((UUID, "uuid", str, UUID), ValueError, "UUID is stored anyway. Leave it out"),
        ((dict, "dict", str, str), ValueError, "dict is stored anyway. Leave it out"),
        ((bool, "bool", str, str), ValueError, "bool is stored anyway. Leave it out"),
        ((Money, "cash", str, str), ValueError, "Money cannot be registered as 'cash': Money is registered as 'money'"),
        ((complex, "money", str, str), ValueError, "complex cannot be registered as 'money': Money is registered as"),
    ],
)
def test_registrations_that_make_no_sense_are_refused(arguments, error, message):
    """A registration is checked at once, and the message says what to type."""
    with pytest.raises(error) as caught:
        money_serializer().register(*arguments)
    assert message in str(caught.value)
