"""The connections that the worker's loops keep: given back as they were, whatever happened to them."""

import socket
import threading
from contextlib import suppress

import pytest
import sqlalchemy as sa

from proletarian_sa.own_connection import OwnConnection


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
