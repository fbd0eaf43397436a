"""Version 1: the two tables and their indexes.

A text is part of the body of the user's revision: literal operations that import only alembic and sqlalchemy, so that what is
reviewed is what runs, with or without this library. `is_postgresql` and `schema` are set before it; `$job`, `$archived_job` and
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
there = online and sa.inspect(op.get_bind()).has_table($job, schema=schema)
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
if is_postgresql and not there:  # room in each page: what a claim makes of a row stays beside it, and no index is touched
    place = op.get_context().dialect.identifier_preparer.format_table(sa.table($job, schema=schema)).replace("%%", "%")
    op.execute(sa.DDL("ALTER TABLE %(place)s SET (fillfactor = 35)", context={"place": place}))  # which doubles % itself
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
# Locked in the order in which workers lock them.
op.drop_table($job, schema=schema, if_exists=True)
op.drop_table($archived_job, schema=schema, if_exists=True)
"""

ADOPT = """\
# Takes over the tables that the scripts of Proletarian, the Clojure library, have made. All jobs stay.
online, dialect = not op.get_context().as_sql, op.get_context().dialect.name
name, long_text, moment, change = "VARCHAR(255)", "TEXT", "TIMESTAMPTZ", "ALTER {} TYPE {}"
if not is_postgresql:
    long_text, moment, change = "LONGTEXT", "DATETIME(6)", "MODIFY {} {} NOT NULL"
theirs = {"queue": name, "job_type": name, "payload": long_text, "enqueued_at": moment, "process_at": moment}
ours = {"claimed_by": name, "crashes": "INTEGER", "last_error": long_text, "unique_key": name, "headers": long_text}
tables = {
    $job: (theirs, {"lease_until": moment, **ours}),
    $archived_job: ({**theirs, "status": "VARCHAR(20)", "finished_at": moment}, ours),
}

def found(what, table):
    # Returns what is there, by name: from the original, or from an interrupted run.
    if not online or not sa.inspect(op.get_bind()).has_table(table, schema=schema):
        return {}
    return {one["name"]: one for one in getattr(sa.inspect(op.get_bind()), what)(table, schema=schema)}

def alter(table, parts):
    # In one statement: wholly or not at all.
    place = [quoted(name) for name in (schema, table) if name]
    op.execute(sa.DDL("ALTER TABLE %(place)s %(parts)s", context={"place": ".".join(place), "parts": ", ".join(parts)}))

def quoted(name):
    return op.get_context().dialect.identifier_preparer.quote(name).replace("%%", "%")  # DDL doubles it by itself

for table, (changed, _) in tables.items():
    missing = {"job_id", "attempts", *changed} - found("get_columns", table).keys()
    if dialect == "sqlite" or (online and missing):
        raise CommandError(
            f"In this {dialect} database {table} is no table of Proletarian, the Clojure library: there is no column "
            f"{', '.join(sorted(missing))}. Nothing was changed. For new tables delete this revision, then: proletarian-sa revision"
        )
if not is_postgresql:  # moments become UTC, and what does not fit is an error, whatever the session says
    op.execute("SET @time_zone = @@time_zone, @sql_mode = @@sql_mode")
    op.execute("SET time_zone = '+00:00', sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')")
indexes = found("get_indexes", $job) if online else {$queue_process_at_index: {"column_names": ["queue", "process_at"]}}
their_index = [op.f(index) for index, known in indexes.items() if known["column_names"] == ["queue", "process_at"]]
for table, (changed, added) in tables.items():
    if "claimed_by" not in found("get_columns", table):
        parts = [change.format(*column) for column in changed.items()] + [f"ADD {' '.join(column)}" for column in added.items()]
        if not is_postgresql:
            parts.insert(0, "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        elif table == $job:  # room in each page: what a claim makes of a row stays beside it, and no index is touched
            parts.append("SET (fillfactor = 35)")
        for index in their_index if table == $job else []:  # in MySQL of more characters than the column will have
            if is_postgresql:
                op.drop_index(index, table_name=table, schema=schema)
            else:
                parts.insert(0, f"DROP INDEX {quoted(index)}")
        alter(table, parts)
if not is_postgresql:
    op.execute("SET time_zone = @time_zone, sql_mode = @sql_mode")
for index, table, columns, options in (
    ($queue_process_at_index, $job, ["queue", "process_at"], {}),
    ($unique_key_index, $job, ["unique_key"], {"unique": True, "postgresql_where": sa.text("unique_key IS NOT NULL")}),
    ($finished_at_index, $archived_job, ["finished_at"], {}),
):
    if index not in found("get_indexes", table):
        op.create_index(index, table, columns, schema=schema, **options)
"""

ABANDON = """\
# Gives the tables back to Proletarian, the Clojure library. All jobs stay; so do the types of columns, which suit it.
online = not op.get_context().as_sql
ours = ["claimed_by", "crashes", "last_error", "unique_key", "headers"]

def has(what, table, name):
    # Says whether an interrupted run has left it.
    return not online or any(name == known["name"] for known in getattr(sa.inspect(op.get_bind()), what)(table, schema=schema))

def alter(table, parts):
    # In one statement: wholly or not at all.
    place = [quoted(name) for name in (schema, table) if name]
    op.execute(sa.DDL("ALTER TABLE %(place)s %(parts)s", context={"place": ".".join(place), "parts": ", ".join(parts)}))

def quoted(name):
    return op.get_context().dialect.identifier_preparer.quote(name).replace("%%", "%")  # DDL doubles it by itself

for table, columns in (($job, ["lease_until", *ours]), ($archived_job, ours)):
    if has("get_columns", table, "claimed_by"):  # an index on it goes with its column
        room = ["RESET (fillfactor)"] if is_postgresql and table == $job else []
        alter(table, [f"DROP {column}" for column in columns] + room)
if has("get_indexes", $archived_job, $finished_at_index):
    op.drop_index($finished_at_index, table_name=$archived_job, schema=schema)
"""
