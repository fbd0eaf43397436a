"""Exceptions as text that every database can store."""

from __future__ import annotations

import traceback
from typing import Final

HEAD: Final = 4_000  # characters kept of the beginning ...
TAIL: Final = 12_000  # ... and of the end, where the message stands


def error_text(error: BaseException) -> str:
    """Return the traceback, at most 16 000 characters and a note, without what a text column cannot hold.

    NUL is shown as the symbol for it, and a lone surrogate as an escape. Never raises: an exception whose `__str__` fails is shown
    by its type.
    """
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as failure:  # noqa: BLE001 - the error of the error must not lose the job; its type is in the text
        text = f"{type(error).__module__}.{type(error).__qualname__} (its traceback cannot be shown: {type(failure).__name__})"
    return storable(text)


def error_line(error: BaseException) -> str:
    """Return type and message. Never raises: an exception whose `__str__` fails is shown by its type."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException as failure:  # noqa: BLE001 - as above
        return f"{type(error).__name__} (its message cannot be shown: {type(failure).__name__})"


def storable(text: str) -> str:
    """Return the text shortened and cleaned."""
    if len(text) > HEAD + TAIL:
        text = f"{text[:HEAD]}\n… {len(text) - HEAD - TAIL} characters left out …\n{text[-TAIL:]}"
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "backslashreplace").decode()
