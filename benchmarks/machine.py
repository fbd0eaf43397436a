"""What the numbers depend on: processor, kernel, disk, and the versions of everything."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from benchmarks.environments import ASKED_FOR_VERSIONS, EnvironmentMissingError, run
from benchmarks.servers import SETTINGS


def facts(folder: Path) -> dict[str, str]:
    """Return facts about this machine; the databases are in a folder."""
    return {
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system of the databases": file_system(folder),
        "load before the run": f"{os.getloadavg()[0]:.1f}",
    }


def settings(kinds: list[str]) -> dict[str, str]:
    """Return the servers' settings that were changed."""
    return {kind: " ".join(SETTINGS[kind]) for kind in kinds if kind in SETTINGS} | {"sqlite": "journal_mode=WAL synchronous=FULL"}


def versions(python: Path) -> dict[str, Any]:
    """Return the versions of what is in an environment."""
    try:
        answer: dict[str, Any] = json.loads(run([str(python), "-c", ASKED_FOR_VERSIONS]))
    except EnvironmentMissingError as error:
        return {"error": str(error)}
    return answer


def processor() -> str:
    """Return the processor's name where the system tells it."""
    information = Path("/proc/cpuinfo")
    for line in information.read_text().splitlines() if information.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def file_system(folder: Path) -> str:
    """Return the type of the file system that a folder is on, where the system tells it."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    entries = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    folder = folder.resolve()
    found = [(len(point), kind) for point, kind in entries if folder.is_relative_to(point)]
    return max(found)[1] if found else "unknown"
