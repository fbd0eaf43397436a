"""Run servers for development until Ctrl-C, and print their URLs as shell exports.

Usage: python -m tests.servers NAME... (all kinds if none is named)
"""

import signal
import sys

from tests.servers.kinds import KINDS, variable
from tests.servers.registry import Servers


def main(names: list[str]) -> int:
    """Start the servers, print, wait, stop."""
    if unknown := set(names) - set(KINDS):
        sys.stderr.write(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}\n")
        return 2
    signals = {signal.SIGINT, signal.SIGTERM}
    # blocked before any thread starts, so that neither signal can interrupt a server's start and both can be waited for
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    servers = Servers()
    servers.start(name for name in names or KINDS if name != "sqlite")
    for name, outcome in servers.outcomes.items():
        problem = isinstance(outcome, Exception)
        sys.stdout.write(f"# {name}: {outcome}\n" if problem else f"export {variable(name)}='{servers.get(name).url}'\n")
    sys.stdout.flush()
    if len(servers.problems()) < len(servers.outcomes):
        signal.sigwait(signals)
    servers.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
