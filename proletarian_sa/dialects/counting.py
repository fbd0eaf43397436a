"""Where counting ends."""

from __future__ import annotations

from typing import Final

MOST_COUNTED: Final = 2**31 - 1
"""One row at the end of its integer column must not stop a whole queue."""


def one_more(count: int) -> int:
    """Return the next number, or the last one for ever."""
    return min(count + 1, MOST_COUNTED)
