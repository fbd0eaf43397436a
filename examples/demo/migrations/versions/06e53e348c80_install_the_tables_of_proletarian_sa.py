"""install the tables of proletarian-sa

Revision ID: 06e53e348c80
Revises: 8c0a52b1f7de
Create Date: 2026-11-30 16:47:03.320439

"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError
from sqlalchemy.dialects import mysql

revision = '06e53e348c80'
down_revision = '8c0a52b1f7de'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the tables."""
    # proletarian-sa: ["proletarian", "job", "archived_job"] from version 0 to version 1
    is_postgresql = op.get_context().dialect.name == "postgresql"
    schema = "proletarian" if is_postgresql else None
    online = not op.get_context().as_sql
    family = ("mysql", "mariadb")
    moment = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *family)
    long_text = sa.Text().with_variant(mysql.LONGTEXT(), *family)
    job_id = sa.Uuid().with_variant(mysql.BINARY(16), *family)
    mysql_options = {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}
    options = {f"{name}_{option}": value for name in family for option, value in mysql_options.items()}

    def exists(table, index):
        # Says whether an interrupted run has made it already; MySQL has no CREATE INDEX IF NOT EXISTS.
        return online and any(index == known["name"] for known in sa.inspect(op.get_bind()).get_indexes(table, schema=schema))

    if schema is not None and not (online and sa.inspect(op.get_bind()).has_schema(schema)):
        op.execute(sa.schema.CreateSchema(schema, if_not_exists=True))
    there = online and sa.inspect(op.get_bind()).has_table("job", schema=schema)
    op.create_table(
        "job",
        sa.Column("job_id", job_id, primary_key=True),
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
        if_not_exists=True,
        **options,
    )
    if is_postgresql and not there:  # room in each page: what a claim makes of a row stays beside it, and no index is touched
        place = op.get_context().dialect.identifier_preparer.format_table(sa.table("job", schema=schema)).replace("%%", "%")
        op.execute(sa.DDL("ALTER TABLE %(place)s SET (fillfactor = 35)", context={"place": place}))  # which doubles % itself
    if not exists("job", op.f("job_queue_process_at")):
        op.create_index(op.f("job_queue_process_at"), "job", ["queue", "process_at"], schema=schema)
    if not exists("job", op.f("job_unique_key")):
        present = sa.text("unique_key IS NOT NULL")
        op.create_index(
            op.f("job_unique_key"), "job", ["unique_key"], schema=schema, unique=True, postgresql_where=present, sqlite_where=present
        )
    op.create_table(
        "archived_job",
        sa.Column("job_id", job_id, primary_key=True),
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
    if not exists("archived_job", op.f("archived_job_finished_at")):
        op.create_index(op.f("archived_job_finished_at"), "archived_job", ["finished_at"], schema=schema)

    # Another run at the same moment may have done this: Alembic would note it a second time, beside what has followed since.
    context = op.get_context()
    if context.script is not None and not context.as_sql:
        noted = sa.table(context.version_table, sa.column("version_num"), schema=context.version_table_schema)
        here = noted.c.version_num == revision
        op.execute(sa.update(noted).where(here).values(version_num=revision))  # changes nothing: locks the place, or SQLite's file
        if revision in [known.revision for known in context.script.iterate_revisions(context.get_current_heads(), "base")]:
            raise CommandError("Another run of Alembic has installed the tables of proletarian-sa. Run the same command again.")


def downgrade() -> None:
    """Take the upgrade back."""
    # proletarian-sa: ["proletarian", "job", "archived_job"] from version 1 to version 0
    is_postgresql = op.get_context().dialect.name == "postgresql"
    schema = "proletarian" if is_postgresql else None
    # Whoever enqueues a job would have to wait behind this: without a lock within 5 seconds it gives up.
    if is_postgresql:
        before = "set_config('proletarian_sa.before', current_setting('lock_timeout'), false)"
        op.execute(f"SELECT {before}, set_config('lock_timeout', '5s', false)")
    elif op.get_context().dialect.name in ("mysql", "mariadb"):
        op.execute("SET @before = @@lock_wait_timeout, lock_wait_timeout = 5")
    try:
        # All jobs, queued and archived, are lost. A schema stays: there may be other things in it.
        # Locked in the order in which workers lock them.
        op.drop_table("job", schema=schema, if_exists=True)
        op.drop_table("archived_job", schema=schema, if_exists=True)
    except sa.exc.DBAPIError as error:
        codes = [getattr(error.orig, name, None) for name in ("sqlstate", "pgcode", "errno")] + list(error.orig.args[:1])
        if not any(code in ("55P03", "40P01", 1205, 1213, "database is locked") for code in codes):
            raise
        raise CommandError(
            "The tables of proletarian-sa are in use, by a long transaction or a held job, so this migration gave up. "
            "Let that end, then run the same command again."
        ) from error
    if is_postgresql:
        op.execute("SELECT set_config('lock_timeout', current_setting('proletarian_sa.before'), false)")
    elif op.get_context().dialect.name in ("mysql", "mariadb"):
        op.execute("SET lock_wait_timeout = @before")
