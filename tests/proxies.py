"""A way to a server that can be closed and opened again, or lose all that is sent, without a word."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import sqlalchemy as sa


class Proxy:
    """Carries connections on a port of its own; `url` leads through it."""

    def __init__(self, url: sa.URL) -> None:
        self._target = (url.host, url.port)
        self._sockets: list[socket.socket] = []
        self._ends: list[socket.socket] = []  # those that lead to the server
        self._port = 0
        self._flows = [flowing()]  # the last one is that of connections to come
        self.open()
        self.url = url.set(host="127.0.0.1", port=self._port)

    def open(self) -> None:
        """Let connections pass."""
        self._listener = self._listen()
        self._port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut all connections, and refuse new ones."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for one in self._sockets.copy():
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()
        self.thaw()

    def ports(self) -> list[int]:
        """Return the ports from which the connections come, as the server sees them."""
        found = []
        for one in self._ends.copy():
            with suppress(OSError):
                found.append(one.getsockname()[1])
        return found

    def freeze(self) -> None:
        """Carry nothing any more, no end of a connection either, and let nobody know; new connections get no answer."""
        for flow in self._flows:
            flow.clear()

    def renew(self) -> None:
        """Carry the connections that are made from now on; those that are frozen stay so."""
        self._flows.append(flowing())

    def thaw(self) -> None:
        """Carry everything again."""
        for flow in self._flows:
            flow.set()

    def let_server_know(self) -> None:
        """End the server's side of all connections, as a server does itself that has found out that they are dead."""
        for one in self._ends.copy():
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def _listen(self) -> socket.socket:
        return socket.create_server(("127.0.0.1", self._port))

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                one, _ = listener.accept()
                self._sockets.append(one)
                threading.Thread(target=self._connect, args=(one, self._flows[-1]), daemon=True).start()

    def _connect(self, one: socket.socket, flow: threading.Event) -> None:
        flow.wait()
        try:
            other = socket.create_connection(self._target)
        except OSError:  # nobody listens there
            one.close()
            return
        self._sockets.append(other)
        self._ends.append(other)
        threading.Thread(target=self._carry, args=(other, one, flow), daemon=True).start()
        self._carry(one, other, flow)

    def _carry(self, source: socket.socket, target: socket.socket, flow: threading.Event) -> None:
        with suppress(OSError), source:
            while data := source.recv(65536):
                flow.wait()
                target.sendall(data)
        flow.wait()
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


def flowing() -> threading.Event:
    """Return a flow that is not held up."""
    made = threading.Event()
    made.set()
    return made


@contextmanager
def proxy(url: sa.URL) -> Iterator[Proxy]:
    """Make a way to a server, for as long as the block lasts."""
    made = Proxy(url)
    try:
        yield made
    finally:
        made.close()
