"""Put the tables of a run into the documentation, between markers, and its picture beside it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from benchmarks.results import Results, tables

DOCUMENT: Final = Path("docs/benchmarks.md")


def markers(form: str) -> tuple[str, str]:
    """Return what stands before and after the figures of a form."""
    return f"<!-- figures, {form}: begin -->", f"<!-- figures, {form}: end -->"


def quote(file: Path, root: Path) -> None:
    """Replace what stands between the markers of its form by what one run has printed.

    Raises:
        ValueError: The document has no such markers.
    """
    document, results = root / DOCUMENT, Results.read(file)
    text = document.read_text()
    begin, end = markers(results.form)
    picture, copy = file.with_suffix(".svg"), document.with_name(f"{document.stem}-{results.form}.svg")
    shown = ""
    if picture.exists():
        shutil.copyfile(picture, copy)
        shown = f"![How far each target was reached]({copy.name})\n\n"
    figures = f"{begin}\n\n{shown}{tables(results)}\n{end}"
    changed, times = re.subn(f"{re.escape(begin)}.*{re.escape(end)}", lambda _: figures, text, flags=re.DOTALL)
    if times != 1:
        raise ValueError(f"{document} must have {begin} and {end} once, for the figures to stand between.")
    document.write_text(changed)
