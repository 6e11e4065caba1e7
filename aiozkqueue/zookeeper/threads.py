"""Blocking calls that a connection needs, each in a separate thread.

The threads of the loop's executor belong to the program. If its handlers occupied all of them, a lookup there would
wait until the session has ended.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
V = TypeVar("V")


async def in_thread(call: Callable[[], T], name: str) -> T:
    """Return the result of a blocking call. Neither a cancelled caller nor the end of the program waits for its end.

    Raises:
        OSError: no thread can be started.
        The errors of the call.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            answer(future.set_exception, error)
        else:
            answer(future.set_result, result)

    def answer(settle: Callable[[V], object], value: V) -> None:
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(lambda: future.done() or settle(value))

    try:
        Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:  # the system's limit; the next attempt may succeed
        raise OSError(errno.EAGAIN, str(error)) from error
    return await future
