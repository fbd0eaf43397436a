"""Put the tables of a run into the documentation, between markers, and its picture beside it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from benchmarks.results import Results, tables

DOCUMENT: Final = Path("docs/benchmarks.md")
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def quote(file: Path, root: Path) -> None:
    """Replace what stands between the markers by what one run has printed.

    Raises:
        ValueError: The document has no markers.
    """
    document = root / DOCUMENT
    text = document.read_text()
    picture = file.with_suffix(".svg")
    shown = ""
    if picture.exists():
        shutil.copyfile(picture, document.with_suffix(".svg"))
        shown = f"![How far each target was reached]({document.with_suffix('.svg').name})\n\n"
    figures = f"{BEGIN}\n\n{shown}{tables(Results.read(file))}\n{END}"
    changed, times = re.subn(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: figures, text, flags=re.DOTALL)
    if times != 1:
        raise ValueError(f"{document} must have {BEGIN} and {END} once, for the figures to stand between.")
    document.write_text(changed)
