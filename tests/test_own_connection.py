"""The connections that the worker's loops keep: given back as they were, whatever happened to them."""

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
