"""A server of ASGI applications for tests, in the event loop of the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

ASGI = {"version": "3.0", "spec_version": "2.3"}


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[None]:
    """Begin and end an application's lifespan, as a server does."""
    to_app: asyncio.Queue[Any] = asyncio.Queue()
    from_app: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(app({"type": "lifespan", "asgi": ASGI, "state": {}}, to_app.get, from_app.put))
    await to_app.put({"type": "lifespan.startup"})
    assert {"type": "lifespan.startup.complete"} == await from_app.get()
    try:
        yield
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        assert {"type": "lifespan.shutdown.complete"} == await from_app.get()
        await task


async def post(app: Any, path: str, query: str) -> int:
    """Send a request without a body, and return the status of the response."""
    sent = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    addresses = {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http", "http_version": "1.1"}
    place = {"path": path, "raw_path": path.encode(), "root_path": "", "query_string": query.encode(), "headers": []}
    await app({"type": "http", "asgi": ASGI, "method": "POST", "state": {}, **addresses, **place}, receive, send)
    status: int = sent[0]["status"]
    return status
