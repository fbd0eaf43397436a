"""Read JSON text that a stranger may have written: the value comes back, or a PayloadError that says what is wrong with it."""

from collections.abc import Callable
from json import JSONDecodeError, JSONDecoder
from math import isfinite
from typing import Any

from proletarian_sa._shorten import shorten
from proletarian_sa.errors import PayloadError


def json_reader(read_object: Callable[[dict[str, Any]], Any] | None = None, marks: str | None = None) -> Callable[[str], Any]:
    """Return a function that turns text into a value, and raises nothing but PayloadError.

    Args:
        read_object: What becomes of a JSON object; None leaves it a dict.
        marks: What a text has in it, unless it is escaped, if `read_object` makes anything else of one of its objects.
    """
    decoder = JSONDecoder(object_hook=read_object, parse_float=_read_float, parse_constant=_refuse_constant)
    from_json, scan = decoder.decode, vars(decoder)["scan_once"]
    scan_plain = scan
    if marks is not None:
        scan_plain = vars(JSONDecoder(parse_float=_read_float, parse_constant=_refuse_constant))["scan_once"]

    def read(text: str) -> Any:
        try:
            # Most of what `decode` does besides is to look for white space.
            value, end = (scan if marks is None or marks in text or "\\u" in text else scan_plain)(text, 0)
            if end == len(text):
                return value
        except Exception:  # noqa: BLE001, S110 - it is read again, and told
            pass
        return read_any(text)

    def read_any(text: str) -> Any:
        try:
            return from_json(text)
        except PayloadError:
            raise
        except JSONDecodeError as error:
            raise PayloadError(
                f"The payload is not JSON: {error.msg} at character {error.pos} of {len(text)}: {shorten(text)}"
            ) from error
        except RecursionError:
            raise PayloadError(f"The payload is nested too deep to be read: {shorten(text)}") from None
        except (TypeError, ValueError) as error:  # no text at all, or a number of more digits than Python reads
            raise PayloadError(f"The payload cannot be read: {error}: {shorten(text)}") from error

    return read


def _read_float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise PayloadError(f"The payload holds a number that is too large for a float: {shorten(text)}")
    return value


def _refuse_constant(name: str) -> Any:
    raise PayloadError(f"The payload holds {name}, which is no number: only finite ones are stored")
