"""What Alembic runs: where the database is, and which tables it is to have."""

from logging.config import fileConfig

from alembic import context
from sqlalchemy import create_engine, pool

from alembic_ext.proletarian_sa import register
from shop import DATABASE_URL, Base

fileConfig(context.config.config_file_name)
target_metadata = register(Base.metadata)


def run_migrations_offline() -> None:
    """Print the SQL: alembic upgrade head --sql."""
    context.configure(url=DATABASE_URL, target_metadata=target_metadata, literal_binds=True, dialect_opts={"paramstyle": "named"})
    with context.begin_transaction():
        context.run_migrations()


def run_migrations_online() -> None:
    """Change the database."""
    engine = create_engine(DATABASE_URL, poolclass=pool.NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=target_metadata)
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    run_migrations_offline()
else:
    run_migrations_online()
