"""Find programs on this machine, and the rights to run them with."""

import os
import pwd
import shutil
import stat
import subprocess
from pathlib import Path

SERVER_FOLDERS = ("/usr/sbin", "/usr/local/sbin")
"""Where servers are, which ordinary users often lack on PATH."""


def find_program(name: str) -> Path | None:
    """Find a program on PATH or in the folders of servers."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *SERVER_FOLDERS]))
    return Path(found) if found else None


def ask_program(*command: str | Path) -> str:
    """Return what a program prints, or nothing when it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def is_root() -> bool:
    """Tell whether servers would run as root if nothing were done about it."""
    return os.geteuid() == 0


def unprivileged_user() -> int:
    """Return the id of the user that owns nothing, for a server that refuses to run as root."""
    return pwd.getpwnam("nobody").pw_uid


def anyone_may_enter(folder: Path) -> bool:
    """Tell whether a folder can be reached by users who own none of the folders above it."""
    return all(part.stat().st_mode & stat.S_IXOTH for part in (folder, *folder.parents))
