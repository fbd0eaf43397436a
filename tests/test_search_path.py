"""Where unqualified names lead must not matter to tables in a schema of their own, and is what `schema=None` asks for."""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import JobTables, check_tables, create_all, enqueue, enqueue_many, events
from tests.observing import add
from tests.queue_contents import archived, queued_ids, run_due
from tests.test_schema_names import search_path


@pytest.fixture
def tenants(engine: sa.Engine, database: Any) -> list[str]:
    """Make the schemas of two tenants, each with a table `job` of its own."""
    if engine.dialect.name != "postgresql":
        pytest.skip("no search path")
    schemas = [str(database.create_schema()) for _ in range(2)]
    with engine.begin() as connection:
        for schema in schemas:
            connection.exec_driver_sql(f"CREATE TABLE {schema}.job (id int)")
    return schemas


@pytest.mark.parametrize("path", ["''", "the tenant's"])
def test_a_path_that_everybody_has(engine: sa.Engine, database: Any, tenants: list[str], path: str, work: Any):
    """search_path: with an empty one, or a tenant's, for every connection, all steps use the schema that was configured."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"ALTER DATABASE {database.url.database} SET search_path TO {path if path == chr(39) * 2 else tenants[0]}"
        )
    pathed = database.create_engine()
    for _start in range(2):
        create_all(pathed)
        check_tables(pathed)
    with Session(pathed) as session, session.begin():
        ids = {enqueue(session, "tick"), enqueue(session.connection(), "tick"), *enqueue_many(session, [{"job_type": "tick"}])}
    assert ids == queued_ids(engine)
    worker, recorder = work(lambda job: job.session.execute(sa.select(1)), engine=pathed)
    with worker:
        recorder.wait_for(events.JobSucceeded, count=3)

    assert ids == {row.job_id for row in archived(engine)}
    with engine.connect() as connection:
        assert 0 == connection.exec_driver_sql(f"SELECT count(*) FROM {tenants[0]}.job").scalar_one()


def test_a_path_for_each_request(queue_engine: sa.Engine, tenants: list[str]):
    """search_path: a session that is sent to a tenant enqueues where it was configured, and queries find the same jobs."""
    ids = set()
    for tenant in tenants:
        with search_path(queue_engine, tenant) as connection, Session(connection) as session:
            ids |= {enqueue(session, tenant), enqueue(connection, tenant)}
            session.commit()
            connection.commit()

    assert ids == queued_ids(queue_engine)
    assert sorted(tenants * 2) == sorted(job.job_type for job in run_due(queue_engine))


def test_without_a_schema_each_path_has_its_queue(engine: sa.Engine, database: Any, tenants: list[str]):
    """search_path with `schema=None`: tables are created, filled and emptied where each connection's path leads."""
    tables = JobTables(schema=None, job_table="queue_job", archived_job_table="queue_archived_job")
    engines = {tenant: database.create_engine(connect_args={"options": f"-c search_path={tenant}"}) for tenant in tenants}
    for tenant, pathed in engines.items():
        create_all(pathed, tables=tables)
        add(pathed, tenant, tables=tables)
        with Session(pathed) as session, session.begin():
            session.add(tables.Job(job_type=tenant))

    for tenant, pathed in engines.items():
        assert [tenant, tenant] == [job.job_type for job in run_due(pathed, tables=tables)]
        assert 2 == len(archived(pathed, tables))
        assert {"queue_job", "queue_archived_job", "job"} == set(sa.inspect(engine).get_table_names(schema=tenant))
