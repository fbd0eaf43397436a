"""Run one server and outlive the tests by a moment, to end the server and remove its folder.

A process of its own, because tests may be killed in ways that let no Python code of theirs run. The tests hold the
other end of its standard input; the system closes that when they are gone, however they went.

Usage: guard.py FOLDER SIGNAL USER COMMAND... (SIGNAL is a number; USER is an id, or empty to stay)
"""

import os
import shutil
import subprocess
import sys
import threading

GRACE = 30.0
"""Seconds a server has to obey the signal; a container engine passes it on first."""


def main(folder: str, stop_signal: str, user: str, *command: str) -> int:
    """Run the command until it ends or the tests do; return its exit code."""
    identity = {"user": int(user), "group": int(user), "extra_groups": []} if user else {}
    server = subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, **identity)  # type: ignore[call-overload]
    threading.Thread(target=end_after_tests, args=(server, int(stop_signal)), daemon=True).start()
    try:
        return int(server.wait())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def end_after_tests(server: subprocess.Popen[bytes], stop_signal: int) -> None:
    """Wait for the other end to close, then end the server."""
    os.read(0, 1)
    server.send_signal(stop_signal)
    try:
        server.wait(GRACE)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
