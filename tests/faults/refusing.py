"""Let the database refuse every statement and COMMIT of a worker, the first times that it is sent, each time by another error."""

import re
import threading
from collections.abc import Callable

import sqlalchemy as sa

from tests.field_cases.refusals import COMMIT, INJECTED, Refusal

ERRORS = ("deadlock", "serialization", "time-out")
JUDGED = re.compile(f"stress_effects|^SET CONSTRAINTS|^RELEASE SAVEPOINT|^{COMMIT.pattern}")
"""What a handler says, and what concludes its transaction: that this waited in vain for a lock is a verdict on the job."""
ENDS = "ROLLBACK"
"""The statement by which a refused COMMIT ends its transaction, like the text that is injected no word of the worker's."""
NUMBER = re.compile(r"(?<=sa_savepoint)_\d+")
LIST = re.compile(r"\((%(\(\w+\))?s|\?)(?:(::\w+)?, (%(\(\w+\))?s|\?))*(::\w+)?\)")


class EveryStatement(Refusal):
    """Refuses what any thread but the main one sends on an engine, once for each of `ERRORS`.

    Args:
        engine: Whose statements.
        tell: Is given the error, the thread's part in the worker, and what was refused.
    """

    def __init__(self, engine: sa.Engine, tell: Callable[[str], None]) -> None:
        self._chosen = threading.local()
        self._tell = tell
        self._to_come: dict[tuple[str, str], list[str]] = {}
        super().__init__(engine, engine)

    @property
    def _error(self) -> str:
        return str(self._chosen.error)

    @_error.setter
    def _error(self, error: str) -> None:
        self._chosen.error = error

    def _is_time(self, text: str) -> bool:
        thread = threading.current_thread()
        if thread is threading.main_thread() or INJECTED in text or text == ENDS:
            return False
        part = thread.name.rpartition("] ")[2].rstrip(" 0123456789")
        what = NUMBER.sub("", LIST.sub("(…)", text))
        with self._lock:
            left = self._to_come.setdefault((part, what), errors_at(part, what))
            if not left:
                return False
            self._error = left.pop()
        self._tell(f"{self._error} | {part} | {what}")
        return True


def errors_at(part: str, what: str) -> list[str]:
    """Return what may come over a statement without being a verdict on the job."""
    judged = part == "handler" and JUDGED.search(what)
    return [error for error in ERRORS if not (judged and error == "time-out")]
