"""Runs the Alembic commands that it is told, one a line, and says how each ended."""

import json
import os
import sys

import alembic.command
from alembic.config import Config

import alembic_ext.proletarian_sa  # noqa: F401 - imported once, not within the first command

sys.stdout.write("ready\n")
sys.stdout.flush()
for line in filter(str.strip, sys.stdin):
    folder, url, command, target = json.loads(line)
    os.chdir(folder)
    os.environ["APP_DATABASE_URL"] = url
    try:
        getattr(alembic.command, command)(Config("alembic.ini"), target)
        ended = ""
    except Exception as error:  # noqa: BLE001 - the test looks at it
        ended = f"{type(error).__name__}: {error}"
    sys.stdout.write(f"ended {json.dumps(ended)}\n")
    sys.stdout.flush()
