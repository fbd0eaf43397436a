"""The versions of the tables, numbered. From the first release on a version is frozen: it imports nothing that can change."""

from alembic_ext.proletarian_sa.history import v01

VERSIONS = {1: v01}
"""Version number to the module with its UPGRADE and DOWNGRADE."""

LATEST = 1
