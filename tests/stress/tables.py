"""Where jobs of the stress tests leave their marks; nothing here is unique, so that whatever happens twice shows."""

import sqlalchemy as sa

metadata = sa.MetaData()


def _table(name: str, *columns: sa.Column[object]) -> sa.Table:
    return sa.Table(name, metadata, sa.Column("number", sa.Integer, primary_key=True), *columns)


runs = _table("stress_runs", sa.Column("job_id", sa.String(36), nullable=False))
"""One row a run, committed at once by a connection that the worker knows nothing of."""

effects = _table("stress_effects", sa.Column("job_id", sa.String(36), nullable=False))
"""One row a job, written through `job.session`."""

signups = _table("stress_signups", sa.Column("jobs", sa.Integer, nullable=False))
"""One row a transaction of a producer: the business that enqueues jobs."""
