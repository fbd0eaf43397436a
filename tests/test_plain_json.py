"""Plain JSON: what any other program writes and reads, and nothing else, with the place of what does not fit."""

import datetime as dt
import json
import uuid
from collections import OrderedDict, namedtuple
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePosixPath
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from proletarian_sa import JobTables, PayloadError, PlainJSON, create_all, enqueue
from tests.queue_contents import queued, run_due
from tests.test_serializers import cycle, exact, too_deep


class Color(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


class Text(str):
    __slots__ = ()


Point = namedtuple("Point", "x y")  # noqa: PYI024 - the untyped kind is refused likewise

WRITTEN: dict[str, tuple[Any, str]] = {
    "none": (None, "null"),
    "true": (True, "true"),
    "false": (False, "false"),
    "int": (-7, "-7"),
    "largest int": (2**63 - 1, "9223372036854775807"),
    "smallest int": (-(2**63), "-9223372036854775808"),
    "float": (1.5, "1.5"),
    "whole float": (1.0, "1.0"),
    "negative zero": (-0.0, "-0.0"),
    "small float": (5e-324, "5e-324"),
    "text": ("a@b.c", '"a@b.c"'),
    "other characters": ("é\U0001f600", r'"\u00e9\ud83d\ude00"'),
    "NUL": ("a\0b", r'"a\u0000b"'),
    "quotes and lines": ('"\\\n\t', r'"\"\\\n\t"'),
    "list": ([1, [2.0, "x"], []], '[1,[2.0,"x"],[]]'),
    "dict": ({"to": "a@b.c", "n": {}, "é": [None]}, '{"to":"a@b.c","n":{},"\\u00e9":[null]}'),
    "empty key": ({"": 1}, '{"":1}'),
    "key like a tag": ({"$uuid": "x"}, '{"$uuid":"x"}'),
    "deep": (too_deep(99), "[" * 100 + "]" * 100),
}


@pytest.mark.parametrize(("value", "text"), WRITTEN.values(), ids=WRITTEN)
def test_what_json_has_comes_back(value: Any, text: str):
    """Text, numbers, true, false, null, lists and dicts are written as any JSON, and come back with type and value."""
    assert text == PlainJSON().encode(value)
    assert exact(value) == exact(PlainJSON().decode(text))
    assert exact(value) == exact(json.loads(text))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.just("$tuple"), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(values)
@settings(deadline=None)
def test_any_value_that_json_has_comes_back(value: Any):
    """Any nesting of these comes back with the same types and values, through ASCII text without NUL."""
    text = PlainJSON().encode(value)

    assert text.isascii()
    assert "\0" not in text
    assert exact(value) == exact(PlainJSON().decode(text))


KEEP = "or keep it: JobTables(serializer=TaggedJSON())"

REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "tuple": (
        {"a": [0, 1, (2,)]},
        TypeError,
        f'payload["a"][2] is of type tuple, which JSON has not: (2,). Send list(...) of it, {KEEP}.',
    ),
    "empty tuple": ((), TypeError, "payload is of type tuple"),
    "namedtuple": (Point(1, 2), TypeError, "Point(x=1, y=2). Send list(...) of it."),
    "set": ([{1}], TypeError, f"payload[0] is of type set, which JSON has not: {{1}}. Send list(...) of it, {KEEP}"),
    "frozenset": (frozenset(), TypeError, "payload is of type frozenset"),
    "datetime": (
        {"at": dt.datetime(2030, 1, 1, tzinfo=dt.UTC)},
        TypeError,
        'payload["at"] is of type datetime.datetime, which JSON has not',
    ),
    "datetime's cure": (dt.datetime(2030, 1, 1), TypeError, f"Send its .isoformat(), {KEEP}"),  # noqa: DTZ001 - naive is refused too
    "date": (dt.date(2030, 1, 1), TypeError, f"Send its .isoformat(), {KEEP}"),
    "time": (dt.time(1), TypeError, f"Send its .isoformat(), {KEEP}"),
    "timedelta": (dt.timedelta(1), TypeError, f"Send its .total_seconds(), {KEEP}"),
    "UUID": (uuid.UUID(int=1), TypeError, f"Send str(...) of it, {KEEP}"),
    "Decimal": (
        Decimal("1.10"),
        TypeError,
        f"payload is of type decimal.Decimal, which JSON has not: Decimal('1.10'). Send str(...) of it, {KEEP}",
    ),
    "bytes": (b"x", TypeError, f"Send base64.b64encode(...).decode() of it, {KEEP}"),
    "bytearray": (bytearray(b"x"), TypeError, "Send base64.b64encode(...).decode() of it."),
    "path": (PurePosixPath("/x"), TypeError, "Send str(...) of it."),
    "Enum": (Color.RED, TypeError, "Send its .value."),
    "IntEnum": (Level.LOW, TypeError, "payload is of type {here}.Level"),
    "StrEnum": (
        [Word.YES],
        TypeError,
        "payload[0] is of type {here}.Word, which JSON has not: <Word.YES: 'yes'>. Send its .value.",
    ),
    "str subclass": (Text("a"), TypeError, "payload is of type {here}.Text, which JSON has not: 'a'. Send str(...) of it."),
    "OrderedDict": (OrderedDict(a=1), TypeError, "Send dict(...) of it."),
    "generator": ((x for x in ()), TypeError, "Send list(...) of it."),
    "function": (len, TypeError, "Send data, not code."),
    "class": (Color, TypeError, "Send data, not code."),
    "object": (object(), TypeError, "Send its id, or a dict of what the handler needs."),
    "int key": (
        {"a": {1: 0}},
        TypeError,
        f'list(payload["a"])[0] is of type int, and a key in JSON is a str: 1. Send str(...) of it, {KEEP}',
    ),
    "None as a key": ({None: 0}, TypeError, "list(payload)[0] is of type NoneType"),
    "bool key": ({"x": 0, True: 0}, TypeError, "list(payload)[1] is of type bool"),
    "StrEnum as a key": ({Word.YES: 1}, TypeError, "list(payload)[0] is of type {here}.Word"),
    "NaN": ({"x": float("nan")}, ValueError, 'payload["x"] is nan, and JSON has finite numbers only. Send None or a str instead.'),
    "infinity": ([1, float("-inf")], ValueError, "payload[1] is -inf"),
    "large int": (
        2**63,
        ValueError,
        "payload is an int of more than 64 bits, which other programs do not read exactly: 9223372036854775808.",
    ),
    "small int": (
        {"n": -(2**63) - 1},
        ValueError,
        'payload["n"] is an int of more than 64 bits, which other programs do not read exactly: ',
    ),
    "huge int": ([10**5000], ValueError, "payload[0] is an int of more than 64 bits"),
    "lone surrogate": (
        ["\ud83d"],
        ValueError,
        "payload[0] has a surrogate, which is no character and which other programs refuse: '\\ud83d'.",
    ),
    "split pair": ("\ud83d" + "\ude00", ValueError, 'Send text.encode("utf-8", "replace").decode().'),
    "surrogate in a key": ({"\ude00": 1}, ValueError, "list(payload)[0] has a surrogate"),
    "cycle": (cycle(lambda x: {"a": x}), ValueError, 'payload[1]["a"] is payload again: it contains itself. Send the ids'),
    "too deep": (too_deep(100), ValueError, "is nested deeper than 100 levels. Send a flatter payload"),
    "much too deep": (too_deep(50_000), ValueError, "is nested deeper than 100 levels"),
}


@pytest.mark.parametrize(("value", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_json_has_not_is_refused_with_its_place(value: Any, error: type[Exception], message: str):
    """What would come back changed, or not at all, is refused: the message names its place, itself, and what to do."""
    with pytest.raises(error) as caught:
        PlainJSON().encode(value)

    assert message.replace("{here}", __name__) in str(caught.value)
    assert error is caught.type
    assert len(str(caught.value)) < 500


def test_the_cure_for_surrogates_works():
    """The line that the message says to type makes text that can be sent."""
    assert "a?" == PlainJSON().decode(PlainJSON().encode("a\ud83d".encode("utf-8", "replace").decode()))


def test_a_full_call_stack_is_a_value_error():
    """When the call stack has no room to encode a payload, that is a ValueError too."""

    def deeper() -> Any:
        try:
            return deeper()
        except RecursionError:
            return PlainJSON().encode(too_deep(99))

    with pytest.raises(ValueError, match="payload cannot be encoded so deep in the call stack"):
        deeper()


OF_OTHER_PROGRAMS: dict[str, tuple[str, Any]] = {
    "white space": (' \n{ "a" : [ 1 , 2 ] }\t', {"a": [1, 2]}),
    "tags of ours": ('{"$uuid": "01890a5d-ac96-774b-bcce-b302099a8057"}', {"$uuid": "01890a5d-ac96-774b-bcce-b302099a8057"}),
    "a tag with nonsense": ('{"$tuple": {"$dict": 1}}', {"$tuple": {"$dict": 1}}),
    "an unknown tag": ('[{"$frobnicate": null}]', [{"$frobnicate": None}]),
    "characters as they are": ('"é\U0001f600"', "é\U0001f600"),
    "escapes": (r'"\u00E9\/\b\uD83D\uDE00"', "é/\b\U0001f600"),
    "exponents": ("[1e3, 1E-2, 1.50]", [1000.0, 0.01, 1.5]),
    "an int beyond 64 bits": ("18446744073709551616", 2**64),
    "one key twice": ('{"a": 1, "a": 2}', {"a": 2}),
    "a name": ("true", True),
}


@pytest.mark.parametrize(("text", "value"), OF_OTHER_PROGRAMS.values(), ids=OF_OTHER_PROGRAMS)
def test_what_other_programs_write_is_read(text: str, value: Any):
    """Any JSON text is read as what it says; an object is a dict, whatever its keys."""
    assert exact(value) == exact(PlainJSON().decode(text))


UNREADABLE: dict[str, tuple[Any, str]] = {
    "nothing": ("", "is not JSON: Expecting value at character 0 of 0"),
    "cut off": ('{"to": "a', "is not JSON: Unterminated string starting at at character 7 of 9"),
    "words": ("hello", "is not JSON: Expecting value at character 0 of 5: 'hello'"),
    "two values": ("1 2", "is not JSON: Extra data at character 2 of 3"),
    "single quotes": ("{'a': 1}", "is not JSON"),
    "NaN": ("[NaN]", "holds NaN, which is no number"),
    "infinity": ('{"x": -Infinity}', "holds -Infinity, which is no number"),
    "large float": ("[1e999]", "holds a number that is too large for a float: '1e999'"),
    "far too many digits": ("9" * 100_000, "cannot be read: Exceeds the limit"),
    "nested far too deep": ("[" * 100_000, "is nested too deep to be read"),
    "no text": (None, "cannot be read"),
}


@pytest.mark.parametrize(("text", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_json_is_a_payload_error(text: Any, message: str):
    """A text that is not JSON is a PayloadError that names what is wrong."""
    with pytest.raises(PayloadError) as caught:
        PlainJSON().decode(text)

    assert f"The payload {message}" in str(caught.value)
    assert len(str(caught.value)) < 500


@given(st.text() | st.text('[]{}:,"$0e-.'))
@settings(deadline=None)
def test_decode_raises_nothing_but_payload_errors(text: str):
    """Whatever stands in the column: what the standard library reads, or a PayloadError."""
    try:
        value = PlainJSON().decode(text)
    except PayloadError:
        return
    assert exact(json.loads(text)) == exact(value)


def test_through_the_database(engine: sa.Engine):
    """A payload of plain JSON goes through every database; the text in the column can be written by any program."""
    tables = JobTables(serializer=PlainJSON())
    create_all(engine, tables=tables)
    payload = {"to": "é\0\U0001f600", "n": [2**63 - 1, -0.5, True, None], "$uuid": "x"}
    with engine.begin() as connection:
        enqueue(connection, "tick", payload, tables=tables)
        with pytest.raises(TypeError, match=r'payload\["a"\]\[1\] is of type tuple'):
            enqueue(connection, "tick", {"a": [0, ()]}, tables=tables)
        foreign = enqueue(connection, "tick", None, process_in=1e-6, tables=tables)
        text = '{ "from": "é\U0001f600", "$dict": 1e2 }'
        connection.execute(sa.update(tables.job).where(tables.job.c.job_id == foreign).values(payload=text))
    stored = [row.payload for row in queued(engine, tables)]

    assert json.dumps(payload, separators=(",", ":")) == stored[0]
    assert [payload, {"from": "é\U0001f600", "$dict": 100.0}] == [job.payload for job in run_due(engine, tables=tables)]
