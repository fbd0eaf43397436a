"""The operations that make each version of the tables.

From the first release on a version is frozen: it imports nothing that can change. What each has added
stands by name in `proletarian_sa.versions`, under the same numbers.
"""

from types import ModuleType
from typing import Final

from alembic_ext.proletarian_sa.history import v01

HISTORY: Final[dict[int, ModuleType]] = {1: v01}
"""Number to the module with UPGRADE, which makes this version from the one before, and DOWNGRADE, which takes it back."""
