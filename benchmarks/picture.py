"""Draw how far each target was reached, with matplotlib, in an environment that has it.

Usage: python -m benchmarks.picture RESULTS.json PICTURE.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt


def main(source: str, destination: str) -> None:
    """Draw a bar for each target: 1 is just reached, longer is better."""
    rows = [row for row in json.loads(Path(source).read_text())["targets"] if row["ratio"]]
    mpl.rcParams["svg.hashsalt"] = "benchmarks"  # the same figures give the same file
    figure, axes = plt.subplots(figsize=(11, 1.2 + 0.32 * len(rows)))
    shares = [share(row) for row in rows]
    places = range(len(rows))
    axes.barh(places, shares, color=["#2a7f4f" if row["met"] else "#b5432e" for row in rows])
    axes.set_yticks(places, [row["target"]["what"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=1)
    for place, (row, value) in enumerate(zip(rows, shares, strict=True)):
        bound = row["target"]["least"] or row["target"]["most"]
        axes.text(value, place, f" {row['ratio']:.3g} of {bound:g}", va="center", fontsize=7)
    axes.set_xlim(0, max([1.0, *shares]) * 1.2)
    axes.set_xlabel("how far the target was reached: 1 is just reached, longer is better")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(destination, bbox_inches="tight", metadata={"Date": None})


def share(row: dict[str, Any]) -> float:
    """Return how far a target was reached, 1 if just so."""
    least, most = row["target"]["least"], row["target"]["most"]
    return float(row["ratio"] / least if least is not None else most / row["ratio"])


if __name__ == "__main__":
    main(*sys.argv[1:])
