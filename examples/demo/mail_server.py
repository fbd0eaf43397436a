"""A real SMTP server on the loopback that refuses some recipients, and remembers the mails it took."""

import asyncio
import socket
import threading
from collections import Counter
from typing import Any, Self

from aiosmtpd.smtp import SMTP, Envelope

ACCEPTED = "250 2.1.5 OK"
NOT_YET = "451 4.7.1 Greylisted, try again later"
NEVER = "550 5.1.1 No such mailbox"


class MailServer:
    """Listen on a free port until the end of the `with` block.

    Attributes:
        port: Where it listens.
        received: The recipients of the mails it took, in order: one entry for each mail.
        refused_for_now: How often it asked somebody to try again.
        refused_for_good: How often it said that there is no such mailbox.
    """

    def __init__(self, *, greylisted: str, times: int, unknown: str) -> None:
        self.received: list[str] = []
        self.refused_for_now = self.refused_for_good = 0
        self._to_refuse = Counter({greylisted: times})
        self._unknown = unknown
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="mail server", daemon=True)
        self._running = threading.Event()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        # without a name of its own it would ask the DNS for one
        server = await self._loop.create_server(lambda: SMTP(self, hostname="localhost", loop=self._loop), sock=self._socket)
        self._running.set()
        await self._end.wait()
        server.close()

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name for it
        self, _server: SMTP, _session: Any, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        """Answer to the name of a recipient."""
        if address == self._unknown:
            self.refused_for_good += 1
            return NEVER
        if self._to_refuse[address] > 0:
            self._to_refuse[address] -= 1
            self.refused_for_now += 1
            return NOT_YET
        envelope.rcpt_tos.append(address)
        return ACCEPTED

    async def handle_DATA(self, _server: SMTP, _session: Any, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's name for it
        """Take a mail."""
        self.received.extend(envelope.rcpt_tos)
        return "250 2.0.0 Taken"

    def __enter__(self) -> Self:
        self._thread.start()
        self._running.wait()
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
