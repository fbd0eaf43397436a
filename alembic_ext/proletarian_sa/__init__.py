"""Install and upgrade the queue's tables by a revision of the user's own Alembic project."""

from alembic_ext.proletarian_sa.autogenerate import register
from alembic_ext.proletarian_sa.revision import write_revision

__all__ = ["register", "write_revision"]
