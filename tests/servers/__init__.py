"""Private, throw-away database servers for development and tests.

Each kind is looked for in the same order: a URL in the environment, programs on this machine, a container, a package.
A server that was started here listens on the loopback alone, on a free port, and disappears with the process.
"""

from tests.servers.errors import ServerFailedError, ServerMissingError
from tests.servers.kinds import KINDS, start
from tests.servers.registry import Servers
from tests.servers.server import Server

__all__ = ["KINDS", "Server", "ServerFailedError", "ServerMissingError", "Servers", "start"]
