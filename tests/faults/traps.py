"""Places at which a worker process stands still until it is killed.

A place is before or after something that the worker says to the database: a statement, a COMMIT, a ROLLBACK. `claim:N`, `run:N` and
`heartbeat:N` are the N-th of a stretch, counted from 1; see STRETCHES. With 0 the places of the stretch are counted, and told.
Others have names: see NAMES.
"""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import RunningJob, events
from proletarian_sa.own_loops import sleep

KILLER = "killer"
NAMES = ("started", "in the handler")
"""`started`: the event of the killer's start; `in the handler`: in its first line."""
ARCHIVED = "archived"
"""A place after which the process goes on, when the sign is gone: the first job stands in the archive, and nothing is committed."""
STRETCHES = ("claim", "run", "heartbeat")
"""`claim`: from the first word of the thread that claims to the event of the claim, on a queue whose job is there already.

`run`: from there to the event that tells what became of the job, whichever thread speaks; the claimer keeps silent meanwhile.

`heartbeat`: the first transaction of the thread that looks after jobs in hand.
"""
ENDS = (events.JobSucceeded, events.JobRetried, events.JobFailed, events.JobReleased, events.JobUndeliverable)
OVER = "over: "
"""How the sign begins when a stretch is over; a list of its places, JSON, follows."""
CLAIMERS, KEEPERS, STARTERS = ("supervisor",), ("heartbeat", "watch"), ("start",)
"""The last words of the names of threads; starters look whether the tables are there."""
CHANGE = re.compile(r"(INSERT INTO|DELETE FROM|(?<!FOR )(?<!DO )UPDATE) (?:\W?proletarian\W?\.)?\W?(\w+)")


class Trap:
    """Stands still at its point, once: the thread that has come there does not go on, the others do.

    With an engine for asyncio the main thread counts as one that runs handlers: their event loop stands still.

    Args:
        engine: The worker's.
        point: Which; None: none.
        sign: A file that is made then, and says where that is; or when the stretch is over.
    """

    def __init__(self, engine: sa.Engine, point: str | None, sign: str | None) -> None:
        self.engine = engine
        self._point = point or ""
        self._sign = Path(sign) if sign else None
        self._stretch, _, number = self._point.partition(":")
        self._number = int(number or 0)
        self._places: list[str] = []
        self._claimed = False
        self._over = threading.Event()
        if self._point == ARCHIVED:
            sa.event.listen(engine, "after_cursor_execute", self._after_archiving)
        if self._stretch in STRETCHES:
            sa.event.listen(engine, "before_cursor_execute", self._before)
            sa.event.listen(engine, "after_cursor_execute", self._after)
            dialect = engine.dialect
            for name in ("do_commit", "do_rollback"):
                setattr(dialect, name, self._around(getattr(dialect, name), name.removeprefix("do_").upper()))

    def reach(self, point: str) -> None:
        """Do not return, if this is the point."""
        if point == self._point:
            self._stand_still(point)

    def event(self, event: events.Event) -> None:
        """Take note of where the worker is."""
        if isinstance(event, events.JobsClaimed):
            self._claimed = True
            self._end("claim")
        elif isinstance(event, events.JobStarted) and event.job_type == KILLER:
            self.reach("started")
        elif isinstance(event, ENDS):
            self._end("run")

    def handler(self, job: RunningJob) -> None:
        """Take note that a handler was called."""
        if job.job_type == KILLER:
            self.reach("in the handler")

    def session_factory(self) -> Callable[[], Session] | None:
        """Return what makes the sessions of jobs; None is SQLAlchemy's own."""
        return None

    def _stand_still(self, where: str) -> None:
        self._write(where)
        threading.Event().wait()

    def _write(self, text: str) -> None:
        """Make the sign, whole at once."""
        assert self._sign is not None
        unfinished = self._sign.with_name(f"{self._sign.name}.unfinished")  # not with_suffix: names have dots
        unfinished.write_text(text)
        unfinished.rename(self._sign)

    def _end(self, stretch: str) -> None:
        """Count no further."""
        if stretch == self._stretch and not self._over.is_set():
            self._over.set()
            self._write(OVER + json.dumps(self._places))

    def _counts(self, thread: str) -> bool:
        """Return whether what this thread says now belongs to the stretch; hold it up if it is not its turn."""
        if self._over.is_set():
            return False
        keeper, claimer = thread.endswith(KEEPERS), thread.endswith(CLAIMERS)
        if self._stretch == "heartbeat":
            return keeper
        if not self._claimed:
            return self._stretch == "claim" and not keeper
        if claimer:
            self._over.wait()
        return self._stretch == "run" and not keeper and not claimer

    def _call(self, where: str) -> None:
        """Count a place, and stand still at the one that is the point."""
        if self._is_starting() or not self._counts(threading.current_thread().name):
            return
        self._places.append(where)
        if len(self._places) == self._number:
            self._stand_still(where)

    def _is_starting(self) -> bool:
        thread = threading.current_thread()
        in_main = thread is threading.main_thread() and not self.engine.dialect.is_async
        return in_main or thread.name.endswith(STARTERS)

    def _before(self, _connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        self._call(f"before {name_of(statement)}")

    def _after(self, _connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        self._call(f"after {name_of(statement)}")

    def _after_archiving(self, _connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        """Stand still once, until the sign is gone."""
        if self._claimed and "INSERT archived_job" in name_of(statement) and not self._over.is_set():
            self._over.set()
            self._write(ARCHIVED)
            assert self._sign is not None
            while self._sign.exists():
                sleep(0.005)

    def _around(self, do: Callable[[Any], None], name: str) -> Callable[[Any], None]:
        def done(connection: Any) -> None:
            self._call(f"before {name}")
            do(connection)
            self._call(f"after {name}")
            if name == "COMMIT" and threading.current_thread().name.endswith(KEEPERS):
                self._end("heartbeat")

        return done


def name_of(statement: str) -> str:
    """Return what a statement changes, such as `DELETE job, INSERT archived_job`, else its first words."""
    text = " ".join(statement.split())
    changes = [f"{verb.split()[0]} {table}" for verb, table in CHANGE.findall(text)]
    words = text.split()
    return ", ".join(changes) or " ".join(words[: 2 if words[0] in {"RELEASE", "ROLLBACK"} else 1])
