"""What Alembic runs when the demo puts its tables into a database: on the demo's own connection, by a version table of its own."""

from alembic import context

from alembic_ext.proletarian_sa import register
from examples.demo.app import Base
from examples.demo.database import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=register(Base.metadata),
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
