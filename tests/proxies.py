"""A way to a server that can be closed and opened again."""

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
        self._port = 0
        self.open()
        self.url = url.set(host="127.0.0.1", port=self._port)

    def open(self) -> None:
        """Let connections pass."""
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._sockets.append(listener)
        self._thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut all connections, and refuse new ones."""
        with suppress(OSError):
            self._sockets[0].shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._sockets[0].close()
        self._sockets.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                one, _ = listener.accept()
                other = socket.create_connection(self._target)
                self._sockets += [one, other]
                for source, target in ((one, other), (other, one)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source:
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(url: sa.URL) -> Iterator[Proxy]:
    """Make a way to a server, for as long as the block lasts."""
    made = Proxy(url)
    try:
        yield made
    finally:
        made.close()
