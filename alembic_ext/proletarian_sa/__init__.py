"""The Alembic side of proletarian-sa."""
