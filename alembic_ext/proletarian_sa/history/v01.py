"""Version 1: the two tables and their indexes.

The text is the body of the user's revision: literal operations that import only alembic and sqlalchemy, so that what is reviewed is
what runs, with or without this library. `$schema`, `$job`, `$archived_job` and the rest are Python literals.
"""

IMPORTS = "from sqlalchemy.dialects import mysql"

JOB_IDS = {
    "uuid": {"job_id": "sa.Uuid().with_variant(mysql.BINARY(16), *family)", "numbered": "", "never_again": "", "copied": ""},
    "database": {
        "job_id": 'sa.BigInteger().with_variant(sa.Integer(), "sqlite")',
        "numbered": "sa.Identity(), ",
        "never_again": "\n    sqlite_autoincrement=True,",
        "copied": ", autoincrement=False",
    },
}
"""How the column `job_id` is written, by who makes the ids."""

UPGRADE = """\
# proletarian-sa, version 1 of its tables
postgresql = op.get_context().dialect.name == "postgresql"
schema = $schema
online = not op.get_context().as_sql
family = ("mysql", "mariadb")
moment = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *family)
long_text = sa.Text().with_variant(mysql.LONGTEXT(), *family)
job_id = $job_id
mysql_options = {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}
options = {f"{name}_{option}": value for name in family for option, value in mysql_options.items()}

def exists(table, index):
    # Says whether an interrupted run has made it already; MySQL has no CREATE INDEX IF NOT EXISTS.
    return online and any(index == known["name"] for known in sa.inspect(op.get_bind()).get_indexes(table, schema=schema))

if schema is not None and not (online and sa.inspect(op.get_bind()).has_schema(schema)):
    op.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
op.create_table(
    $job,
    sa.Column("job_id", job_id, ${numbered}primary_key=True),
    sa.Column("queue", sa.String(255), nullable=False),
    sa.Column("job_type", sa.String(255), nullable=False),
    sa.Column("payload", long_text, nullable=False),
    sa.Column("attempts", sa.Integer(), nullable=False),
    sa.Column("enqueued_at", moment, nullable=False),
    sa.Column("process_at", moment, nullable=False),
    sa.Column("claimed_by", sa.String(255)),
    sa.Column("lease_until", moment),
    sa.Column("crashes", sa.Integer()),
    sa.Column("last_error", long_text),
    sa.Column("unique_key", sa.String(255)),
    sa.Column("headers", long_text),
    schema=schema,
    if_not_exists=True,$never_again
    **options,
)
if not exists($job, $queue_index):
    op.create_index($queue_index, $job, ["queue", "process_at"], schema=schema)
if not exists($job, $key_index):
    present = sa.text("unique_key IS NOT NULL")
    op.create_index(
        $key_index, $job, ["unique_key"], schema=schema, unique=True, postgresql_where=present, sqlite_where=present
    )
op.create_table(
    $archived_job,
    sa.Column("job_id", job_id, primary_key=True$copied),
    sa.Column("queue", sa.String(255), nullable=False),
    sa.Column("job_type", sa.String(255), nullable=False),
    sa.Column("payload", long_text, nullable=False),
    sa.Column("attempts", sa.Integer(), nullable=False),
    sa.Column("enqueued_at", moment, nullable=False),
    sa.Column("process_at", moment, nullable=False),
    sa.Column("status", sa.String(20), nullable=False),
    sa.Column("finished_at", moment, nullable=False),
    sa.Column("claimed_by", sa.String(255)),
    sa.Column("crashes", sa.Integer()),
    sa.Column("last_error", long_text),
    sa.Column("unique_key", sa.String(255)),
    sa.Column("headers", long_text),
    schema=schema,
    if_not_exists=True,
    **options,
)
if not exists($archived_job, $finished_index):
    op.create_index($finished_index, $archived_job, ["finished_at"], schema=schema)
"""

DOWNGRADE = """\
# proletarian-sa: all jobs, queued and archived, are lost. A schema stays: there may be other things in it.
postgresql = op.get_context().dialect.name == "postgresql"
schema = $schema
op.drop_table($archived_job, schema=schema, if_exists=True)
op.drop_table($job, schema=schema, if_exists=True)
"""
