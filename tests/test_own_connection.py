"""The connections that the worker's loops keep: given back as they were, whatever happened to them."""

import socket
import threading
from contextlib import suppress

import pytest
import sqlalchemy as sa

from proletarian_sa import process_next_job
from proletarian_sa.own_connection import OwnConnection
from tests.observing import add, end_session


def test_what_was_not_set_is_not_restored(engine):
    """A connection whose setting up failed is given back without restoring anything, and the error is that of the setting up."""
    restored, settings = [], iter(["before"])

    def settle(connection):
        before = next(settings, None)
        if before is None:
            connection.exec_driver_sql("SELECT nonsense FROM nowhere")
        return before

    own = OwnConnection(engine, settle=settle, restore=lambda _connection, before: restored.append(before))
    with own.transaction():
        assert own.is_open
    own.close()
    assert ["before"] == restored

    with pytest.raises(sa.exc.DBAPIError, match="nowhere"), own.transaction():
        pass
    assert ["before"] == restored
    assert not own.is_open
    assert 0 == engine.pool.checkedout()


@pytest.mark.parametrize("claim", ["leased", "held"])
def test_a_connection_that_is_lost_as_it_is_given_back(database, queue_engine, claim):
    """Session never cleaned after a lost connection: what was committed stands, and the pool has room for another connection."""
    database.require("server")
    engine = database.create_engine(pool_size=1, max_overflow=0, pool_timeout=1)
    left, roll_back = [], engine.dialect.do_rollback

    def roll_back_and_lose(connection):
        roll_back(connection)
        left[0] -= 1
        if not left[0]:
            driver = getattr(connection, "dbapi_connection", connection)
            end_session(queue_engine, driver.thread_id() if hasattr(driver, "thread_id") else driver.info.backend_pid)

    engine.dialect.do_rollback = roll_back_and_lose
    outcomes = []
    for number in range(1, RETURNS):
        left[:] = [number]
        add(queue_engine)
        with suppress(sa.exc.OperationalError):  # where the claim met a connection that was lost before it
            outcomes.append(process_next_job(engine, lambda *_: None, claim=claim))
        assert 0 == engine.pool.checkedout()
    met_all = left[0] > 0
    left[:] = [0]
    while outcome := process_next_job(engine, lambda *_: None, claim=claim):
        outcomes.append(outcome)

    assert ["succeeded"] * (RETURNS - 1) == [outcome.status for outcome in outcomes]
    assert met_all


RETURNS = 8
"""More than there are times when a job gives a connection back."""


def test_a_server_that_closes_new_connections_is_not_asked_again(database):
    """What accepts a connection and closes it at once, like a proxy without a server, is no stale connection: the caller waits."""
    database.require("server")
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_all():
            with suppress(OSError):
                while True:
                    accepted.append(listener.accept()[0].close())

        threading.Thread(target=close_all, daemon=True).start()
        url = database.url.set(host="127.0.0.1", port=listener.getsockname()[1])
        own = OwnConnection(sa.create_engine(url))
        for _ in range(2):
            with pytest.raises(sa.exc.DBAPIError):
                own.begin()
        listener.shutdown(socket.SHUT_RDWR)

    assert 2 == len(accepted)
