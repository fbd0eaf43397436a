"""A fault at every single statement of a run: the job is in exactly one of the two tables, and its effects come exactly once."""

import sqlite3

import pytest
import sqlalchemy as sa

from proletarian_sa import RetryStrategy, process_next_job
from tests.observing import Recorder, add, change, end_session, lapse
from tests.queue_contents import Base, User, archived, queued

MOST_STATEMENTS = 60


class Faults:
    """Ends the connection, or fails, right before the n-th statement or commit of an engine."""

    def __init__(self, engine, killer):
        self.engine, self.killer = engine, killer
        self.left = None
        sa.event.listen(engine, "connect", self._connect)
        sa.event.listen(engine, "before_cursor_execute", lambda connection, *_: self._strike(connection))
        sa.event.listen(engine, "commit", self._strike)

    def _connect(self, connection, record):
        if self.engine.dialect.name == "sqlite":
            return
        cursor = connection.cursor()
        cursor.execute("SELECT pg_backend_pid()" if self.engine.dialect.name == "postgresql" else "SELECT connection_id()")
        record.info["number"] = cursor.fetchone()[0]
        cursor.close()
        connection.rollback()

    def arm(self, number):
        """Strike at the n-th statement or commit from now on."""
        self.left = number

    def disarm(self):
        """Return whether it has struck."""
        struck, self.left = self.left == 0, None
        return struck

    def _strike(self, connection):
        if not self.left:
            return
        self.left -= 1
        if self.left:
            return
        if "number" in connection.info:
            end_session(self.killer, connection.info["number"])
            return
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise sa.exc.OperationalError("injected", {}, error)


def succeed(_job):
    """Do nothing, well."""


def write(job):
    """Leave one row that could not be written twice."""
    job.session.execute(sa.insert(User).values(id=job.payload, name="effect"))


def fail(_job):
    """Fail, for a reason of its own."""
    raise LookupError("the reason")


KINDS = {
    "success": (succeed, None, "success"),
    "effects": (write, None, "success"),
    "failure": (fail, None, "failure"),
    "retry": (fail, RetryStrategy(retries=1), "failure"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_statement_loses_nothing(database, queue_engine, kind):
    """Lost job, non-atomic hand-over: wherever the connection ends, the job is neither lost nor done twice."""
    Base.metadata.create_all(queue_engine)
    handler, retry, status = KINDS[kind]
    engine = database.create_engine()
    faults = Faults(engine, queue_engine)
    options = {"handler_mode": "advanced", "retry": retry, "on_event": Recorder()}
    for number in range(1, MOST_STATEMENTS):
        job_id = add(queue_engine, payload=number)
        faults.arm(number)
        try:
            process_next_job(engine, handler, **options)
        except sa.exc.SQLAlchemyError:
            assert {0, 1} >= {row.attempts for row in queued(queue_engine)}  # the claim, or what comes before it
        struck = faults.disarm()
        where = [row.job_id for row in queued(queue_engine)] + [
            row.job_id for row in archived(queue_engine) if row.job_id == job_id
        ]
        assert (number, [job_id]) == (number, where)

        while waiting := queued(queue_engine):
            change(queue_engine, job_id, process_at=waiting[0].enqueued_at)
            if waiting[0].claimed_by is not None:
                lapse(queue_engine, job_id)
            process_next_job(queue_engine, handler, **options)
        (row,) = [row for row in archived(queue_engine) if row.job_id == job_id]
        assert (number, status) == (number, row.status), row.last_error
        if not struck:
            break
    with queue_engine.connect() as connection:
        effects = sorted(connection.scalars(sa.select(User.id)))

    assert number > 4, "too few statements to be true"
    assert not struck
    assert (list(range(1, number + 1)) if kind == "effects" else []) == effects
