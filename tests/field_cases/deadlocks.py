"""Engines that wait for no lock, and a rival that deadlocks with the application, whose transaction the database then ends."""

import threading
import uuid

import sqlalchemy as sa

from proletarian_sa import enqueue_many
from tests.helpers import wait_until
from tests.observing import PATIENCE, is_waiting, session_id
from tests.queue_contents import User
from tests.servers.database import Database
from tests.test_row_locks import IMPATIENCE

HEAVY = 60
"""Rows that the rival has written: the database ends the lighter transaction."""


def impatient_engine(database: Database, connections: int = 1) -> sa.Engine:
    """Return an engine of the application's, with the server's own isolation, that waits for a lock for ten seconds at most."""
    engine = database.create_engine(pool_size=connections)

    @sa.event.listens_for(engine, "connect")
    def wait_briefly(connection, _record):
        cursor = connection.cursor()
        cursor.execute(IMPATIENCE[engine.dialect.name])
        cursor.close()
        connection.commit()

    return engine


class Rival:
    """Holds a job id and then wants the first user, which the application holds: who enqueues that id is ended by the database."""

    def __init__(self, engine: sa.Engine, job_id: uuid.UUID) -> None:
        self._engine = engine
        self._postgresql = engine.dialect.name == "postgresql"
        with engine.begin() as connection:
            connection.execute(sa.insert(User), {"id": 1, "name": "contended"})
        self._connection = engine.connect()
        if self._postgresql:  # who waits for longer than this looks for a deadlock, and is ended
            self._connection.exec_driver_sql("SET deadlock_timeout = '1h'")
        self._number = session_id(self._connection)
        self._connection.execute(sa.insert(User), [{"id": 1000 + number, "name": "rival"} for number in range(HEAVY)])
        enqueue_many(self._connection, [{"job_type": "rival", "job_id": job_id}])
        self.thread = threading.Thread(target=self._want_the_user)

    def _want_the_user(self) -> None:
        with self._connection:
            self._connection.execute(sa.update(User).where(User.id == 1).values(name="rival"))
            self._connection.rollback()

    def prepare(self, connection: sa.Connection) -> None:
        """Hold the user, and let the rival wait for it."""
        if self._postgresql:
            connection.exec_driver_sql("SET LOCAL deadlock_timeout = '10ms'")
        connection.execute(sa.update(User).where(User.id == 1).values(name="mine"))
        self.thread.start()
        wait_until(lambda: is_waiting(self._engine, self._number), PATIENCE)
