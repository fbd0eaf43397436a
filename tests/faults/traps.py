"""Places at which a worker process stands still until it is killed.

`calls:N` is before the N-th thing that the worker says to the database after the killer's handler was called, counted from 1 and
beginning with what comes after it: each statement is two places, before and after it was executed, each COMMIT likewise. Others have
names: see NAMES.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import RunningJob, events

KILLER = "killer"
NAMES = ("started", "in the handler")
"""`started`: the event of the killer's start; `in the handler`: in its first line."""


class Trap:
    """Stands still at its point, once: the thread that has come there does not go on, the others do.

    `sign`, a file, then says where that is.
    """

    def __init__(self, engine: sa.Engine, point: str | None, sign: str | None) -> None:
        self.engine = engine
        self._point = point or ""
        self._sign = Path(sign) if sign else None
        self._left = int(self._point.partition(":")[2]) if self._point.startswith("calls:") else 0
        self._armed: threading.Thread | None = None
        if self._left:
            sa.event.listen(engine, "before_cursor_execute", self._before)
            sa.event.listen(engine, "after_cursor_execute", self._after)
            dialect = engine.dialect
            for name in ("do_commit", "do_rollback"):
                setattr(dialect, name, self._around(getattr(dialect, name), name.removeprefix("do_")))

    def reach(self, point: str) -> None:
        """Do not return, if this is the point."""
        if point == self._point:
            self._stand_still(point)

    def event(self, event: events.Event) -> None:
        """Take note of where the worker is."""
        if isinstance(event, events.JobStarted) and event.job_type == KILLER:
            self.reach("started")

    def handler(self, job: RunningJob) -> None:
        """Take note that a handler was called."""
        if job.job_type == KILLER:
            self.reach("in the handler")
            self._armed = threading.current_thread()

    def session_factory(self) -> Callable[[], Session] | None:
        """Return what makes the sessions of jobs; None is SQLAlchemy's own."""
        return None

    def _stand_still(self, where: str) -> None:
        assert self._sign is not None
        self._sign.write_text(where)
        threading.Event().wait()

    def _call(self, where: str) -> None:
        """Count one place, in whatever thread of the worker's, once the killer's handler has been called."""
        if self._armed is None or not self._left:
            return
        self._left -= 1
        if not self._left:
            self._stand_still(where)

    def _before(self, _connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        self._call(f"before {statement}")

    def _after(self, _connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        self._call(f"after {statement}")

    def _around(self, do: Callable[[Any], None], name: str) -> Callable[[Any], None]:
        def done(connection: Any) -> None:
            self._call(f"before {name}")
            do(connection)
            self._call(f"after {name}")

        return done
