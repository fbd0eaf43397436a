"""Let the database refuse one statement or COMMIT, once, with an error of its own."""

import re
import sqlite3
import threading

import sqlalchemy as sa

from tests.observing import end_session, session_id

_TABLE = r"\W?(proletarian\W*\.\W?)?"
INSERT = re.compile(rf"INSERT INTO {_TABLE}archived_job\b")
DELETE = re.compile(rf"DELETE FROM {_TABLE}job\b")
COMMIT = re.compile("COMMIT after an archiving")
ANYTHING = re.compile("")
INJECTED = "injected by the test"

POSTGRESQL_STATES = {"deadlock": "40P01", "serialization": "40001", "time-out": "55P03", "permanent": "XX001"}
MYSQL_NUMBERS = {"deadlock": 1213, "serialization": 1020, "time-out": 1205, "permanent": 1644}
SQLITE_CODES = {
    "deadlock": sqlite3.SQLITE_LOCKED,
    "serialization": sqlite3.SQLITE_BUSY,
    "time-out": sqlite3.SQLITE_BUSY,
    "permanent": sqlite3.SQLITE_CORRUPT,
}
ENDS_TRANSACTION = {"deadlock", "serialization"}


def transient_errors(engine: sa.Engine) -> list[str]:
    """Return the names of what passes by itself; a file has no connection that could be closed."""
    return ["deadlock", "serialization", "time-out", *(["connection closed"] if engine.dialect.name != "sqlite" else [])]


class Refusal:
    """Refuses the n-th statement or commit from `arm` on that matches; servers do it themselves, SQLite's driver is played.

    Args:
        engine: Whose statements.
        killer: Ends the connections of `engine` where one is to be closed.
    """

    def __init__(self, engine: sa.Engine, killer: sa.Engine) -> None:
        self._engine, self._killer = engine, killer
        self._left = 0
        self._lock = threading.Lock()
        self._matches, self._error = ANYTHING, "deadlock"
        self._thread = threading.local()  # each uses one connection at a time
        self.struck = threading.Event()
        for hook in ("do_execute", "do_executemany", "do_execute_no_params"):
            sa.event.listen(engine, hook, self._before_statement)
        sa.event.listen(engine, "commit", self._before_commit)
        sa.event.listen(engine, "rollback", lambda _connection: self._forget())

    def arm(self, error: str, matches: re.Pattern[str] = ANYTHING, number: int = 1) -> None:
        """Refuse the n-th match from now on."""
        self.struck.clear()
        self._matches, self._error, self._left = matches, error, number

    def disarm(self) -> bool:
        """Refuse nothing any more; return whether something was refused."""
        with self._lock:
            self._left = 0
        return self.struck.is_set()

    def _forget(self) -> None:
        self._thread.archiving = False

    def _is_time(self, text: str) -> bool:
        with self._lock:
            if not self._left or not self._matches.search(text):
                return False
            self._left -= 1
            return self._left == 0

    def _before_statement(self, cursor, statement, *_arguments) -> None:
        if INSERT.search(statement):
            self._thread.archiving = True
        if not self._is_time(statement):
            return
        if self._engine.dialect.name == "sqlite":
            self.struck.set()
            raise _sqlite_error(self._error)
        if self._error == "connection closed":
            postgresql = self._engine.dialect.name == "postgresql"
            cursor.execute("SELECT pg_backend_pid()" if postgresql else "SELECT connection_id()")
            end_session(self._killer, cursor.fetchone()[0])
            self.struck.set()
            return
        self.struck.set()
        for refusing in self._refusing(ends_transaction=self._error in ENDS_TRANSACTION):
            cursor.execute(refusing)

    def _before_commit(self, connection: sa.Connection) -> None:
        text = COMMIT.pattern if getattr(self._thread, "archiving", False) else "COMMIT"
        self._forget()
        if not self._is_time(text):
            return
        self.struck.set()
        if self._engine.dialect.name == "sqlite":
            raise sa.exc.OperationalError("COMMIT", {}, _sqlite_error(self._error))
        if self._error == "connection closed":
            end_session(self._killer, session_id(connection))
            return
        for refusing in self._refusing(ends_transaction=True):
            connection.exec_driver_sql(refusing)

    def _refusing(self, *, ends_transaction: bool) -> list[str]:
        """Return statements at which the server fails as it would by itself."""
        if self._engine.dialect.name == "postgresql":
            state = POSTGRESQL_STATES[self._error]
            return [f"DO $$ BEGIN RAISE EXCEPTION '{INJECTED}' USING ERRCODE = '{state}'; END $$"]
        number = MYSQL_NUMBERS[self._error]
        signal = f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = '{INJECTED}'"
        return ["ROLLBACK", signal] if ends_transaction else [signal]


def _sqlite_error(error: str) -> sqlite3.Error:
    made = sqlite3.OperationalError(INJECTED) if error != "permanent" else sqlite3.DatabaseError(INJECTED)
    made.sqlite_errorcode = SQLITE_CODES[error]
    return made
