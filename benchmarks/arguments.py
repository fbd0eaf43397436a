"""What the command is asked for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.servers import KINDS
from benchmarks.sizes import FORMS

if TYPE_CHECKING:
    from collections.abc import Sequence


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `--help` says what there is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure proletarian-sa beside others, and print medians, ratios and targets."
    )
    parser.add_argument("form", nargs="?", default="quick", choices=list(FORMS), help="how much; quick takes under ten minutes")
    parser.add_argument("--database", action="append", choices=KINDS, help="only what runs on this; repeatable")
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="only runs whose name matches, * for anything; repeatable"
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="run nothing more often than this")
    parser.add_argument("--results", type=Path, metavar="FILE", help="where to write the JSON; the picture goes beside it as .svg")
    parser.add_argument("--list", action="store_true", help="print the names of the runs, and run nothing")
    parser.add_argument(
        "--quote", type=Path, metavar="FILE", help="put the figures of this JSON into the documentation, run nothing"
    )
    return parser.parse_args(arguments)
