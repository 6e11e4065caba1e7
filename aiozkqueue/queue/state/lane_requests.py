"""The priorities and delays that puts wait for in a queue's configuration: one change adds them all."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from aiozkqueue.errors import InvalidOptionError

from .config_rules import with_lane

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aiozkqueue.layout import StoredConfig


class LaneRequests:
    """The requests of the puts of one session to one queue. One put at a time changes the configuration."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._waiting: Counter[tuple[int, bool]] = Counter()
        self._change_ended: asyncio.Event | None = None

    @contextmanager
    def waiting(self, priority: int, *, scheduled: bool) -> Iterator[None]:
        """Include this request in each change that begins in the meantime."""
        request = (priority, scheduled)
        self._waiting[request] += 1
        try:
            yield
        finally:
            self._waiting[request] -= 1
            if not self._waiting[request]:
                del self._waiting[request]

    async def change_once(self, change: Callable[[], Awaitable[None]]) -> None:
        """Make a change, or wait for the end of the change that another put makes.

        All puts that wait continue at the same moment, and share a commit.
        """
        if self._change_ended is not None:
            await self._change_ended.wait()
            return
        self._change_ended = ended = asyncio.Event()
        try:
            await change()
        finally:
            self._change_ended = None
            ended.set()

    def add_to(self, config: StoredConfig) -> StoredConfig:
        """Return the configuration with everything that is waited for and fits."""
        for priority, scheduled in self._waiting:
            with suppress(InvalidOptionError):  # the put that asked for it raises this itself
                config = with_lane(self._queue, config, priority, scheduled=scheduled)
        return config
