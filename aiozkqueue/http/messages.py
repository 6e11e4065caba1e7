"""The answer that holds messages. A thousand of 30 KiB are made and sent in steps that are short for the event loop."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from .core.patience import SLICE
from .core.service import as_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive, Scope, Send

    from .core.service import Polled

#: Bytes that are handed to the connection at a time.
_PORTION: Final = 256 * 1024


class MessagesResponse(Response):
    """Messages as EmoDB shows them.

    They are written as JSON when nothing can be cancelled any more: what a poll has claimed would stay so.
    """

    media_type = "application/json"

    def __init__(self, polled: Sequence[Polled]) -> None:
        super().__init__()
        self._polled = polled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's own
        """Send the answer."""
        parts = await self._parts()
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
        begun = time.perf_counter()
        for one in self._polled:
            parts.append(b'%b{"id":%b,"payload":' % (b"," if parts else b"[", json.dumps(one.id).encode()))
            parts += [as_json(one.body), b"}"]
            if time.perf_counter() - begun > SLICE:
                await asyncio.sleep(0)
                begun = time.perf_counter()
        return [*parts, b"]"] if parts else [b"[]"]
