"""A database that refuses to store outcomes: the worker stops, whichever way they are stored."""

import pytest
import sqlalchemy as sa

from proletarian_sa import default_tables, events
from tests.observing import PATIENCE, add
from tests.queue_contents import queued

pytestmark = pytest.mark.usefixtures("claim")


def refuse_outcomes(engine: sa.Engine) -> None:
    """Let every archiving fail in a way that waiting does not mend."""
    table = default_tables.archived_job
    with engine.begin() as connection:
        preparer = connection.dialect.identifier_preparer
        name = preparer.format_table(table) if connection.dialect.name == "postgresql" else table.name
        connection.exec_driver_sql(f"ALTER TABLE {name} RENAME COLUMN status TO renamed")


def succeed(_job):
    """Do nothing, well."""


def fail(_job):
    """Fail."""
    raise ValueError


@pytest.mark.parametrize("handler", [succeed, fail])
@pytest.mark.parametrize("with_callback", [False, True], ids=["plain", "failed_job"])
def test_three_refusals_in_a_row_stop_the_worker(queue_engine, work, handler, with_callback):
    """Three jobs in a row whose outcomes cannot be stored end the worker, loudly: to go on would only repeat their effects."""
    options = {"failed_job": lambda _job, _exception: None} if with_callback else {}
    worker, seen = work(handler, **options)
    for _ in range(20):
        add(queue_engine)
    worker.start()
    refuse_outcomes(queue_engine)
    for _ in range(20):
        add(queue_engine)
    failed = seen.wait_for(events.WorkerFailed)

    assert worker.join(PATIENCE)
    assert worker.error is failed.exception
    assert "could not be recorded" in str(worker.error)
    assert 3 <= len(seen.of(events.OutcomeNotRecorded))
    assert [] != queued(queue_engine)
