"""A network of a test's own, in which packets get lost: needs the right to make one, which root has."""

import ctypes
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa

from tests.proxies import Proxy

NEW: Final = 0x40000000  # CLONE_NEWNET
OWN: Final = "192.0.2.1"
SERVER: Final = "192.0.2.2"
"""An address of the loopback there; when it is taken away, packets to it go to a wire where nobody listens."""
PREPARE: Final = f"""
    link set lo up
    link add near type veth peer name far
    link set near up
    link set far up
    address add {OWN}/24 dev near
    neighbour add {SERVER} lladdr 02:00:00:00:00:01 dev near nud permanent
    address add {SERVER}/32 dev lo
"""


class NetworkMissingError(Exception):
    """This system does not let us make a network."""


class Network:
    """A network namespace, and a thread that is in it.

    Attributes:
        path: By which other processes enter it: see `enter`.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        try:
            self._file = self.call(unshare)
            for line in PREPARE.strip().splitlines():
                self.ip(line)
        except (OSError, subprocess.CalledProcessError) as error:
            self._thread.shutdown()
            raise NetworkMissingError(str(error)) from error
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in there."""
        return self._thread.submit(function, *arguments).result()

    def ip(self, arguments: str) -> None:
        """Run `ip` in there."""
        self.call(lambda: subprocess.run(["ip", *arguments.split()], check=True, capture_output=True))

    def close(self) -> None:
        """Let it go with the last process in it."""
        self._thread.shutdown()
        os.close(self._file)


class LossyProxy(Proxy):
    """Carries connections from a network of its own to a server; `freeze` loses all packets on the way to the proxy, and back."""

    def __init__(self, network: Network, url: sa.URL, host: str = SERVER) -> None:
        self._network, self._host = network, host
        super().__init__(url)
        self.url = self.url.set(host=host)

    def freeze(self) -> None:
        """Lose all packets, and let nobody know."""
        self._network.ip(f"address del {SERVER}/32 dev lo")

    def restore(self) -> None:
        """Lose none any more."""
        self._network.ip(f"address add {SERVER}/32 dev lo")

    def _listen(self) -> socket.socket:
        made: socket.socket = self._network.call(socket.create_server, (self._host, self._port))
        return made


@contextmanager
def network() -> Iterator[Network]:
    """Make a network for as long as the block lasts.

    Raises:
        NetworkMissingError: That is not to be had here.
    """
    made = Network()
    try:
        yield made
    finally:
        made.close()


def unshare() -> int:
    """Put this thread into a network of its own, and return an open file that stands for that."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW):
        raise OSError(ctypes.get_errno(), "no network of one's own")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def enter(path: str) -> None:
    """Put this thread, and those that it starts, into a network."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(path, os.O_RDONLY)
    if libc.setns(file, NEW):
        raise OSError(ctypes.get_errno(), f"cannot enter the network {path}")
    os.close(file)
