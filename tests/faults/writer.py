"""An application that writes 50 times a second, with its driver's patience and with less.

    python -m tests.faults.writer URL STOP REPORT

Each write is one transaction: a row of its business, and a quick job. Goes on until the file STOP is there; REPORT is then a JSON
object for each patience: `writes`, `errors` (texts) and `longest`, how long one write took at the most, seconds.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import enqueue
from tests.stress import tables

PATIENCES = {"the driver's own": {}, "two seconds": {"timeout": 2.0}}
"""Connection arguments of each of the writers; the first is five seconds."""
INTERVAL = 0.02
"""Seconds between the beginnings of two writes."""


def write(url: str, arguments: dict[str, Any], stop: Path) -> dict[str, Any]:
    """Write until the end, and return what came of it."""
    engine = sa.create_engine(url, connect_args=arguments)
    writes, errors, longest = 0, [], 0.0
    while not stop.exists():
        began = time.monotonic()
        try:
            with Session(engine) as session, session.begin():
                session.execute(sa.insert(tables.signups), {"jobs": 1})
                enqueue(session, "quick")
        except sa.exc.OperationalError as error:
            errors.append(str(error.orig))
        writes += 1
        took = time.monotonic() - began
        longest = max(longest, took)
        time.sleep(max(0.0, INTERVAL - took))
    return {"writes": writes, "errors": errors, "longest": longest}


def main(url: str, stop: str, report: str) -> None:
    """Let all write at the same time."""
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda arguments: write(url, arguments, Path(stop)), PATIENCES.values()))
    Path(report).write_text(json.dumps(dict(zip(PATIENCES, found, strict=True))))


if __name__ == "__main__":
    main(*sys.argv[1:])
