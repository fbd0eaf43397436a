"""Show how far a run has come: bars that move on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

PLAIN_INTERVAL = 0.5
"""Seconds between two lines where no terminal is."""


@dataclass(frozen=True)
class Standing:
    """How far a run has come."""

    signed_up: int
    queued: int
    archived: int
    mails: int
    refused: int


Show = Callable[[Standing], None]


@contextmanager
def progress(console: Console, people: int) -> Iterator[Show]:
    """Give a function that shows how far the run has come."""
    if console.is_terminal:
        with _bars(console) as bars:
            yield _moving(bars, people)
    else:
        yield _plain(console)


def _bars(console: Console) -> Progress:
    columns = (TextColumn("  {task.description:<14}"), BarColumn(30), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    return Progress(*columns, console=console)


def _moving(bars: Progress, people: int) -> Show:
    signed_up = bars.add_task("signed up", total=people, note="")
    mails = bars.add_task("mails received", total=people - 1, note="")
    archived = bars.add_task("jobs archived", total=people, note="")

    def show(standing: Standing) -> None:
        bars.update(signed_up, completed=standing.signed_up)
        bars.update(mails, completed=standing.mails, note=f"{standing.refused} refused")
        bars.update(archived, completed=standing.archived, note=f"{standing.queued} queued")

    return show


def _plain(console: Console) -> Show:
    began = time.monotonic()
    last_time, last = began, None

    def show(standing: Standing) -> None:
        nonlocal last_time, last
        now = time.monotonic()
        is_news = standing != last and (now - last_time >= PLAIN_INTERVAL or standing.queued == 0)
        if not is_news:
            return
        last_time, last = now, standing
        console.print(
            f"  {now - began:4.1f} s: {standing.signed_up} signed up, {standing.mails} mails received, "
            f"{standing.refused} refused, {standing.queued} queued"
        )

    return show
