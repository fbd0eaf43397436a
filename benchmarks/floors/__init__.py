"""The least that each thing can cost on this machine: the same SQL without us."""

import shutil
from pathlib import Path
from typing import Final

PROGRAM_FOLDERS: Final = [str(folder) for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
PGBENCH: Final = shutil.which("pgbench") or shutil.which("pgbench", path=":".join(PROGRAM_FOLDERS)) or "pgbench"
"""The program, which lies beside a server; its version need not be the server's."""
