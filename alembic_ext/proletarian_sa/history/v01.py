"""Version 1: the two tables and their indexes.

A text is part of the body of the user's revision: literal operations that import only alembic and sqlalchemy, so that what is
reviewed is what runs, with or without this library. `postgresql` and `schema` are set before it; `$job`, `$archived_job` and
the rest are Python literals. Each operation can be run again after an interruption: MySQL and SQLite commit one by one.
"""

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
    sa.Column("headers", long_text),$job_extras
    schema=schema,
    if_not_exists=True,$never_again
    **options,
)
if not exists($job, $queue_process_at_index):
    op.create_index($queue_process_at_index, $job, ["queue", "process_at"], schema=schema)
if not exists($job, $unique_key_index):
    present = sa.text("unique_key IS NOT NULL")
    op.create_index(
        $unique_key_index, $job, ["unique_key"], schema=schema, unique=True, postgresql_where=present, sqlite_where=present
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
    sa.Column("headers", long_text),$archived_job_extras
    schema=schema,
    if_not_exists=True,
    **options,
)
if not exists($archived_job, $finished_at_index):
    op.create_index($finished_at_index, $archived_job, ["finished_at"], schema=schema)
"""

DOWNGRADE = """\
# All jobs, queued and archived, are lost. A schema stays: there may be other things in it.
op.drop_table($archived_job, schema=schema, if_exists=True)
op.drop_table($job, schema=schema, if_exists=True)
"""

ADOPT = """\
# Takes over the tables that the scripts of Proletarian, the Clojure library, have made. All jobs stay.
online = not op.get_context().as_sql
mysql_family = op.get_context().dialect.name in ("mysql", "mariadb")
name = mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin") if mysql_family else sa.String(255)
status = mysql.VARCHAR(20, charset="utf8mb4", collation="utf8mb4_bin") if mysql_family else sa.String(20)
long_text = mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin") if mysql_family else sa.Text()
moment = mysql.DATETIME(fsp=6) if mysql_family else sa.DateTime(timezone=True)
theirs = {"queue": name, "job_type": name, "payload": long_text, "enqueued_at": moment, "process_at": moment}
ours = {"claimed_by": name, "crashes": sa.Integer(), "last_error": long_text, "unique_key": name, "headers": long_text}
changed = {$job: theirs, $archived_job: {**theirs, "status": status, "finished_at": moment}}
added = {$job: {"lease_until": moment, **ours}, $archived_job: ours}

def has(what, table, known):
    # Says whether it is there: from the original, or from an interrupted run.
    return online and any(known == one["name"] for one in getattr(sa.inspect(op.get_bind()), what)(table, schema=schema))

if mysql_family:
    if not online or has("get_indexes", $job, $queue_process_at_index):  # of more characters than the column will have
        op.drop_index($queue_process_at_index, table_name=$job, schema=schema)
    op.execute("SET @time_zone = @@time_zone, time_zone = '+00:00'")  # what was in the session's becomes UTC
for table in ($job, $archived_job):
    for column, column_type in changed[table].items():
        op.alter_column(table, column, type_=column_type, existing_nullable=False, schema=schema)
    for column, column_type in added[table].items():
        if not has("get_columns", table, column):
            op.add_column(table, sa.Column(column, column_type), schema=schema)
if mysql_family:
    op.execute("SET time_zone = @time_zone")
there = {"if_not_exists": True} if postgresql else {}
if not has("get_indexes", $job, $queue_process_at_index):
    op.create_index($queue_process_at_index, $job, ["queue", "process_at"], schema=schema, **there)
if not has("get_indexes", $job, $unique_key_index):
    present = sa.text("unique_key IS NOT NULL")
    op.create_index($unique_key_index, $job, ["unique_key"], schema=schema, unique=True, postgresql_where=present, **there)
if not has("get_indexes", $archived_job, $finished_at_index):
    op.create_index($finished_at_index, $archived_job, ["finished_at"], schema=schema, **there)
"""

ABANDON = """\
# Gives the tables back to Proletarian, the Clojure library. All jobs stay; so do the types of columns, which suit it.
online = not op.get_context().as_sql

def has(what, table, known):
    # Says whether an interrupted run has left it.
    return not online or any(known == one["name"] for one in getattr(sa.inspect(op.get_bind()), what)(table, schema=schema))

for table, index in (($job, $unique_key_index), ($archived_job, $finished_at_index)):
    if has("get_indexes", table, index):
        op.drop_index(index, table_name=table, schema=schema)
    for column in ("lease_until", "claimed_by", "crashes", "last_error", "unique_key", "headers"):
        if (table, column) != ($archived_job, "lease_until") and has("get_columns", table, column):
            op.drop_column(table, column, schema=schema)
"""
