"""The driver's work on a ledger while tasks read a batch: it removes the previous batch and prepares the next one.

The jobs run one at a time, in the order in which they were started. They share the state of the queue, and one event
loop of the driver runs all of them.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Future

    from aiozkqueue.batches.ledger import Ledger

    from .connection import Link


class BackgroundWork:
    """Jobs that were started and have not been awaited yet."""

    def __init__(self, link: Link, ledger: Ledger) -> None:
        self._link = link
        self._ledger = ledger
        self._turn = asyncio.Lock()
        self._started: list[Future[object]] = []

    def remove(self) -> None:
        """Start removing the messages of batches that are done."""
        self._start(self._ledger.finish)

    def prepare(self, after: int, most: int | None) -> None:
        """Start filling the batch after the given one with up to ``most`` messages."""
        self._start(lambda: self._ledger.prepare(after, most))

    def join(self) -> None:
        """Wait until all jobs have ended. Raises: their first error, as `Link.result_of`."""
        while self._started:
            self._link.result_of(self._started.pop(0))

    def stop(self, seconds: float) -> None:
        """Release a prepared batch, and wait up to ``seconds`` for all jobs. Errors are left to the next driver."""
        self._ledger.halt()
        self._start(self._ledger.release_unsealed)
        wait(self._started, seconds)
        self._started.clear()

    def _start(self, work: Callable[[], Awaitable[object]]) -> None:
        self._started.append(self._link.start(self._in_turn, work))

    async def _in_turn(self, work: Callable[[], Awaitable[object]]) -> object:
        async with self._turn:
            return await work()
