"""Whether the client of a request has disconnected, for the applications of `aiozkqueue.fastapi` and `aiozkqueue.http`.

A request of Starlette has an ``is_disconnected`` that cancels its question at the first suspension and asks once. It
learns nothing through a ``BaseHTTPMiddleware`` (``@app.middleware("http")``), which suspends before it returns a
message, or from a server that first returns the body if the application has not read it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.requests import Request

#: Messages of an unread body that are dropped at most, so that a client that goes on sending holds up no transaction.
MOST: Final = 64
#: Iterations of the event loop to wait for a message that has arrived: three, and two for each middleware in between.
TURNS: Final = 16


async def is_disconnected(request: Request) -> bool:
    """Whether the server has noticed that the client has disconnected; the rest of an unread body is dropped.

    It is taken for connected if more than `MOST` messages of its body are unread.
    """
    if await request.is_disconnected():  # it also remembers the answer that the application has got
        return True
    for _ in range(MOST):
        kind = await _arrived(request)
        if kind is None or kind == "http.disconnect":
            return kind is not None
    return False


async def _arrived(request: Request) -> str | None:
    """Return the type of the next message of a request, if it has arrived."""
    asking = asyncio.ensure_future(request.receive())
    try:
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if asking.done():
                break
    finally:
        asking.cancel()  # has no effect on a finished task
        await asyncio.wait([asking])
    return None if asking.cancelled() else str(asking.result()["type"])
