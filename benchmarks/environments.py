"""Virtual environments, one for ourselves and one for each peer, made when first needed, all with the same Python."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CACHE: Final = Path(os.environ.get("PROLETARIAN_CACHE") or ROOT / ".cache").absolute() / "bench"
REQUIREMENTS: Final[dict[str, list[str]]] = {
    "ours": ["--editable", f"{ROOT}[postgresql,mysql,asyncpg]", "uvloop"],
    "pgqueuer": ["pgqueuer[asyncpg,psycopg]>=1.6,<1.7", "psycopg[binary]"],
    "oban": ["oban>=0.7,<0.8", "psycopg[binary]"],
    "procrastinate": ["procrastinate>=3.10,<3.11", "psycopg[binary]"],
    "dbos": ["dbos>=3.4,<3.5"],
    "huey": ["huey>=3.5,<3.6"],
    "alchemical-queues": ["alchemical-queues>=0.3,<0.4"],
    "dbworker": ["dbworker>=0.1.3,<0.2"],
    "picture": ["matplotlib>=3.9"],
}
CANDIDATES: Final = ("python3.14", "python3.13", "python3.12")
ASKED_FOR_VERSIONS: Final = """
import importlib.metadata, json, sys
installed = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
print(json.dumps({"python": sys.version.split()[0], **dict(sorted(installed.items()))}))
"""


class EnvironmentMissingError(Exception):
    """An environment cannot be made; the message has what the installer said."""


FAILED: Final[dict[str, EnvironmentMissingError]] = {}


@cache
def find_python() -> str:
    """Find the newest Python that all peers run on, else this one; names on PATH may be there and not run."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    installed = sorted(str(python) for python in versions.glob("3.1[2-9].*/bin/python3"))
    for python in [*CANDIDATES, *reversed(installed)]:
        try:
            subprocess.run([python, "-c", "import venv"], check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.SubprocessError):
            continue
        return python
    return sys.executable


def make(name: str) -> Path:
    """Return the Python of an environment, which is made if it is not there or was made for something else.

    Raises:
        EnvironmentMissingError: It cannot be made; it is not tried again.
    """
    if name in FAILED:
        raise FAILED[name]
    folder = CACHE / name
    python, made = folder / "bin" / "python", folder / "made"
    wanted = "\n".join([find_python(), *REQUIREMENTS[name]])
    if not made.exists() or made.read_text() != wanted:
        sys.stderr.write(f"making the environment {name}\n")
        try:
            run([find_python(), "-m", "venv", "--clear", str(folder)])
            run([str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *REQUIREMENTS[name]])
        except EnvironmentMissingError as error:
            FAILED[name] = error
            raise
        made.write_text(wanted)
    return python


def run(command: list[str]) -> str:
    """Return what a command prints.

    Raises:
        EnvironmentMissingError: It fails.
    """
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=900).stdout
    except subprocess.CalledProcessError as error:
        raise EnvironmentMissingError(error.stderr.strip()[-2000:]) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentMissingError(str(error)) from error
