"""The response with messages. A thousand messages of 30 KiB are encoded and sent in short steps of the event loop."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from aiozkqueue.disconnection import is_disconnected

from .core.limits import SLICE
from .core.service import as_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from .core.service import Polled

#: The extension of our own server: a function that returns whether the client has disconnected.
GONE: Final = "aiozkqueue.gone"
#: The number of bytes that are written to the connection at a time.
_PORTION: Final = 256 * 1024


class MessagesResponse(Response):
    """Messages in EmoDB's format.

    They are encoded when the request can no longer be cancelled; otherwise the messages of a poll would stay claimed.
    ``undelivered`` is called if the client disconnects before everything is written.
    """

    media_type = "application/json"

    def __init__(self, polled: Sequence[Polled], undelivered: Callable[[], Awaitable[object]] | None = None) -> None:
        super().__init__()
        self._polled = polled
        self._undelivered = undelivered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        parts = await self._parts()
        gone = scope.get("extensions", {}).get(GONE)
        if self._undelivered is None:
            await self._send(parts, send)
        elif gone is None:  # a different server, which can only be asked before the response
            await (self._undelivered() if await is_disconnected(Request(scope, receive)) else self._send(parts, send))
        else:
            await self._deliver(parts, send, gone, self._undelivered)

    async def _deliver(
        self, parts: list[bytes], send: Send, gone: Callable[[], bool], undelivered: Callable[[], Awaitable[object]]
    ) -> None:
        """Send the response. Check the connection immediately before each write, because a lost write raises nothing.

        No other task runs between the check and the write.
        """
        complete = True

        async def write(message: Message) -> None:
            nonlocal complete
            complete = complete and not gone()
            await send(message)

        await self._send(parts, write)
        if not complete:
            await undelivered()

    async def _send(self, parts: list[bytes], send: Send) -> None:
        self.headers["content-length"] = str(sum(map(len, parts)))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        portion: list[bytes] = []
        size = 0
        for part in parts:
            portion.append(part)
            size += len(part)
            if size >= _PORTION:
                await send({"type": "http.response.body", "body": b"".join(portion), "more_body": True})
                await asyncio.sleep(0)
                portion.clear()
                size = 0
        await send({"type": "http.response.body", "body": b"".join(portion)})

    async def _parts(self) -> list[bytes]:
        parts: list[bytes] = []
        start = time.perf_counter()
        for message in self._polled:
            parts.append(b'%b{"id":%b,"payload":' % (b"," if parts else b"[", json.dumps(message.id).encode()))
            parts += [as_json(message.body), b"}"]
            if time.perf_counter() - start > SLICE:
                await asyncio.sleep(0)
                start = time.perf_counter()
        return [*parts, b"]"] if parts else [b"[]"]
