"""A worker for asyncio: handlers are tasks on the application's event loop, and all else is what the threaded worker does.

What blocks runs in threads as there, each on an event loop of its own (`own_loops`). Here is what differs: `worker` and `crew`, how
a handler is called (`handling`, `call`), and what it is given (`running`, `session`).
"""
