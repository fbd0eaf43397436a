"""Show any value in an error message, short and without ever failing."""

import reprlib
from typing import Any

_LONGEST = 60  # characters: an error message should fit in a line of a log

_repr = reprlib.Repr()
_repr.maxlevel = 2
_repr.maxstring = _repr.maxother = _repr.maxlong = _LONGEST


def shorten(value: Any) -> str:
    """Return the value's repr in at most 60 characters or so, in ASCII.

    Args:
        value: Anything, a value whose own ``repr`` fails included.

    Returns:
        The repr with the middle left out if it is long, or ``<TypeName>`` if there is none.

    """
    try:
        text = _repr.repr(value)
    except Exception:  # noqa: BLE001 - the message at hand matters more than a broken repr, which its class explains
        text = f"<{type(value).__name__}>"
    if len(text) > 2 * _LONGEST:
        text = f"{text[:_LONGEST]}...{text[-_LONGEST // 4 :]}"
    return text.encode("ascii", "backslashreplace").decode("ascii")
