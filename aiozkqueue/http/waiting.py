"""Work on behalf of a client, as long as the client is connected and the server runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.requests import Request

T = TypeVar("T")


async def while_wanted(request: Request, leaving: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Await the work. Cancel it and return None if the client disconnects or the server is about to stop."""
    task = asyncio.ensure_future(work)
    ends = [asyncio.create_task(_gone(request)), asyncio.create_task(leaving.wait())]
    try:
        await asyncio.wait([task, *ends], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pending in [task, *ends]:
            pending.cancel()  # has no effect on a finished task
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task, *ends])
    return None if task.cancelled() else task.result()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
